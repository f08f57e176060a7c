"""The learning rules as functions of arrays: no model, no environment, no configuration file.

For others: `advantages` and `estimate` (estimators), `losses`, `kl`, `filters`, `rewards`, `groups` and `gigpo`,
`schedules`, `collapse` (alarms), `mutual_information`, `diagnostics` and `masked` (means over masks).
"""
