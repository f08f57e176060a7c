"""Names of the Python services that a configuration may use; the services are in `services.catalog`."""

from pathlib import Path

_FOLDER = Path(__file__).parent / "services" / "environments"

TEXT_SERVICES = tuple(sorted(file.parent.name for file in _FOLDER.glob("*/protocol.py")))
"""The environments that can be served, by name: the folders of `services.environments`. Nothing of them is imported."""
