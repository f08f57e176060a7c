"""What an API model plays: the items of an environment, as episodes that show text and read text."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

from agentrl_jax.evaluate.statistics import Clusters
from agentrl_jax.services.screenshots import Screenshots
from agentrl_jax.text.chat_template import Message

Style = Literal["auto", "ragen", "compact", "chat"]


class Outcome(NamedTuple):
    """How an attempt at an item stands."""

    done: bool
    solved: bool
    score: float
    """The last score of a service, or the sum of the rewards of a compiled environment."""
    strict: bool
    """Solved by a stricter rule, if there is one."""


class Lines(Protocol):
    """Random, null and optimal play on the items of a task."""

    def __call__(self, plays: int, clusters: Clusters = None) -> dict[str, Any]:
        """Success in at least one of so many plays as {mean, low, high, n} by name, as far as known, `optimal_is`
        (`Baselines.optimal_is`), and as `baseline_turns` the mean turns of single plays by name; `clusters` names the
        cluster of each item."""


class TextEpisode(Protocol):
    """One episode, in which the same item can be attempted several times."""

    def start(self) -> list[Message]:
        """The messages before the first reply; the last one is the user's."""

    def level(self) -> str:
        """The hash of the first state as 16 hexadecimal digits, by which records of runs name a level too."""

    def step(self, reply: str) -> list[Message]:
        """Carries out a reply; returns the messages before the next one, which count only if the attempt goes on."""

    def again(self) -> list[Message]:
        """Begins another attempt after one that is over; returns the messages before its first reply.

        They have the feedback and the first observation, but not what stands once in a conversation.
        """

    def outcome(self) -> Outcome:
        """How the attempt stands."""

    def close(self) -> None:
        """Ends the episode."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Which environment is played, and how.

    Attributes:
        env: name of the environment; empty where a panel names it, see `on_panel`.
        style: ragen or compact, for the prompts of compiled environments; chat, for services, which compiled
            environments can be too; auto for ragen where it is possible, else chat.
        think: prompts ask for a think block.
        items: numbers such as 0-99, or an item file; None for `episodes` items, or for the usual ones.
        levels: level file of a compiled environment, or one of `NAMED_LEVELS`.
        turns: maximum number of turns; None for the usual limit.
        actions_per_turn: maximum number of actions that a turn carries out, of a compiled environment.
        max_tokens: maximum number of tokens of a reply, which the style ragen names.
        seed: of requests, which have none without it, and of items and levels; None for 0, or of levels for the
            default of `agentrl eval RUN`.
        level_seed: of levels of a compiled environment; None for `seed`.
        url: address of the server of a service; local for this process.
        token_file: file with the token of this server.
        env_options: options of a compiled environment, by name.
        max_actions: maximum number of actions of an episode of a compiled environment; None for the usual one.
        concurrency: number of episodes that are played at once.
        attempts: maximum number of attempts at an item in one conversation, see `retries`.
        screenshots: keeps those that a service gives; None for none.
        upstream: a service in this process has the rules of AgentGym's server, as scripted policies have them there.
    """

    env: str
    style: Style = "auto"
    think: bool = False
    items: str | None = None
    episodes: int | None = None
    levels: str | None = None
    turns: int | None = None
    actions_per_turn: int = 5
    max_tokens: int = 512
    seed: int | None = None
    level_seed: int | None = None
    url: str = "local"
    token_file: str = ""
    env_options: tuple[tuple[str, Any], ...] = ()
    max_actions: int | None = None
    concurrency: int = 16
    attempts: int = 1
    screenshots: Screenshots | None = None
    upstream: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApiTask:
    """Items of one environment.

    Attributes:
        turns: maximum number of turns of an attempt.
        strict: whether there is a stricter rule of success.
        open: the episode of an item and a sample.
        lines: random, null and optimal play on the same items within the same budget.
        item_lines: success of a single play of the same lines on each item, in their order, by name, as far as known:
            a probability, or in a service an outcome.
        level: `TextEpisode.level` of an item without playing it; None where that takes a service.
        category: category of an item that was started; None if items have none.
        answer: the answer in an episode's last reply, in a form that equal answers share, empty for none; None if
            episodes do not end with an answer in words.
        facts: what the episodes depend on besides items, style and turns, by name.
    """

    env: str
    style: str
    items: tuple[int, ...]
    turns: int
    full_score: float
    strict: bool
    open: Callable[[int, int], TextEpisode]
    lines: Lines
    item_lines: Callable[[], dict[str, list[float]]]
    level: Callable[[int], str] | None
    category: Callable[[int], str] | None
    answer: Callable[[str], str] | None
    facts: dict[str, Any]
