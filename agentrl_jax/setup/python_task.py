"""A Python environment as a task of a run."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_jax.config import Config, TaskConfig, alone
from agentrl_jax.environments.levels import SEEDS, Levels, divide, training_seed
from agentrl_jax.environments.pool import Opened, Pool, open_pool
from agentrl_jax.environments.protocol import HostEnvironment, HostStep, Traits
from agentrl_jax.environments.start_check import check_start
from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.envs.host_environment import HostTask, host_task
from agentrl_jax.services.bridge import RETRIES
from agentrl_jax.services.environments.python import Budget, service_of
from agentrl_jax.services.items import load_items
from agentrl_jax.services.pools import LocalPool
from agentrl_jax.setup import build
from agentrl_jax.setup.served_task import ServedTask, log_name
from agentrl_jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from agentrl_jax.setup.service_tasks import Services

CALL_SHARE = 0.5
"""Share of a turn's deadline for one call; the rest is for environments that wait, or that are played again."""


@dataclasses.dataclass(frozen=True, eq=False)
class PythonTask(ServedTask):
    """A task whose environments are of one Python class; `service` adapts them for scripted policies."""

    workers: Pool
    levels: Levels

    @property
    def listed(self) -> bool:
        """See `ServedTask.listed`."""
        return bool(self.config.items) or self.workers.traits.splits is not None

    @property
    def traits(self) -> Traits:
        """See `ServedTask.traits`."""
        return self.workers.traits

    def training_item(self, row: int) -> int:
        """See `ServedTask.training_item`; of seeds, the one that the row stands for."""
        bounds, content, number = self.levels.bounds, self.service.content, self.training[row]
        return number if bounds is None or content is None else training_seed(number, content, bounds)

    def log_to(self, folder: Path) -> None:
        """See `ServedTask.log_to`."""
        self.workers.log_to(folder / log_name("environment", self.config.label))

    def host_task(self, run: "Services", index: int, tokenizer: Tokenizer, *, held_out: bool) -> HostTask:
        """See `ServedTask.host_task`."""
        levels = self.levels
        validation = () if levels.undivided else levels.validation
        items = (*levels.held_out, *validation) if held_out else levels.training
        bounds = None if held_out else levels.bounds
        return prompted_task(
            alone(run.config, index),
            self.traits,
            tokenizer,
            lambda: _Played(self.workers.open(), items, bounds),
            levels=0 if isinstance(items, range) else len(items),
            validation=len(validation) if held_out else 0,
            baselines=functools.partial(run.baselines, index),
            undivided=levels.undivided,
        )


def python_task(run: "Services", index: int, folder: Callable[[], Path]) -> PythonTask:
    """Imports the class of a run's task, and plays a few episodes of it.

    Raises:
        UserError: there is no such class, or it cannot be used.
        ValueError: its episodes cannot be repeated, or the items cannot be used.
    """
    own = alone(run.config, index)
    (config,), prompt, limits = own.tasks, own.prompt, own.env
    workers = open_pool(config.env, config.options, processes=limits.processes, seconds=CALL_SHARE * limits.deadline)
    run.closers.append(workers.close)
    service = service_of(workers, config.env, Budget(prompt.max_actions_per_turn, prompt.max_actions))
    env, counts = workers.open(), (own.evaluation.episodes, own.train.validation_episodes)
    levels = _listed(config, workers.traits.items) or divide(workers.traits, env, *counts)
    env.close()
    check_start(workers, levels.held_out[:1], prompt.max_turns)
    pool = LocalPool(service)
    run.closers.append(pool.close)
    address = "in processes of this run" if limits.processes else "in this process"
    parts = levels.training, levels.held_out, levels.validation
    return PythonTask(config, service, *parts, pool, address, workers, levels)


def prompted_task(
    config: Config,
    traits: Traits,
    tokenizer: Tokenizer,
    make: Callable[[], HostEnvironment],
    **levels: Any,
) -> HostTask:
    """The task of a configuration of one; `levels` has fields of `HostTask`."""
    prompt = config.prompt
    return host_task(
        config.tasks[0].label,
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
