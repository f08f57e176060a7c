"""TextCraft, crafting in Minecraft: `env` has the environment, `recipes` its recipes, `scripted` its policies."""

from agentrl_jax.services.environments.textcraft.env import SERVICE as SERVICE
