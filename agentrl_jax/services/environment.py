"""What an environment behind a service is: one episode of text at a time, in Python, without a model or a tokenizer."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from agentrl_jax.services.action_parsing import Reader


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What an environment says after a reset or an action.

    Attributes:
        observation: text that the agent reads.
        reward: of this action alone.
        score: of the episode so far, where the environment keeps one; otherwise `reward`.
        done: the episode is over.
        info: further plain data that the environment's own answers hold, as JSON.
    """

    observation: str
    reward: float = 0.0
    score: float = 0.0
    done: bool = False
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class ItemError(ValueError):
    """There is no such item; the message is what a client is told."""


class ServiceEnvironment(Protocol):
    """One instance. Its methods are called by one thread at a time, not always the same.

    It holds no global state and draws nothing but from its item, so that instances do not disturb one another and equal
    actions on equal items give equal answers. Texts that an agent may send never raise.
    """

    def reset(self, item: int) -> StepResult:
        """Starts an episode on an item.

        Raises:
            ItemError: there is no such item.
        """
        ...

    def step(self, action: str) -> StepResult:
        """Carries out an action, as `Service.read` found it in the agent's response."""
        ...

    def close(self) -> None:
        """Gives back what the instance holds. It is not used again."""
        ...


class ScriptedPolicy(Protocol):
    """A scripted agent in one episode."""

    def act(self, observation: str) -> str:
        """The next action, from what the environment said last."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Service:
    """A kind of environment: how it is made, talked to and judged.

    Attributes:
        name: as AgentGym knows it, where it does.
        make: makes an instance. With True it repeats the slips of AgentGym's own server, see the environment's docs.
        items: number of items, 0 to `items` - 1.
        instruction: what the agent is told before the first observation.
        read: finds the action in an agent's response.
        write: writes a response that holds an action, as an agent would.
        turns: usual most turns of an episode.
        solved: whether an answer says that the task is solved.
        oracle: makes a player that solves an item; None where none is known.
        random: makes a player that draws its actions from a seed: (item, seed).
        views: further things that a client may read by name, and the methods of the environment, without arguments,
            that give them as JSON.
        marked: responses put their action behind `Action:`.
        distinct: items before they are others of the same kind over again; 0 where all differ.
        full_score: score of a solved item, which rewards are divided by.
        progress: how far an instance is with its item, 0 at the start and 1 when it is solved; None where nobody can
            tell. It is asked of an instance that plays along beside the server's, in this process.
        advise: the action that the oracle would go on with from where an instance stands, likewise; None where there is
            no oracle, or only one that has to play from the start.
        category: what kind of item a number is, for tables of results; None where all are alike.
        content: what an item is about, the same for items that are one task in other words. None where only its first
            text can tell.
        locate: the item that shows a first text, for servers that number their items otherwise; raises `ItemError`,
            with the reason, where none does. None where all servers number alike.
        facts: what a client may read by name without an instance, as JSON.
        table: what stands behind each item, as JSON; None where there is nothing to tell.
    """

    name: str
    make: Callable[[bool], ServiceEnvironment]
    items: int
    instruction: str
    read: Reader
    write: Callable[[str], str]
    turns: int
    solved: Callable[[StepResult], bool]
    oracle: Callable[[int], ScriptedPolicy] | None
    random: Callable[[int, int], ScriptedPolicy]
    views: Mapping[str, str] = dataclasses.field(default_factory=dict)
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
