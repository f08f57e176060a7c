"""A run: `run.train`, and one iteration of it, `iteration.iterate`."""
