"""`python -m agentrl_jax` is the command `agentrl`."""

from agentrl_jax.cli import main

main()
