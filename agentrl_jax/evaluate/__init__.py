"""Success on held-out levels: `eval_set`, `held_out` (those of a run), `baselines` (random, null and optimal
play), `seen` (levels that were learned from), `statistics`, `summary`; `play`, `chat` and `diagnose` are for people.
"""
