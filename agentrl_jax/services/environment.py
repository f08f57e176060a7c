"""Interface of an environment behind a service: one text episode at a time, in Python, without model or tokenizer."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float, Int

from agentrl_jax.errors import BadValue
from agentrl_jax.services.action_parsing import Reader


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The answer to a reset or an action: `info` is further JSON data.

    `score` is that of the episode so far, if the environment keeps one, and otherwise `reward`, that of this action.
    """

    observation: str
    reward: float = 0.0
    score: float = 0.0
    done: bool = False
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class MissingPackageError(BadValue):
    """A package or a program that a service needs, the key, is not installed; the message says how to install it."""


class ItemError(BadValue):
    """There is no such item; the message is sent to the client."""

    def __init__(self, message: str, item: object = None):
        super().__init__(message, key="item", value=item)


class ServiceEnvironment(Protocol):
    """One instance. Its methods are called by one thread at a time, not always the same one.

    It has no global state, and its randomness depends on its item alone, so instances do not affect each other and
    equal actions on equal items give equal answers. No text that an agent may send raises an exception.
    """

    def reset(self, item: int) -> StepResult:
        """Starts an episode on an item; raises `ItemError` if there is no such item."""

    def step(self, action: str) -> StepResult:
        """Carries out an action that `Service.read` found in the agent's response."""

    def close(self) -> None:
        """Releases the instance's resources, if it has any. It is not used again."""
        return


class ScriptedPolicy(Protocol):
    """A scripted policy that plays one episode."""

    def act(self, observation: str) -> str:
        """The next action, given the last observation."""


class Outcomes(NamedTuple):
    """How N items went in P plays of each: whether they were solved, the last score, `Service.strict`, and turns."""

    solved: Bool[np.ndarray, "N P"]
    score: Float[np.ndarray, "N P"]
    strict: Bool[np.ndarray, "N P"]
    turns: Int[np.ndarray, "N P"]


class Panel(NamedTuple):
    """Published test items, and a digest of what they are."""

    items: tuple[int, ...]
    digest: str


class ChosenItems(NamedTuple):
    """Items of a panel of our own, see `evaluate.panels`."""

    numbers: Callable[[], Sequence[int]]
    rule: str
    """Which items they are, in words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Service:
    """A kind of environment: how to create it, talk to it and judge it; named as in AgentGym, if it is there.

    Attributes:
        make: creates an instance; with True, one that reproduces the bugs of AgentGym's server.
        items: number of items, which are 0 to `items` - 1.
        instruction: text that the agent reads before the first observation.
        turns: usual limit of turns per episode.
        oracle: creates a scripted policy that solves an item; None if none is known.
        upstream_oracle: the same for an environment by the rules of AgentGym's server, if its levels are others there.
        random: creates a scripted policy that acts at random, from (item, seed).
        policies: creates further scripted policies, by name, from (item, seed).
        remote: whether it is played on a server only: `make` and `random` raise `ValueError`.
        views: methods of the environment, without arguments, whose JSON results a client may read.
        marked: responses put their action after `Action:`.
        distinct: number of items of which all later ones are variants; 0 if there are no variants. For TextCraft, item
            544k + g is goal g with all words of the item names permuted and with other distractors.
        solved: whether the last answer says that the item is solved.
        success_rule: the same in words.
        full_score: score of a solved item, by which rewards are divided.
        progress: progress of a local instance on its item, from 0 to 1 when solved; None if unknown.
        advise: the oracle's next action in a local instance's current state; None if there is no oracle, or only one
            that has to play from the start.
        category: category of an item, for result tables; None if items are not divided.
        content: what an item is about, equal for all variants of an item, see `distinct`; None if unknown.
        locate: finds the item with a given first observation, for servers that number their items differently; raises
            `ItemError` with the reason if there is none. None if all servers number items alike.
        facts: JSON data that a client may read by name without an instance.
        table: what each item is, as JSON; None if there is nothing to list.
        strict: a stricter rule of success than `solved`, of the last answer; None if there is none.
        strict_rule: the same in words; empty if there is none.
        answer: the answer in an action, in a form that equal answers share, empty for none; None if episodes do not end
            with an answer in words.
        panel: the published test items, which scripted policies play by default; `ValueError` if they are not what they
            were. None if none were published.
        chosen: items of the panel NAME-v1; None if there is none.
        play_many: plays episodes of a scripted policy (oracle, random, null or constant) without instances, from
            (policy, the action of constant, items, turns, plays of each, seed), by the rules of AgentGym's server; None
            if it takes instances.
        executed: the ids of the primitive actions that each action of an episode carries out, from (item, actions);
            None if actions have no ids.
        random_plays: episodes on each item that give the success of random play on the panel with a small error.
        score_range: lowest and highest score of an answer.
        floor: highest success, for self-checks, of empty actions, of one random action repeated, and of random actions.
        oracle_success: lowest success of the oracle.
        checked_items: items of a self-check, unless the user gives another number.
    """

    name: str
    make: Callable[[bool], ServiceEnvironment]
    items: int
    instruction: str
    read: Reader
    turns: int
    solved: Callable[[StepResult], bool]
    success_rule: str
    oracle: Callable[[int], ScriptedPolicy] | None
    random: Callable[[int, int], ScriptedPolicy]
    remote: bool = False
    views: tuple[str, ...] = ()
    marked: bool = True
    distinct: int = 0
    full_score: float = 1.0
    progress: Callable[[Any], float] | None = None
    advise: Callable[[Any], str] | None = None
    category: Callable[[int], str] | None = None
    content: Callable[[int], str] | None = None
    locate: Callable[[str], int] | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    table: Callable[[], Any] | None = None
    strict: Callable[[StepResult], bool] | None = None
    strict_rule: str = ""
    answer: Callable[[str], str] | None = None
    panel: Callable[[], Panel] | None = None
    chosen: ChosenItems | None = None
    play_many: Callable[[str, str, Sequence[int], int, int, int], Outcomes] | None = None
    executed: Callable[[int, Sequence[str]], list[list[int]]] | None = None
    policies: Mapping[str, Callable[[int, int], ScriptedPolicy]] = dataclasses.field(default_factory=dict)
    random_plays: int = 1
    upstream_oracle: Callable[[int], ScriptedPolicy] | None = None
    score_range: tuple[float, float] = (0.0, 1.0)
    floor: float = 0.1
    oracle_success: float = 1.0
    checked_items: int = 100
