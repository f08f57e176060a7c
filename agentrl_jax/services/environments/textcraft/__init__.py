"""TextCraft: crafting in Minecraft as text. `env` has the environment, `recipes` its recipes."""
