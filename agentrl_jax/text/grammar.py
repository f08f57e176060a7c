"""The response format as an automaton over tokens, which runs inside the decode loop.

`ResponseGrammar` describes the format. `agentrl_jax.text.automaton` turns it into a deterministic automaton over bytes,
and `compile_grammar` composes it over the bytes of every token into tables `states x token classes`. Parsing a response
costs a few gathers per token. The result equals `agentrl_jax.text.reference.parse_response` on the bytes of the whole
response.

Shapes: `Q` states, `V` vocabulary, `C` classes of tokens with the same effect, `E` items that one token can complete,
`F` distinct runs of completed items, `A` actions kept per turn, `B` rows of a batch (none for one response).
"""

import dataclasses
import string

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from agentrl_jax.errors import BadValue
from agentrl_jax.text import automaton, command_automaton
from agentrl_jax.text.tokenizer import Tokenizer

INVISIBLE = 0
"""Class of the tokens that change nothing: special tokens, and ids outside the vocabulary."""

_SEPARATOR_BYTES = frozenset(string.punctuation) - frozenset("<>/")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResponseGrammar:
    """Format of a response: `<think>...</think><answer>Up || Left</answer>`, or the answer block alone.

    Raises:
        ValueError: the format would be ambiguous.
    """

    actions: tuple[str, ...]
    """Action names; index = action id. Their ASCII case does not matter."""
    think: bool
    """Whether a think block comes before the answer block."""
    forced: bool
    """Whether the opening tag is inserted for the agent, so that its response starts inside the first block."""
    separator: str = "||"
    max_actions: int = 5
    """`A`, actions kept per turn; what follows is ignored without penalty."""

    def __post_init__(self) -> None:
        if not self.separator or not set(self.separator) <= _SEPARATOR_BYTES:
            raise BadValue.of(
                "separator",
                self.separator,
                f"expected one or more of {''.join(sorted(_SEPARATOR_BYTES))}, none of which can be part of a tag",
            )
        if self.max_actions < 1:
            raise BadValue.of("max_actions", self.max_actions, "expected at least 1 action per turn")
        for name in self.actions:
            if not name or name.encode().strip() != name.encode() or self.separator in name or "</answer>" in name:
                raise BadValue.of(
                    "action name",
                    name,
                    f"expected text without outer spaces, without the separator {self.separator!r} and without "
                    "'</answer>'; rename the action",
                )
        lowered = [name.encode().lower() for name in self.actions]
        if len(set(lowered)) < len(lowered):
            raise BadValue.of("action names", self.actions, "two differ only in case; rename one")

    @property
    def listed(self) -> tuple[str, ...]:
        """How the actions are written, for who has to write them."""
        return self.actions

    @property
    def opening(self) -> str:
        """The tag that starts a response."""
        return "<think>" if self.think else "<answer>"

    @property
    def forced_text(self) -> str:
        """Text inserted before the response: the opening tag if `forced`, else empty."""
        return self.opening if self.forced else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainResponse:
    """A free-text response, which the environment parses itself; it counts as one action, with id 0."""

    opening: str = ""
    """Text inserted before the response, such as "Action: "."""
    actions: tuple[str, ...] = ()
    max_actions: int = 1
    listed: tuple[str, ...] = ()
    """Names of actions that a prompt may list: none."""

    @property
    def forced_text(self) -> str:
        """Text inserted before the response."""
        return self.opening


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandGrammar:
    """A response with one command, whose argument is free text: `<search>first moon of Mars</search>`.

    What comes before the command is ignored; with `think` it must be a think block. The first opening of a command
    decides which one it is, and its argument ends where it is closed for the first time. The turn ends there.

    Raises:
        ValueError: a template is empty, or two openings cannot be told apart.
    """

    actions: tuple[str, ...]
    """Names of the commands; index = action id."""
    templates: tuple[tuple[str, str], ...]
    """Text before and after the argument of each command, such as ("<search>", "</search>"), in their case."""
    think: bool
    forced: bool
    """Whether the opening tag of the thought is inserted for the agent; without a thought nothing is."""
    max_actions: int = 1
    """`A`, width of the parsed actions, of which one is used."""

    def __post_init__(self) -> None:
        if len(self.templates) != len(self.actions) or not self.templates:
            raise BadValue.of("templates", self.templates, f"expected one for each of the commands {self.actions}")
        for number, (opening, closing) in enumerate(self.templates):
            others = [other for index, (other, _) in enumerate(self.templates) if index != number]
            if not opening or not closing or any(opening in other for other in others):
                raise BadValue.of(
                    "templates",
                    (opening, closing),
                    "expected text before and after the argument, and openings of which none contains another",
                )

    @property
    def listed(self) -> tuple[str, ...]:
        """How the commands are written, with dots for their arguments."""
        return tuple(map("...".join, self.templates))

    @property
    def opening(self) -> str:
        """The tag that starts a response; empty where it may be that of any command."""
        return "<think>" if self.think else ""

    @property
    def forced_text(self) -> str:
        """Text inserted before the response."""
        return self.opening if self.forced else ""


AnyGrammar = ResponseGrammar | PlainResponse | CommandGrammar


class GrammarTable(struct.PyTreeNode):
    """A grammar compiled for one tokenizer; class 0 of the tokens changes nothing."""

    token_class: Int[Array, " V"]
    next_state: Int[Array, "Q C"]
    emission: Int[Array, "Q C"]
    """Row of `runs` with the items that a token completes."""
    added: Int[Array, "Q C"]
    """What a token adds to the id of the action that the next item names."""
    runs: Int[Array, "F E"]
    """Completed items in order: 0 none, 1 an unknown name, 2 + action id, to the first of which the sum so far is
    added."""
    start_state: int = struct.field(pytree_node=False)
    closed_state: int = struct.field(pytree_node=False)
    max_actions: int = struct.field(pytree_node=False)
    stops: bool = struct.field(pytree_node=False, default=False)
    """A turn ends where its response is closed, whatever the engine's `stop_at_answer`."""


class GrammarState(struct.PyTreeNode):
    """State of the automaton in one response, and the items so far, as in `ParsedResponse`."""

    state: Int[Array, "*B"]
    actions: Int[Array, "*B A"]
    num_valid: Int[Array, "*B"]
    num_parsed: Int[Array, "*B"]
    partial: Int[Array, "*B"]
    """Sum of what was added for the present item."""


class ParsedResponse(struct.PyTreeNode):
    """The parsed actions of one response."""

    actions: Int[Array, "*B A"]
    """Ids of the known actions among the first `A` items, from the left; -1 elsewhere."""
    num_valid: Int[Array, "*B"]
    num_parsed: Int[Array, "*B"]
    """Items found, known or not, at most `A`."""
    format_ok: Bool[Array, "*B"]
    """All blocks are present and closed; otherwise there are no actions."""


def compile_grammar(grammar: AnyGrammar, tokenizer: Tokenizer) -> GrammarTable:
    """Compiles a grammar for a tokenizer. Runs on the host; about a second for 49k tokens.

    The table of a plain response parses nothing: no token changes its state, and it never closes.
    """
    if isinstance(grammar, PlainResponse):
        token_class, nothing = jnp.zeros(tokenizer.vocab_size, jnp.int32), jnp.zeros((2, 1), jnp.int32)
        same_state = jnp.array([[0], [1]], jnp.int32)
        return GrammarTable(token_class, same_state, nothing, nothing, nothing[:1], 0, 1, grammar.max_actions)
    if isinstance(grammar, CommandGrammar):
        return compile_machine(command_automaton.build(grammar, counts=False), tokenizer, grammar.max_actions, True)
    machine = automaton.build(
        actions=tuple(name.encode() for name in grammar.actions),
        think=grammar.think,
        forced=grammar.forced,
        separator=grammar.separator.encode(),
    )
    return compile_machine(machine, tokenizer, grammar.max_actions)


def compile_machine(
    machine: automaton.ByteMachine, tokenizer: Tokenizer, max_actions: int, stops: bool = False
) -> GrammarTable:
    """The table of an automaton over bytes, for a tokenizer."""
    tables = automaton.compose(machine, tokenizer.token_bytes)
    token_class, next_state, emission, added, runs = map(jnp.asarray, tables)
    return GrammarTable(
        token_class, next_state, emission, added, runs, machine.start, machine.closed, max_actions, stops
    )


def start(table: GrammarTable) -> GrammarState:
    """Returns the state before the first token of a response."""
    return GrammarState(
        state=jnp.int32(table.start_state),
        actions=jnp.full((table.max_actions,), -1, jnp.int32),
        num_valid=jnp.int32(0),
        num_parsed=jnp.int32(0),
        partial=jnp.int32(0),
    )


def advance(table: GrammarTable, state: GrammarState, token: Int[Array, ""]) -> GrammarState:
    """Returns the state after one token. Special tokens and ids outside the vocabulary change nothing."""
    kind = table.token_class.at[token].get(mode="fill", fill_value=INVISIBLE, wrap_negative_indices=False)
    run = table.runs[table.emission[state.state, kind]]
    actions, num_valid, num_parsed = state.actions, state.num_valid, state.num_parsed
    indices = jnp.arange(table.max_actions)
    partial = state.partial
    for item in run:
        counted = (item > 0) & (num_parsed < table.max_actions)
        known = counted & (item >= automaton.FIRST_ACTION)
        actions = jnp.where(known & (indices == num_valid), item - automaton.FIRST_ACTION + partial, actions)
        partial = jnp.where(item > 0, 0, partial)
        num_valid += known.astype(jnp.int32)
        num_parsed += counted.astype(jnp.int32)
    return GrammarState(
        state=table.next_state[state.state, kind],
        actions=actions,
        num_valid=num_valid,
        num_parsed=num_parsed,
        partial=partial + table.added[state.state, kind],
    )


def closed(table: GrammarTable, state: GrammarState) -> Bool[Array, ""]:
    """Returns whether the answer is closed; later tokens are ignored."""
    return state.state == table.closed_state


def result(table: GrammarTable, state: GrammarState) -> ParsedResponse:
    """Returns the parsed actions, as if the response ended here."""
    done = closed(table, state)
    return ParsedResponse(
        actions=jnp.where(done, state.actions, -1),
        num_valid=jnp.where(done, state.num_valid, 0),
        num_parsed=jnp.where(done, state.num_parsed, 0),
        format_ok=done,
    )
