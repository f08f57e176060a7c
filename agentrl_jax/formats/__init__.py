"""Recorded rollouts in the formats of other tools: ATIF and Inspect logs.

`export.export_trajectories` writes them; `episodes.read_episodes` gives the episodes of a record as messages.
"""
