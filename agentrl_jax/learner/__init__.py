"""Learning from episodes: `update.update` is one iteration of it, `state.TrainState` what it changes.

`batch` filters groups and computes advantages, `row_scores` the values and log-probabilities that it needs,
`trained_rows` numbers the rows of all devices; `imitation` learns from demonstrations, `replay_logprobs` recomputes the
rollout's log-probabilities, `measures` and `prompt_information` are metrics.
"""
