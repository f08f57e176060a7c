"""Names of the services that are written in Python, which a configuration may name; `services.catalog` has them."""

TEXT_SERVICES = ("textcraft", "sciworld", "maze", "wordle")
