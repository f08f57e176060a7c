"""Contexts: what a policy reads before each response.

A context is a sequence of tokens that begins with the task's prefix. With every message the environments' side says how
it joins what the policy has read: it goes on, or it begins a new context, in which earlier parts of the episode can be
read again first. The rule that says so is a `Context`. The engine and the learner know none of the rules by name.

A segment is what is read and sampled in one context. It is a row of the learner.

Shapes: `B` rows, `T` turns of an episode, `R` recalled parts.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from agentrl_jax.errors import BadValue
from agentrl_jax.text.grammar import GrammarTable

ACT = 0
"""The kind of turns whose responses are executed by the environment; others are of the agent with itself."""


class Join(struct.PyTreeNode):
    """How messages join what was read before; in a trajectory the batch is [E, T]."""

    restart: Bool[Array, "*batch"]
    """The message begins a new context: the prefix, the recalled parts, the message."""
    recall: Int[Array, "*batch R"] | None
    """Parts of the episode that a new context reads again, in this order: 2 t for the message of turn t, 2 t + 1 for
    its response; then -1 for none. None where R is 0."""
    lead: Int[Array, "*batch"]
    """First tokens of the message, which join it to a response; a message right after the prefix is read without."""
    kind: Int[Array, "*batch"]
    """Of the turn that the message begins: `ACT`, or the number of one of `Context.notes`, from 1."""


class Bounds(NamedTuple):
    """What fixes the shapes of episodes of at most T turns."""

    turns: int
    """T, of all kinds."""
    segments: int
    """Segments of an episode."""
    sampled: int
    """Turns that are sampled in one segment."""
    recalled: int
    """R, parts that are read again at the start of a segment."""
    longest: int
    """Turns whose messages and responses fit into the longest context, those read again included."""

    @property
    def never_restarts(self) -> bool:
        """An episode is one context."""
        return self.segments == 1

    @property
    def always_restarts(self) -> bool:
        """Every turn has a context of its own."""
        return self.sampled == 1


@dataclasses.dataclass(frozen=True)
class Note:
    """A kind of turn that is of the agent with itself; the environment does not see it."""

    grammar: GrammarTable = dataclasses.field(hash=False, compare=False)
    """Of its responses, with as many actions as the grammars of the tasks, none of which it finds."""
    max_tokens: int
    """Tokens at which its responses are complete; at most those of other responses."""


@dataclasses.dataclass(frozen=True)
class Context:
    """A rule that says how messages join. Its methods are pure."""

    fresh: ClassVar[bool] = False
    """Messages are written as the first of an episode, because each follows the prefix directly."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """Its kinds of turns beside `ACT`."""
        return ()

    @property
    def message_tokens(self) -> int:
        """Most tokens of the messages that it writes itself."""
        return 0

    def turns_of(self, acts: int) -> int:
        """Turns of all kinds in an episode of at most so many that act."""
        return acts

    def bounds(self, turns: int) -> Bounds:
        """Bounds of episodes of at most so many turns of all kinds."""
        raise NotImplementedError

    def first_read(self, turn: int) -> int:
        """The first turn that the response of a turn reads; both are numbers in an episode."""
        raise NotImplementedError

    def start(self, message: Any) -> Any:
        """Its state, with leaves [B, ...], for rows whose first message is `message`."""
        return ()

    def follow(self, state: Any, seen: "Seen") -> tuple[Any, Any]:
        """The state after a turn, and the message that begins the next one."""
        raise NotImplementedError


class Seen(NamedTuple):
    """What a `Context` sees of a turn of B rows."""

    turn: Int[Array, " B"]
    """Number of the turn in its episode, of all kinds."""
    kind: Int[Array, " B"]
    response: Any
    """`trajectory.Response`"""
    parsed: Any
    """`text.grammar.ParsedResponse`"""
    result: Any
    """`trajectory.TurnResult`; of a turn that is not `ACT`, an empty one."""
    message: Any
    """`batched_env.Message` of the environment, which goes on; meaningless after a turn that is not `ACT`."""


@dataclasses.dataclass(frozen=True)
class Full(Context):
    """The whole conversation."""

    def bounds(self, turns: int) -> Bounds:
        """See `Context.bounds`."""
        return Bounds(turns=turns, segments=1, sampled=turns, recalled=0, longest=turns)

    def first_read(self, turn: int) -> int:
        """See `Context.first_read`."""
        return 0

    def follow(self, state: Any, seen: Seen) -> tuple[Any, Any]:
        """See `Context.follow`."""
        return state, seen.message


@dataclasses.dataclass(frozen=True)
class Window(Context):
    """The current turn and those before it, `turns` in all.

    The first turns go on with the conversation; from then on each turn begins a new context with the last of them. With
    as many turns as an episode has, contexts are those of `Full`; with 1, no earlier turn is read (RAGEN's
    single_turn). More are RAGEN's limited_multi_turn and verl-agent's history_length, which does not count the current
    turn.

    Raises:
        ValueError: `turns` is not positive.
    """

    turns: int

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise BadValue.of("agent.turns", self.turns, "expected at least 1")

    @property
    def fresh(self) -> bool:  # type: ignore[override]
        """See `Context.fresh`."""
        return self.turns == 1

    def bounds(self, turns: int) -> Bounds:
        """See `Context.bounds`."""
        kept = min(self.turns, turns)
        # Also the message after the last turn, which nobody answers, may begin a new context.
        recalled = 2 * (self.turns - 1) if turns >= self.turns else 0
        return Bounds(turns=turns, segments=turns - kept + 1, sampled=kept, recalled=recalled, longest=kept)

    def first_read(self, turn: int) -> int:
        """See `Context.first_read`."""
        return max(turn + 1 - self.turns, 0)

    def follow(self, state: Any, seen: Seen) -> tuple[Any, Any]:
        """See `Context.follow`."""
        # Of the turns in the context of the next response.
        first = seen.turn + 2 - self.turns
        restart = first > 0
        join = seen.message.join.replace(restart=restart)
        if join.recall is not None:
            parts = 2 * first[:, None] + jnp.arange(join.recall.shape[-1], dtype=jnp.int32)
            join = join.replace(recall=jnp.where(restart[:, None], parts, -1))
        return state, seen.message.replace(join=join)


FULL, SINGLE_TURN = Full(), Window(1)


def no_join(batch: int, recalled: int = 0) -> Join:
    """The `Join` of `batch` messages that go on."""
    zeros = jnp.zeros(batch, jnp.int32)
    recall = jnp.full((batch, recalled), -1, jnp.int32) if recalled else None
    return Join(restart=jnp.zeros(batch, bool), recall=recall, lead=zeros, kind=zeros)
