"""Names of the Python services that a configuration may use; the services are in `services.catalog`."""

TEXT_SERVICES = ("textcraft", "sciworld", "maze", "wordle", "babyai")
