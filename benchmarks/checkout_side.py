"""The compiled rollout of another checkout of this repository, for `versions.py`."""

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from worker import serve

PLAYED: list[Any] = []


def start(checkout: str, model: str, environments: int, devices: int) -> None:
    """Compiles the float32 rollout that `benchmarks/torch_rollout.py` of that checkout measures.

    A checkout whose script does not know `devices` plays on one.
    """
    sys.path[:0] = [checkout, str(Path(checkout) / "benchmarks")]
    ours = importlib.import_module("torch_rollout").Ours
    if len(inspect.signature(ours).parameters) == 2:
        built = ours(model, environments)
        PLAYED[:] = [built.play]
    else:
        built = ours(model, environments, "float32", [devices])
        PLAYED[:] = [lambda number: built.play(devices, number)]


def play(number: int) -> dict[str, Any]:
    """Plays rollout `number`; returns its seconds, and how many tokens it read and sampled."""
    return PLAYED[0](number)


if __name__ == "__main__":
    serve({"start": start, "play": play})
