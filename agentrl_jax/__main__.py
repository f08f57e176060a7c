"""`python -m agentrl_jax` is the command `agentrl`."""

from agentrl_jax.cli.main import main

main()
