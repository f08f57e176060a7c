"""Multi-turn reinforcement learning of language-model agents, compiled with JAX; start with `agentrl_jax.api`."""
