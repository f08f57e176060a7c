"""The tasks of a run on the host: connections to them, and the batched environments of its episodes."""

import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.config import Config
from agentrl_jax.config.one_task import alone
from agentrl_jax.environments.protocol import Traits
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.parallel import hosts
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.envs.mixed_env import MixedEnv, Part, TaskEnv
from agentrl_jax.services.client import ServiceError
from agentrl_jax.services.environments.common import PlannedPolicy
from agentrl_jax.services.process import ServiceProcess
from agentrl_jax.services.screenshots import EpisodeScreenshots, Screenshots
from agentrl_jax.services.shadow_env import local_item
from agentrl_jax.setup import build
from agentrl_jax.setup.scripted_play import play_all
from agentrl_jax.setup.served_task import ServedTask
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax.budget import Baselines

_log = logging.getLogger(__name__)


class Services:
    """All services of a run. Nothing is started or connected before the first episode."""

    def __init__(self, config: Config, folder: Callable[[], Path], *, upstream: bool = False):
        """Reads the lists of items; `folder` returns the folder for server logs, when a server is started.

        With `upstream`, services that have no address play by the rules of AgentGym's servers.

        Raises:
            UserError: a service is unknown or lacks something, or a list of items cannot be used.
        """
        self.config, self.upstream = config, upstream
        self.processes: list[ServiceProcess] = []
        """Servers that the run has started."""
        self.closers: list[Callable[[], None]] = []
        """Close what its tasks have opened."""
        self._restarts = 0
        self._host_envs: list[HostEnv] = []
        self._numbers: dict[tuple[str, int], int | None] = {}
        self._shown: dict[tuple[str, int], str] = {}
        self.screenshots: Screenshots | None = None
        """Keeps screenshots of held-out episodes."""
        with refusals():
            self.tasks: dict[int, ServedTask] = {
                index: kind.run_task(self, index, folder) for index, kind in enumerate(config.kinds) if kind.on_host
            }
            """Those of the run's tasks that are played on the host, by their numbers."""

    def batched_env(self, tokenizer: Tokenizer, numbers: Sequence[int] | None = None, *, held_out: bool) -> HostEnv:
        """Returns the batched environment of training or of held-out episodes of some tasks, None for all."""
        chosen = self.tasks if numbers is None else numbers
        tasks = tuple(self.tasks[index].host_task(self, index, tokenizer, held_out=held_out) for index in chosen)
        env = self.config.env
        self._host_envs.append(HostEnv(tasks, tokenizer, deadline=env.deadline, workers=env.workers))
        return self._host_envs[-1]

    def refuse_seen(self) -> None:
        """Refuses a run that trains or validates on held-out items, judged by their numbers and contents.

        Raises:
            UserError: there is such an item; the message names the first.
        """
        for index, task in self.tasks.items():
            for name, other in (("held_out", "training"), ("validation", "training"), ("validation", "held_out")):
                if seen := self._overlap(task, getattr(task, name), other):
                    words = "that are trained on" if other == "training" else "of held_out"
                    raise UserError(
                        f"tasks.{index}.{name} names {len(seen)} items {words}, by number or content, "
                        f"{seen[0]} first; take other items for {task.config.label}",
                        key=f"tasks.{index}.{name}",
                        value=seen,
                    )

    def seen_items(self, levels: Sequence[int]) -> dict[int, int]:
        """How many of the first `levels` held-out items of each task here are trained on, by number or content."""
        return {
            index: len(self._overlap(task, task.held_out[: levels[index]], "training"))
            for index, task in self.tasks.items()
        }

    def _overlap(self, task: ServedTask, items: Sequence[int], other: str) -> list[int]:
        """The items that some task of the same environment has in its list `other`, by number or content."""
        if not task.listed:
            return []
        same = [each for each in self.tasks.values() if each.config.env == task.config.env]
        listed = {item for each in same for item in getattr(each, other)}
        content = task.service.content or str
        contents = set(map(content, listed))
        return [item for item in items if content(item) in contents]

    def note_held_out(self, task: ServedTask, item: int, shown: str) -> None:
        """Remembers what was shown first for a held-out item."""
        env = task.config.env
        self._shown[env, item] = shown
        if task.service.locate is not None and (env, item) not in self._numbers:
            try:
                self._numbers[env, item] = local_item(task.service, item, shown)
            except ServiceError as error:
                self._numbers[env, item] = None
                _log.warning("%s; results have no categories and no random, null and scripted play", error)

    def first_observations(self, task: int) -> list[str]:
        """What this process was shown first for each held-out item of a task; empty for items not played yet."""
        served = self.tasks[task]
        return [self._shown.get((served.config.env, item), "") for item in served.held_out]

    def categories(self, levels: Sequence[int]) -> list[str] | None:
        """The categories of the first `levels` held-out items of each task; None if a task's items have none."""
        self._share_numbers()
        found: list[str] = []
        for index, count in enumerate(levels):
            if (task := self.tasks.get(index)) is None:
                return None
            numbers = self._numbers_of(task, task.held_out[:count])
            if task.service.category is None or None in numbers:
                return None
            found += map(task.service.category, numbers)
        return found

    def _numbers_of(self, task: ServedTask, items: Sequence[int]) -> list[Any]:
        """The local numbers of held-out items; None for an item that the server has shown and that is unknown here."""
        return [self._numbers.get((task.config.env, item), item) for item in items]

    def _share_numbers(self) -> None:
        """Adds the numbers of the items that other hosts have played."""
        own = [(*key, number) for key, number in self._numbers.items()]
        for env, item, number in itertools.chain(*hosts.gather(own)):
            self._numbers[env, item] = number

    @classmethod
    def of(cls, config: Config, folder: Callable[[], Path], *, upstream: bool = False) -> "Services | None":
        """Those of a configuration; None if none of its tasks run on the host."""
        return cls(config, folder, upstream=upstream) if config.on_host else None

    def traits(self) -> dict[str, Traits]:
        """What is stored of the environments, by the labels of their tasks, see `stored_traits`."""
        return {task.config.label: task.traits for task in self.tasks.values() if task.traits is not None}

    def log_to(self, folder: Path) -> None:
        """Keeps what environments print in files of the folder."""
        for task in self.tasks.values():
            task.log_to(folder)

    def take_restarts(self) -> int:
        """How often servers started by the run were restarted since the last call, because they had ended or hung."""
        total = sum(process.restarts for process in self.processes)
        new, self._restarts = total - self._restarts, total
        return new

    def close(self) -> None:
        """Closes instances and connections, and ends the servers that the run started."""
        for batched_env in self._host_envs:
            batched_env.clear()
        for process in self.processes:  # a server's instances end with it
            process.close()
        for close in self.closers:
            close()

    def baselines(self, task: int, episodes: int) -> Baselines | None:
        """Success of random, scripted and null play on the first held-out items; None if the service has no oracle.

        All are played with the agent's number of turns, one action per turn. An action of null play is the empty text.
        Raises UserError if the service fails.
        """
        self._share_numbers()
        played = hosts.from_writer(lambda: self._play_baselines(task, episodes))
        if played is None:
            return None
        names = ("random", "optimal", "null")
        success, turns = (dict(zip(names, map(np.array, of_names))) for of_names in played)
        return Baselines(optimal_is="scripted", turns=turns, **success)

    def _play_baselines(self, task: int, episodes: int) -> list[list[list[float]]] | None:
        """Success of random, scripted and null play, by item, and their numbers of turns."""
        served, oracle = self.tasks[task], self.tasks[task].service.oracle
        items = served.held_out[:episodes]
        if oracle is None or None in self._numbers_of(served, items):
            return None
        seed = self.config.evaluation.seed
        policies = (
            lambda item: served.service.random(item, seed + item),
            oracle,
            lambda item: PlannedPolicy(()),
        )
        with refusals():
            episodes_of = [play_all(served, policy, items, alone(self.config, task)) for policy in policies]
        return [
            [[float(episode.solved) for episode in played] for played in episodes_of],
            [[float(len(episode.actions)) for episode in played] for played in episodes_of],
        ]

    def screenshots_of(self, item: int) -> EpisodeScreenshots | None:
        """Keeps those of an episode that begins; None for none."""
        return None if self.screenshots is None else self.screenshots.episode(item)


def batched_envs(config: Config, tokenizer: Tokenizer, services: Services | None) -> tuple[TaskEnv, TaskEnv]:
    """Returns the batched environments of training and of held-out episodes; the same one for compiled tasks."""
    together: dict[tuple[bool, bool], list[int]] = {}
    for number, kind in enumerate(config.kinds):
        together.setdefault(kind.batch, []).append(number)

    @functools.cache
    def compiled(*chosen: int) -> CompiledEnv:
        own = config.replace(tasks=tuple(config.tasks[number] for number in chosen))
        return build.build_compiled_env(own, tokenizer)

    def part(chosen: Sequence[int], held_out: bool) -> Part:
        kind = config.kinds[chosen[0]]
        if not kind.on_host:
            return Part(compiled(*chosen), tuple(chosen))
        assert services is not None
        env = services.batched_env(tokenizer, chosen, held_out=held_out)
        # A response in plain text is one action.
        return Part(env, tuple(chosen), None if kind.has_answer_block else config.prompt.max_turns)

    def joined(held_out: bool) -> TaskEnv:
        parts = [part(chosen, held_out) for chosen in together.values()]
        return parts[0].env if len(parts) == 1 else MixedEnv(parts)

    train = joined(held_out=False)
    return train, train if services is None else joined(held_out=True)
