"""The numbers that must stay true; `python -m benchmarks` prints them (docs/benchmarks.md says how to read them)."""
