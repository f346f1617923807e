"""The cage that graders run in, the bundle they travel in, and the check of their names."""
