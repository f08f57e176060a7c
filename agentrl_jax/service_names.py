"""Names of the Python services that a configuration may use; the services are in `services.catalog`."""

import importlib
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).parent / "services" / "environments"

TEXT_SERVICES = tuple(sorted(file.parent.name for file in _FOLDER.glob("*/protocol.py")))
"""The environments that can be served, by name: the folders of `services.environments`. Nothing of them is imported."""

REMOTE_ONLY = ("alfworld", "webshop", "sqlgym", "searchqa", "webarena", "weather", "movie", "academia", "todo", "sheet")
"""Environments of AgentGym that are played on its servers only; `services.environments.remote_only` has their texts."""

COMPILED_TOO = ("searchqa",)
"""Those of `REMOTE_ONLY` that are played on a server only where its address is given; else they are compiled."""


def text_service(name: str, module: str) -> ModuleType | None:
    """A module of the folder of a text environment, e.g. `protocol`; None if no text environment has this name."""
    if name not in TEXT_SERVICES:
        return None
    return importlib.import_module(f"agentrl_jax.services.environments.{name}.{module}")
