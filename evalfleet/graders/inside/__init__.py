"""What runs on the graders' own interpreter: standard library only, Python 3.8 or newer, nothing of evalfleet's."""
