"""evalfleet: a distributed evaluation engine for AI agents."""

__version__ = "0.1.0"
