"""The compiled rollouts of the toy agent, shared by all tests of this folder."""

from toy_rollouts import batch, compiled, policy  # noqa: F401
