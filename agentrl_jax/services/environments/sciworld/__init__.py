"""ScienceWorld: `env` has the environment, `pool` its Java processes, `scripted` its policies."""

from agentrl_jax.services.environments.sciworld.env import SERVICE as SERVICE
