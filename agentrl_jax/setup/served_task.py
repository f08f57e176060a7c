"""A task of a run that is played on the host: its environments as a service, and its items."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from agentrl_jax.config import TaskConfig, alone
from agentrl_jax.environments.protocol import Traits
from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.envs.host_environment import HostTask, host_task
from agentrl_jax.services.bridge import PROGRESS, RETRIES, BridgeConfig, BridgedEnvironment, ScoreRule
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.client import ServiceClient, ServiceError
from agentrl_jax.services.environment import Service
from agentrl_jax.services.items import load_items
from agentrl_jax.services.pools import InstancePool, LocalPool, RemotePool
from agentrl_jax.services.process import ServiceProcess
from agentrl_jax.services.protocol import routes_of
from agentrl_jax.services.server.access import read_token
from agentrl_jax.text.grammar import PlainResponse
from agentrl_jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from agentrl_jax.setup.service_tasks import Services

OPENINGS = {True: "Thought:", False: "Action:"}
"""Beginning of a response in plain text, with or without a thought; inserted if `prompt.forced_tag` is set."""

TURN_SHARE = 0.8
"""Share of a turn's deadline for all attempts of an episode; the rest is for episodes that wait for a thread."""

REACH_SHARE = 0.5
"""Share of the first turn's deadline in which a service at an address has to answer at all."""


@dataclasses.dataclass(frozen=True, eq=False)
class ServedTask:
    """A task with its items of training, evaluation and validation."""

    config: TaskConfig
    service: Service
    training: Sequence[int]
    held_out: tuple[int, ...]
    validation: tuple[int, ...]
    pool: InstancePool
    address: str
    """Where the service runs, in words, for messages."""

    @property
    def listed(self) -> bool:
        """Whether somebody has named the items of each split; otherwise no held-out level can be one of training."""
        return True

    @property
    def traits(self) -> Traits | None:
        """What the run stores of the environment's class, see `stored_traits`; None where it stores nothing."""
        return None

    def training_item(self, row: int) -> int:
        """The item that episodes with this number of a training level play."""
        return self.training[row]

    def log_to(self, folder: Path) -> None:
        """Keeps what environments print in a file of the folder, if they have processes of their own."""

    def host_task(self, run: "Services", index: int, tokenizer: Tokenizer, *, held_out: bool) -> HostTask:
        """The task of training or of held-out episodes; `index` is its number in the run."""
        own, service = alone(run.config, index), self.service
        env, prompt, items = own.env, own.prompt, (*self.held_out, *self.validation) if held_out else self.training
        bridge = BridgeConfig(
            items=items,
            score=score_rule(service.name) if env.score == "auto" else env.score,
            scale=1.0 / service.full_score,
            progress=0.0 if held_out else env.progress,
            tells_progress=env.progress > 0,
            seconds=TURN_SHARE * env.deadline,
            retries=env.retries,
            # The first observations of training items are in levels.jsonl already.
            on_start=functools.partial(run.note_held_out, self) if held_out else lambda item, shown: None,
            screenshots=run.screenshots_of if held_out else lambda item: None,
        )
        return host_task(
            self.config.label,
            lambda: BridgedEnvironment(service, self.pool, bridge),
            instruction=service.instruction,
            response_format=PlainResponse(
                opening=OPENINGS[prompt.think] if prompt.forced_tag and service.marked else "",
                # One is found; in a batch with other tasks there is room for theirs.
                max_actions=prompt.max_actions_per_turn if run.config.prompt.has_answer_block else 1,
            ),
            tokenizer=tokenizer,
            style=prompt.style,
            observation_tokens=env.observation_tokens,
            max_turns=prompt.max_turns,
            max_actions=prompt.max_turns,
            response_words=prompt.max_response_tokens,
            info_keys=(RETRIES, PROGRESS) if env.progress else (RETRIES,),
            levels=len(items),
            validation=len(self.validation) if held_out else 0,
            baselines=functools.partial(run.baselines, index),
        )


def local_task(run: "Services", index: int, folder: Callable[[], Path]) -> ServedTask:
    """A task whose environments run in this process; raises as `service_task`."""
    return _listed_task(run, index, lambda service: _in_process(run, service))


def service_task(run: "Services", index: int, folder: Callable[[], Path]) -> ServedTask:
    """A task on a service: in this process, at an address, or at a server that is started for the first episode.

    Raises:
        ValueError: the service is unknown or lacks something, or a list of items cannot be used.
    """
    env, config = run.config.env, run.config.tasks[index]

    def connected(url: str, token: str) -> RemotePool:
        client = ServiceClient(url, routes_of(config.env), seconds=env.deadline, connections=env.workers, token=token)
        pool = RemotePool(client)
        run.closers.append(pool.close)
        return pool

    def start() -> RemotePool:
        episodes = run.config.groups * run.config.rollout.group_size
        # Twice, because an instance that one episode has given up may still be open while the next one starts.
        most = 2 * max(episodes, run.config.train.validation_episodes, env.workers)
        log = folder() / log_name("service", config.label)
        process = ServiceProcess(config.env, log, max_instances=most, upstream=run.upstream)
        run.processes.append(process)
        return connected(process.url(), process.token)

    def pool(service: Service) -> tuple[InstancePool, str]:
        if env.url == "local":
            return _in_process(run, service)
        if not env.url:
            return _LazyPool(start), "at a server of this run"
        remote = connected(env.url, read_token(env.token_file))

        def reached() -> RemotePool:
            remote.client.wait(REACH_SHARE * env.deadline)
            return remote

        return _LazyPool(reached), f"at {env.url}"

    return _listed_task(run, index, pool)


def _in_process(run: "Services", service: Service) -> tuple[InstancePool, str]:
    pool = LocalPool(service, upstream=run.upstream)
    run.closers.append(pool.close)
    return pool, "in this process"


def _listed_task(run: "Services", index: int, make_pool: Callable[[Service], tuple[InstancePool, str]]) -> ServedTask:
    """A task with the items that the configuration names."""
    config, env = run.config.tasks[index], run.config.env
    service = get_service(config.env)
    if service.remote and env.url in ("", "local"):
        raise BadValue.of("env.url", env.url, f"but {config.env} is played at the address of its server only; give it")
    if run.upstream and not env.url:
        service = dataclasses.replace(service, oracle=service.upstream_oracle or service.oracle)
    names = ("items", "held_out", "validation") if config.validation else ("items", "held_out")
    items = [load_items(getattr(config, name), config.env) for name in names]
    for name, numbers in zip(names, items):
        if not numbers or max(numbers) >= service.items:
            why = f"expected numbers below {service.items}, at least one"
            raise BadValue.of(f"tasks.{index}.{name}", getattr(config, name), why)
    training, held_out, validation = (tuple(numbers) for numbers in (*items, ())[:3])
    progress, noise = env.progress, run.config.imitation.noise
    if progress and service.progress is None:
        raise BadValue.of("env.progress", progress, f"but {config.env} does not report progress; set it to 0")
    if noise and service.advise is None:
        raise BadValue.of("imitation.noise", noise, f"but {config.env} has no oracle for every state; set it to 0")
    return ServedTask(config, service, training, held_out, validation, *make_pool(service))


def log_name(what: str, label: str) -> str:
    """The name of a file for what a server, or environments, of this host print."""
    of_host = f"-{jax.process_index()}" if jax.process_index() else ""
    return f"{what}-{label}{of_host}.log"


def score_rule(service: str) -> ScoreRule:
    """The rule of `env.score: auto`. Where rewards are the best so far, the last one is AgentGym's score."""
    routes = routes_of(service)
    return "max" if routes.cumulative_score else "last" if routes.best_reward else "sum"


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
