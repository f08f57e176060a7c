"""A Python environment as a task of a run."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_jax.config import Config, PromptConfig, TaskConfig
from agentrl_jax.environments.levels import SEEDS, Levels, divide, training_seed
from agentrl_jax.environments.pool import Opened, open_pool
from agentrl_jax.environments.protocol import HostEnvironment, HostStep, Traits
from agentrl_jax.environments.start_check import check_start
from agentrl_jax.errors import BadValue, refusals
from agentrl_jax.io import atomic_write
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.envs.host_environment import HostTask, host_task
from agentrl_jax.services.bridge import RETRIES
from agentrl_jax.services.environments.python import Budget, service_of
from agentrl_jax.services.items import load_items
from agentrl_jax.setup import build
from agentrl_jax.strict_json import parse_object
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax.budget import Baselines

TRAITS_FILE = "environments.json"
"""File in the folder of a run, see `store_traits`."""

_STORED = ("actions", "instruction", "info_keys", "has_content")
"""Traits that texts and their lengths depend on."""

CALL_SHARE = 0.5
"""Share of a turn's deadline for one call; the rest is for environments that wait, or that are played again."""


class PythonTask:
    """The workers, the levels and the prompt of one Python environment."""

    def __init__(self, config: Config, task: TaskConfig):
        """Imports the class and plays a few episodes of it.

        Raises:
            UserError: there is no such class, or it cannot be used.
            ValueError: its episodes cannot be repeated, or the items cannot be used.
        """
        self._config, self._task, self.label = config, task, task.label
        self.pool = open_pool(
            task.env,
            task.options,
            processes=config.env.processes,
            seconds=CALL_SHARE * config.env.deadline,
        )
        self.address = "in processes of this run" if config.env.processes else "in this process"
        prompt, traits = config.prompt, self.pool.traits
        self.listed = bool(task.items) or traits.splits is not None
        """Whether somebody has named the items of each split; otherwise no held-out level can be one of training."""
        self.service = service_of(self.pool, task.env, Budget(prompt.max_actions_per_turn, prompt.max_actions))
        env = self.pool.open()
        self.levels = _listed(task, traits.items) or divide(
            traits, env, config.evaluation.episodes, config.train.validation_episodes
        )
        env.close()
        check_start(self.pool, self.levels.held_out[:1], prompt.max_turns)

    def training_item(self, row: int) -> int:
        """The item, or the seed, that a row of `Levels.training` stands for."""
        bounds, content = self.levels.bounds, self.service.content
        number = self.levels.training[row]
        return number if bounds is None or content is None else training_seed(number, content, bounds)

    def host_task(
        self, tokenizer: Tokenizer, baselines: Callable[[int], Baselines | None], *, held_out: bool
    ) -> HostTask:
        """The task of training or of held-out episodes."""
        levels = self.levels
        validation = () if levels.undivided else levels.validation
        items = (*levels.held_out, *validation) if held_out else levels.training
        bounds = None if held_out else levels.bounds
        return _host_task(
            self._config,
            self._task,
            self.pool.traits,
            tokenizer,
            lambda: _Played(self.pool.open(), items, bounds),
            levels=0 if isinstance(items, range) else len(items),
            validation=len(validation) if held_out else 0,
            baselines=baselines,
            undivided=levels.undivided,
        )


def _host_task(
    config: Config,
    task: TaskConfig,
    traits: Traits,
    tokenizer: Tokenizer,
    make: Callable[[], HostEnvironment],
    **levels: Any,
) -> HostTask:
    prompt = config.prompt
    return host_task(
        task.label,
        make,
        instruction=traits.instruction,
        response_format=build.response_grammar(traits.actions, prompt),
        tokenizer=tokenizer,
        style=prompt.style,
        observation_tokens=config.env.observation_tokens,
        max_turns=prompt.max_turns,
        max_actions=prompt.max_actions,
        response_words=prompt.max_response_tokens,
        info_keys=(*traits.info_keys, RETRIES),
        has_content=traits.has_content,
        **levels,
    )


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
    """The traits of the Python environments of a run, by the labels of its tasks.

    Raises:
        UserError: the file is missing or damaged.
    """
    path = folder / TRAITS_FILE
    with refusals(str(path)):
        found = parse_object(path.read_bytes(), str(path))
        try:
            return {label: _read(traits) for label, traits in found.items()}
        except (KeyError, TypeError) as error:
            raise BadValue.at(path, f"is damaged ({error!r}); restore it from a copy of the run") from None


def stored_context(folder: Path, label: str) -> int:
    """The tokens of the longest context of a compiled task that is named by its import path.

    Raises:
        UserError: the file is missing or damaged.
    """
    path = folder / TRAITS_FILE
    with refusals(str(path)):
        found = parse_object(path.read_bytes(), str(path)).get(label)
        context = found.get("context") if isinstance(found, dict) else None
        if not isinstance(context, int):
            raise BadValue.at(path, f"does not say how long contexts of {label} are; restore it from a copy of the run")
        return context


def _read(found: dict[str, Any]) -> Traits:
    return Traits(
        actions=tuple(found["actions"]),
        instruction=found["instruction"],
        info_keys=tuple(found["info_keys"]),
        has_content=found["has_content"],
    )


def stored_env(config: Config, tokenizer: Tokenizer, folder: Path) -> HostEnv:
    """The batched environment of a run on Python environments, which knows their prompts and imports none."""
    traits = stored_traits(folder)

    def missing() -> HostEnvironment:
        raise RuntimeError("this environment only knows its prompts")

    tasks = tuple(_host_task(config, task, traits[task.label], tokenizer, missing) for task in config.tasks)
    return HostEnv(tasks, tokenizer, deadline=config.env.deadline)


def single_env(task: TaskConfig, prompt: PromptConfig, tokenizer: Tokenizer) -> HostEnv:
    """The batched environment of one Python environment outside a run, on its training levels."""
    config = Config(tasks=(task,), prompt=prompt)
    with refusals():
        python = PythonTask(config, task)
    own = python.host_task(tokenizer, lambda episodes: None, held_out=False)
    return HostEnv((own,), tokenizer, deadline=config.env.deadline)


def _listed(task: TaskConfig, items: int) -> Levels | None:
    """The items that the configuration names; None where it names none."""
    if not task.items:
        return None
    parts = [load_items(text, task.env) if text else () for text in (task.items, task.held_out, task.validation)]
    most = items or len(SEEDS)
    for name, numbers in zip(("items", "held_out", "validation"), parts):
        if numbers and max(numbers) >= most:
            raise BadValue.of(f"{task.label}.{name}", getattr(task, name), f"expected numbers below {most}")
    training, held_out, validation = parts
    return Levels(training, held_out, validation)


class _Played:
    """An environment that plays the item which a seed stands for."""

    def __init__(self, env: Opened, items: Sequence[int], bounds: tuple[float, float] | None):
        self._env, self._items, self._bounds = env, items, bounds
        self._item = 0

    def reset(self, seed: int) -> str:
        """See `HostEnvironment`."""
        self._item = self._items[seed % len(self._items)]
        if self._bounds is not None:
            self._item = training_seed(self._item, self._env.content, self._bounds)
        return self._env.reset(self._item)

    def content(self, seed: int) -> str:
        """See `HostTask.has_content`; after `reset`, whose seed it is."""
        return self._env.content(self._item)

    def step(self, response: str, actions: Sequence[str]) -> HostStep:
        """See `HostEnvironment`."""
        return self._env.step(response, actions)

    def close(self) -> None:
        """See `HostEnvironment`."""
        self._env.close()
