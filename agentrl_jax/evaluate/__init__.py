"""Success on held-out levels.

`eval_set` (evaluation of a run), `held_out` (that of a run while it trains), `results` (episodes and rates),
`statistics`, `selectors` (best-of-N), `baselines` (random, null and optimal play), `seen` (levels that were learned
from), `scripted`, `summary`; `panels` (named test levels), `records` and `leaderboard`; `limits`, `retry` and `scaling`
(other budgets); `interval_text`; `play`, `chat` and `diagnose` are for people.
"""
