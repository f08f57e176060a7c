from toy_rollouts import batch, compiled, policy  # noqa: F401
