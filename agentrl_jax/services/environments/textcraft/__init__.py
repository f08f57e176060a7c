"""TextCraft: crafting in Minecraft as text. See `env` for the environment, `recipes` for what it knows."""
