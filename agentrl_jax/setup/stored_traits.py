"""What a run stores of environments that are the user's classes, for readers of its folder, which import none."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl_jax.config import Config
from agentrl_jax.environments.protocol import HostEnvironment, Traits
from agentrl_jax.errors import BadValue, UserError, refusals
from agentrl_jax.io import atomic_write
from agentrl_jax.rollout.engine_config import EngineConfig, cache_length
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.setup.python_task import prompted_task
from agentrl_jax.strict_json import parse_object
from agentrl_jax.text.tokenizer import Tokenizer

TRAITS_FILE = "environments.json"
"""File in the folder of a run, see `store_traits`."""

_STORED = ("actions", "instruction", "info_keys", "has_content")
"""Traits that texts and their lengths depend on."""


def store_traits(folder: Path, tasks: Mapping[str, tuple[Traits, int]]) -> None:
    """Writes what readers of a run's folder need to know of classes that they do not import.

    `tasks` has, by the label of a task, the traits and the tokens of its longest context; 0 where traits say it.
    """
    found = {
        label: {name: getattr(traits, name) for name in _STORED} | ({"context": context} if context else {})
        for label, (traits, context) in tasks.items()
    }
    with atomic_write(folder / TRAITS_FILE) as file:
        json.dump(found, file, indent=1)


def stored_traits(folder: Path) -> dict[str, Traits]:
    """The traits that a run has stored, by the labels of its tasks.

    Raises:
        UserError: the file is missing or damaged.
    """
    return {label: traits for label, (traits, _) in _stored(folder).items()}


def stored_length(config: Config, tokenizer: Tokenizer, engine: EngineConfig, folder: Path) -> int:
    """The tokens of the longest context of a task; `config` is that of the run with this task alone.

    Raises:
        UserError: the file is missing or damaged, or does not have the task.
    """
    label = config.tasks[0].label
    found = _stored(folder)
    if label not in found:
        raise UserError.at(folder / TRAITS_FILE, f"does not have {label}; restore it from a copy of the run")
    traits, context = found[label]

    def missing() -> HostEnvironment:
        raise RuntimeError("this environment only knows its prompts")

    task = prompted_task(config, traits, tokenizer, missing)
    return context or cache_length(HostEnv((task,), tokenizer, deadline=config.env.deadline), engine)


def _stored(folder: Path) -> dict[str, tuple[Traits, int]]:
    path = folder / TRAITS_FILE
    with refusals(str(path)):
        found = parse_object(path.read_bytes(), str(path))
        try:
            return {label: (_read(entry), int(entry.get("context", 0))) for label, entry in found.items()}
        except (KeyError, TypeError) as error:
            raise BadValue.at(path, f"is damaged ({error!r}); restore it from a copy of the run") from None


def _read(found: dict[str, Any]) -> Traits:
    return Traits(
        actions=tuple(found["actions"]),
        instruction=found["instruction"],
        info_keys=tuple(found["info_keys"]),
        has_content=found["has_content"],
    )
