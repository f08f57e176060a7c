"""The environments that are implemented here, one module or folder each with its `SERVICE`; see `services.catalog`."""
