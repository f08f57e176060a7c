"""Bias and noise of gradient estimators, exactly, on a task whose trajectories can be counted: `report.run`."""
