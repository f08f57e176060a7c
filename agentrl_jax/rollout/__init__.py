"""Episodes: `engine.rollout` plays them, `trajectory` is what it returns, `packing` makes the learner's rows of it.

For others too: `envs` (what the engine plays in), `engine_config`, `metrics`, `returns`, `resampling` (dynamic
sampling), `replay` (log-probabilities of recorded episodes) and `transcript` (text for people).
"""
