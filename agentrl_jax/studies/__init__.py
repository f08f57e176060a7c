"""What measures instead of training: `compare` (learning rules side by side), `plan` (memory on devices that need
not be there), `estimator_bias` (estimators against the exact gradient) and `export` (weights for others).
"""
