"""The services and Python environments of a run: connections to them, and the batched environments of its episodes."""

import dataclasses
import functools
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from agentrl_jax.config import Config, TaskConfig, alone
from agentrl_jax.environments.protocol import Traits
from agentrl_jax.errors import BadValue, UserError, refusals
from agentrl_jax.parallel import hosts
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.envs.host_environment import HostTask, host_task
from agentrl_jax.rollout.envs.mixed_env import MixedEnv, Part, TaskEnv
from agentrl_jax.services.bridge import RETRIES, BridgeConfig, BridgedEnvironment, ScoreRule
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.client import ServiceClient, ServiceError
from agentrl_jax.services.environment import Service
from agentrl_jax.services.environments.common import PlannedPolicy
from agentrl_jax.services.items import load_items
from agentrl_jax.services.pools import InstancePool, LocalPool, RemotePool
from agentrl_jax.services.process import ServiceProcess
from agentrl_jax.services.protocol import routes_of
from agentrl_jax.services.screenshots import EpisodeScreenshots, Screenshots
from agentrl_jax.services.server.access import read_token
from agentrl_jax.services.shadow_env import local_item
from agentrl_jax.setup import build
from agentrl_jax.setup.python_task import PythonTask
from agentrl_jax.setup.scripted_play import play_all
from agentrl_jax.setup.served_task import ServedTask
from agentrl_jax.text.grammar import PlainResponse
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax.budget import Baselines

_log = logging.getLogger(__name__)

OPENINGS = {True: "Thought:", False: "Action:"}
"""Beginning of a response to a service, with or without a thought; inserted if `prompt.forced_tag` is set."""

TURN_SHARE = 0.8
"""Share of a turn's deadline for all attempts of an episode; the rest is for episodes that wait for a thread."""

REACH_SHARE = 0.5
"""Share of the first turn's deadline in which a service at an address has to answer at all."""


class Services:
    """All services of a run. Nothing is started or connected before the first episode."""

    def __init__(self, config: Config, folder: Callable[[], Path], *, upstream: bool = False):
        """Reads the lists of items; `folder` returns the folder for server logs, when a server is started.

        With `upstream`, services that have no address play by the rules of AgentGym's servers.

        Raises:
            UserError: a service is unknown or lacks something, or a list of items cannot be used.
        """
        self._config, self._upstream = config, upstream
        self._processes: list[ServiceProcess] = []
        self._restarts = 0
        self._closers: list[Callable[[], None]] = []
        self._host_envs: list[HostEnv] = []
        self._numbers: dict[tuple[str, int], int | None] = {}
        self._shown: dict[tuple[str, int], str] = {}
        self.screenshots: Screenshots | None = None
        """Keeps screenshots of held-out episodes."""
        with refusals():
            self.tasks = {
                index: self._task(index, folder) for index, kind in enumerate(config.kinds) if kind != "compiled"
            }
            """Those of the run's tasks that are played on the host, by their numbers."""

    def batched_env(self, tokenizer: Tokenizer, numbers: Sequence[int] | None = None, *, held_out: bool) -> HostEnv:
        """Returns the batched environment of training or of held-out episodes of some tasks, None for all."""
        chosen = self.tasks if numbers is None else numbers
        tasks = tuple(self._host_task(index, tokenizer, held_out=held_out) for index in chosen)
        env = self._config.env
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
        if task.python is not None and not task.python.listed:
            return []
        same = [each for each in self.tasks.values() if each.config.env == task.config.env]
        listed = {item for each in same for item in getattr(each, other)}
        content = task.service.content or str
        contents = set(map(content, listed))
        return [item for item in items if content(item) in contents]

    def _note_held_out(self, task: ServedTask, item: int, shown: str) -> None:
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
        """Those of a configuration; None if all of its tasks are compiled."""
        return cls(config, folder, upstream=upstream) if config.served else None

    def traits(self) -> dict[str, Traits]:
        """What its Python environments say of themselves, by the labels of their tasks."""
        python = (task.python for task in self.tasks.values() if task.python is not None)
        return {task.label: task.pool.traits for task in python}

    def log_to(self, folder: Path) -> None:
        """Keeps what Python environments print in files of the folder."""
        for task in self.tasks.values():
            if task.python is not None:
                task.python.pool.log_to(folder / log_name("environment", task.config.label))

    def take_restarts(self) -> int:
        """How often servers started by the run were restarted since the last call, because they had ended or hung."""
        total = sum(process.restarts for process in self._processes)
        new, self._restarts = total - self._restarts, total
        return new

    def close(self) -> None:
        """Closes instances and connections, and ends the servers that the run started."""
        for batched_env in self._host_envs:
            batched_env.clear()
        for process in self._processes:  # a server's instances end with it
            process.close()
        for close in self._closers:
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
        seed = self._config.evaluation.seed
        policies = (
            lambda item: served.service.random(item, seed + item),
            oracle,
            lambda item: PlannedPolicy(()),
        )
        with refusals():
            episodes_of = [play_all(served, policy, items, self._config) for policy in policies]
        return [
            [[float(episode.solved) for episode in played] for played in episodes_of],
            [[float(len(episode.actions)) for episode in played] for played in episodes_of],
        ]

    def _task(self, index: int, folder: Callable[[], Path]) -> ServedTask:
        config, own = self._config.tasks[index], alone(self._config, index)
        if own.python:
            return self._python_task(own)
        service = get_service(config.env)
        if self._upstream and not self._config.env.url:
            service = dataclasses.replace(service, oracle=service.upstream_oracle or service.oracle)
        names = ("items", "held_out", "validation") if config.validation else ("items", "held_out")
        items = [load_items(getattr(config, name), config.env) for name in names]
        for name, numbers in zip(names, items):
            if not numbers or max(numbers) >= service.items:
                why = f"expected numbers below {service.items}, at least one"
                raise BadValue.of(f"tasks.{index}.{name}", getattr(config, name), why)
        training, held_out, validation = (tuple(numbers) for numbers in (*items, ())[:3])
        progress, noise = self._config.env.progress, self._config.imitation.noise
        if progress and service.progress is None:
            raise BadValue.of("env.progress", progress, f"but {config.env} does not report progress; set it to 0")
        if noise and service.advise is None:
            raise BadValue.of("imitation.noise", noise, f"but {config.env} has no oracle for every state; set it to 0")
        pool, address = self._pool(service, config, folder)
        return ServedTask(config, service, training, held_out, validation, pool, address)

    def _python_task(self, own: Config) -> ServedTask:
        (config,) = own.tasks
        python = PythonTask(own, config)
        self._closers.append(python.pool.close)
        levels, pool = python.levels, LocalPool(python.service)
        self._closers.append(pool.close)
        parts = levels.training, levels.held_out, levels.validation
        return ServedTask(config, python.service, *parts, pool, python.address, python)

    def _pool(self, service: Service, config: TaskConfig, folder: Callable[[], Path]) -> tuple[InstancePool, str]:
        env = self._config.env
        if env.url == "local":
            local = LocalPool(service, upstream=self._upstream)
            self._closers.append(local.close)
            return local, "in this process"

        def connected(url: str, token: str) -> RemotePool:
            client = ServiceClient(
                url, routes_of(service.name), seconds=env.deadline, connections=env.workers, token=token
            )
            pool = RemotePool(client)
            self._closers.append(pool.close)
            return pool

        if env.url:
            pool = connected(env.url, read_token(env.token_file))

            def reached() -> RemotePool:
                pool.client.wait(REACH_SHARE * env.deadline)
                return pool

            return _LazyPool(reached), f"at {env.url}"
        episodes = self._config.groups * self._config.rollout.group_size
        # Twice, because an instance that one episode has given up may still be open while the next one starts.
        most = 2 * max(episodes, self._config.train.validation_episodes, env.workers)

        def start() -> RemotePool:
            log = folder() / log_name("service", config.label)
            process = ServiceProcess(service.name, log, max_instances=most, upstream=self._upstream)
            self._processes.append(process)
            return connected(process.url(), process.token)

        return _LazyPool(start), "at a server of this run"

    def _screenshots_of(self, item: int) -> EpisodeScreenshots | None:
        return None if self.screenshots is None else self.screenshots.episode(item)

    def _host_task(self, index: int, tokenizer: Tokenizer, *, held_out: bool) -> HostTask:
        own, task = alone(self._config, index), self.tasks[index]
        env, prompt = own.env, own.prompt
        if task.python is not None:
            return task.python.host_task(tokenizer, functools.partial(self.baselines, index), held_out=held_out)
        service, items = task.service, (*task.held_out, *task.validation) if held_out else task.training
        bridge = BridgeConfig(
            items=items,
            score=score_rule(service.name) if env.score == "auto" else env.score,
            scale=1.0 / service.full_score,
            progress=0.0 if held_out else env.progress,
            seconds=TURN_SHARE * env.deadline,
            retries=env.retries,
            # The first observations of training items are in levels.jsonl already.
            on_start=functools.partial(self._note_held_out, task) if held_out else lambda item, shown: None,
            screenshots=self._screenshots_of if held_out else lambda item: None,
        )
        return host_task(
            task.config.label,
            lambda: BridgedEnvironment(service, task.pool, bridge),
            instruction=service.instruction,
            response_format=PlainResponse(
                opening=OPENINGS[prompt.think] if prompt.forced_tag and service.marked else "",
                # One is found; in a batch with other tasks there is room for theirs.
                max_actions=prompt.max_actions_per_turn if self._config.prompt.has_answer_block else 1,
            ),
            tokenizer=tokenizer,
            style=prompt.style,
            observation_tokens=env.observation_tokens,
            max_turns=prompt.max_turns,
            max_actions=prompt.max_turns,
            response_words=prompt.max_response_tokens,
            info_keys=(RETRIES,),
            levels=len(items),
            validation=len(task.validation) if held_out else 0,
            baselines=functools.partial(self.baselines, index),
        )


def log_name(kind: str, label: str) -> str:
    """The name of a file for what a server, or environments, of this host print."""
    of_host = f"-{jax.process_index()}" if jax.process_index() else ""
    return f"{kind}-{label}{of_host}.log"


def score_rule(service: str) -> ScoreRule:
    """The rule of `env.score: auto`. Where rewards are the best so far, the last one is AgentGym's score."""
    routes = routes_of(service)
    return "max" if routes.cumulative_score else "last" if routes.best_reward else "sum"


def batched_envs(config: Config, tokenizer: Tokenizer, services: Services | None) -> tuple[TaskEnv, TaskEnv]:
    """Returns the batched environments of training and of held-out episodes; the same one for compiled tasks."""
    kinds = dict.fromkeys(config.kinds)
    numbers = {kind: tuple(np.flatnonzero(np.array(config.kinds) == kind).tolist()) for kind in kinds}
    compiled: CompiledEnv | None = None
    if of_device := numbers.get("compiled"):
        own = config.replace(tasks=tuple(config.tasks[number] for number in of_device))
        compiled = build.build_compiled_env(own, tokenizer)

    def part(kind: str, chosen: tuple[int, ...], held_out: bool) -> Part:
        if compiled is not None and kind == "compiled":
            return Part(compiled, chosen)
        assert services is not None
        env = services.batched_env(tokenizer, chosen, held_out=held_out)
        # A response to a service is one action.
        return Part(env, chosen, config.prompt.max_turns if kind == "service" else None)

    def joined(held_out: bool) -> TaskEnv:
        parts = [part(kind, chosen, held_out) for kind, chosen in numbers.items()]
        return parts[0].env if len(parts) == 1 else MixedEnv(parts)

    train = joined(held_out=False)
    return train, train if services is None else joined(held_out=True)


class _LazyPool:
    """An instance pool that is made when the first instance is opened, with its server or once there is an answer.

    A failure is remembered.
    """

    def __init__(self, start: Callable[[], RemotePool]):
        self._start = start
        self._pool: RemotePool | None = None
        self._failure: ServiceError | None = None
        self._lock = threading.Lock()

    def open(self, item: int, deadline: float) -> Any:
        """See `InstancePool`."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._pool is None:
                try:
                    self._pool = self._start()
                except ServiceError as failure:
                    self._failure = failure
                    raise
        return self._pool.open(item, deadline)
