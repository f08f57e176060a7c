"""Writes configuration.json: every key's type, bounds and default, and every preset, as the configuration resolves it.

    python tests/golden/config/make_golden.py

Run it where a change of a default or of a bound is meant; tests/unit/config/test_defaults.py reads the file.
"""

import json
from pathlib import Path
from typing import Any

from agentrl_jax.config import Config, decode, to_dict
from agentrl_jax.config.presets import NAMES

GOLDEN = Path(__file__).with_name("configuration.json")


def _without_texts(node: Any) -> Any:
    """Keys may be called description or title as well; their values are no strings."""
    if isinstance(node, dict):
        texts = [name for name in ("description", "title") if isinstance(node.get(name), str)]
        return {name: _without_texts(value) for name, value in node.items() if name not in texts}
    return [_without_texts(value) for value in node] if isinstance(node, list) else node


def snapshot() -> dict[str, Any]:
    """The schema without help texts, and the resolved values of the defaults and of every preset."""
    presets = {name: to_dict(decode({"algo": {"preset": name}}))["algo"] for name in NAMES}
    return {"schema": _without_texts(Config.model_json_schema()), "defaults": to_dict(decode({})), "presets": presets}


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(snapshot(), indent=1, sort_keys=True) + "\n")
