"""Services as tasks of API models: the instruction as the system message, then the texts of the service."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from agentrl_jax.errors import UserError, refusals
from agentrl_jax.evaluate.api_models.answers import without_thought
from agentrl_jax.evaluate.api_models.tasks import ApiTask, Outcome, TaskOptions
from agentrl_jax.evaluate.scripted import choose_items, evaluate_scripted
from agentrl_jax.evaluate.scripted_items import LINES, by_upstream_rules, connected
from agentrl_jax.evaluate.statistics import Clusters, success_interval
from agentrl_jax.rollout.envs.host_episodes import text_hash
from agentrl_jax.rollout.envs.host_retry import check_same_start, retry_observation
from agentrl_jax.rollout.trajectory import hexadecimal
from agentrl_jax.services.bridge import BridgeConfig, BridgedEnvironment
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.client import ServiceError
from agentrl_jax.services.environment import Service
from agentrl_jax.services.pools import InstancePool
from agentrl_jax.services.screenshots import refuse_without
from agentrl_jax.services.shadow_env import local_item
from agentrl_jax.setup.served_task import TURN_SHARE
from agentrl_jax.text.chat_template import Message


@contextlib.contextmanager
def service_task(options: TaskOptions) -> Iterator[ApiTask]:
    """The task of a service, with the items that scripted policies play, for the block.

    Raises:
        UserError: there is no such service or item, or an option has no effect.
    """
    if options.levels is not None or options.think:
        given = "--think" if options.levels is None else f"--levels {options.levels}"
        raise UserError(
            f"{given} has no effect on {options.env}, which is played as a service; leave it out",
            key=given.partition(" ")[0],
        )
    with refusals():
        service = get_service(options.env)
    if options.screenshots is not None:
        refuse_without(service.name)
    seed, turns = options.seed or 0, options.turns or service.turns
    items, panel_digest = choose_items(service, options.items, options.episodes, seed)
    category, numbers = service.category, dict[int, int]()

    def note(item: int, shown: str) -> None:
        if category is not None:
            numbers[item] = local_item(service, item, shown)

    with connected(service, items, turns, options.url, options.token_file, options.concurrency) as (task, config):
        if options.upstream and options.url == "local":
            task = by_upstream_rules(task)
        seconds, retries = TURN_SHARE * config.env.deadline, config.env.retries

        def start(item: int, sample: int) -> ServiceEpisode:
            kept = None if options.screenshots is None else options.screenshots.episode(item, play=sample + 1)
            bridge = BridgeConfig(
                items=(item,), seconds=seconds, retries=retries, on_start=note, screenshots=lambda item: kept
            )
            return ServiceEpisode(service, task.pool, bridge)

        played = functools.cache(lambda: _play_lines(service, items, turns, options))

        def lines(plays: int, clusters: Clusters = None) -> dict[str, Any]:
            if plays > 1:  # single plays of a scripted policy are no probabilities
                return {}
            found: dict[str, Any] = {name: success_interval(x, clusters=clusters) for name, x in item_lines().items()}
            kept = ("optimal_is", "baseline_turns")
            return found | {name: played()[name] for name in kept if name in played()}

        def item_lines() -> dict[str, list[float]]:
            return {name: played()["outcomes"][name] for name in LINES if name in played()["outcomes"]}

        yield ApiTask(
            env=service.name,
            style="chat",
            items=items,
            turns=turns,
            full_score=service.full_score,
            strict=service.strict is not None,
            open=start,
            lines=lines,
            item_lines=item_lines,
            level=None,
            category=None if category is None else lambda item: category(numbers.get(item, item)),
            answer=_answer_of(service),
            facts={"url": options.url}
            | ({"panel_digest": panel_digest} if panel_digest else {})
            | ({"compat": "upstream"} if options.upstream else {}),
        )


def _answer_of(service: Service) -> Callable[[str], str] | None:
    answer = service.answer
    return None if answer is None else lambda reply: answer(service.read(reply).action or "")


def _play_lines(service: Service, items: tuple[int, ...], turns: int, options: TaskOptions) -> dict[str, Any]:
    """The result of null play, which has random and optimal play beside it."""
    return evaluate_scripted(
        service.name,
        "null",
        items=",".join(map(str, items)),
        turns=turns,
        url=options.url,
        token_file=options.token_file,
        seed=options.seed or 0,
        workers=options.concurrency,
        on_instances=True,
        upstream=options.upstream,
    )


class ServiceEpisode:
    """An episode of a service: the task as the system message, then the service's texts."""

    def __init__(self, service: Service, pool: InstancePool, config: BridgeConfig):
        self._service = service
        self._make = functools.partial(BridgedEnvironment, service, pool, config)
        self._env = self._make()
        self._first = self._shown = ""

    def start(self) -> list[Message]:
        """See `TextEpisode`."""
        with refusals():  # there may be no such item
            self._first = self._env.reset(0)
        return [("system", self._service.instruction), ("user", self._first)]

    def level(self) -> str:
        """See `TextEpisode`."""
        (level,) = hexadecimal(text_hash(self._first)[None])
        return level

    def step(self, reply: str) -> list[Message]:
        """See `TextEpisode`."""
        self._shown = self._env.step(without_thought(reply), ()).observation
        return [("user", self._shown)]

    def again(self) -> list[Message]:
        """See `TextEpisode`; raises a `ServiceError` if the item begins with something else than before."""
        self._env.close()
        self._env = self._make()
        try:
            check_same_start(self._first, self._env.reset(0))
        except ValueError as error:
            raise ServiceError(str(error)) from error
        return [("user", retry_observation(self._shown, self._first))]

    def outcome(self) -> Outcome:
        """See `TextEpisode`."""
        last = self._env.last
        assert last is not None
        solved = self._service.solved(last)
        strict = solved if self._service.strict is None else self._service.strict(last)
        return Outcome(last.done, solved, last.score, strict)

    def close(self) -> None:
        """See `TextEpisode`."""
        self._env.close()
