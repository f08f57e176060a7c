"""Learning from episodes: `update.update` is one iteration of it, `state.TrainState` what it changes.

`batch` filters groups and computes advantages, `imitation` learns from demonstrations, `replay_logprobs` recomputes
the rollout's log-probabilities, `measures` and `prompt_information` are metrics.
"""
