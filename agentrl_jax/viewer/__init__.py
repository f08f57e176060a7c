"""Shows what an agent did; `imported.load_imported` reads rollout logs of other programs."""
