"""TextCraft, crafting in Minecraft; `recipes` has its recipes, `scripted` its policies; see `services.environments`."""
