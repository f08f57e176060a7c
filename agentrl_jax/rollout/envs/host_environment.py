"""Interface of host environments, and their prompt and response format. Shapes: `O` tokens of an observation."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from agentrl_jax.text.grammar import GrammarTable, PlainResponse, ResponseGrammar, compile_grammar
from agentrl_jax.text.prompt import Prompt, compile_prompt
from agentrl_jax.text.styles import get_style
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax.budget import Baselines
from envs_jax.splits import Split


@dataclasses.dataclass(frozen=True)
class HostStep:
    """Result of one step of a host environment."""

    observation: str
    """Text that the agent reads next."""
    reward: float = 0.0
    """Of this turn, finite."""
    terminated: bool = False
    truncated: bool = False
    """A limit of the environment was reached before a terminal state."""
    success: bool = False
    valid: bool = True
    """The response named an action; otherwise it counts as a format error."""
    info: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Finite numbers for metrics; names are among the task's `info_keys`, and missing ones are 0."""


class HostEnvironment(Protocol):
    """One episode of a Python environment. Its methods are called by one thread at a time, not always the same one.

    An exception or a late answer ends this episode as failed; other episodes continue.
    """

    def reset(self, seed: int) -> str:
        """Starts the episode and returns the first observation; 0 <= seed < 2**32 determines everything random in it.

        Members of a group get the same seed and must return the same text, since they share its prefill.
        """
        ...

    def step(self, response: str, actions: Sequence[str]) -> HostStep:
        """Executes one turn.

        `response` is everything the agent has written, tags included. `actions` are the known actions by their declared
        names, or, where none are declared, the answer's items as written: none for a response with a wrong format, and
        never more than the action budget left.
        """
        ...

    def close(self) -> None:
        """Called once when the episode ends or is abandoned, maybe while a method still runs; must return at once."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class HostTask:
    """One kind of host environment with its prompt and response format; see `host_task`."""

    name: str
    """Shown in metrics."""
    make: Callable[[], HostEnvironment]
    """Makes an environment for one episode; called in many threads."""
    prompt: Prompt
    """Compiled with `pieces=None`."""
    response_format: ResponseGrammar | PlainResponse
    """Without action names the answer is free text: every item of it is a valid action and is recorded as action 0. The
    whole response of a `PlainResponse` is one such item."""
    grammar: GrammarTable
    """`response_format`, compiled."""
    observation_tokens: int
    """Maximum tokens of an observation; a longer one is cut and its episode marked."""
    info_keys: tuple[str, ...]
    """Names that `HostStep.info` may have."""
    levels: int = 0
    """Number of numbered levels, which the seed then selects; 0 if every seed makes a level."""
    validation: int = 0
    """How many of the levels, counted from the end, are for validation; the others are for tests."""
    baselines: Callable[[int], Baselines | None] | None = None
    """Results of a random and a scripted policy on the first n levels; None if they are unknown."""

    @property
    def splits(self) -> np.ndarray | None:
        """The `envs_jax.splits.Split` of each level, i64[levels]; None if every seed makes a level."""
        if not self.levels:
            return None
        return np.repeat([Split.TEST, Split.VALIDATION], [self.levels - self.validation, self.validation])


def host_task(
    name: str,
    make: Callable[[], HostEnvironment],
    *,
    instruction: str,
    response_format: ResponseGrammar | PlainResponse,
    tokenizer: Tokenizer,
    style: str,
    observation_tokens: int,
    max_turns: int,
    max_actions: int,
    response_words: int,
    info_keys: tuple[str, ...] = (),
    levels: int = 0,
    validation: int = 0,
    baselines: Callable[[int], Baselines | None] | None = None,
) -> HostTask:
    """Makes a task from a host environment: compiles its prompt and its response format.

    The prompt has the given style and can show turn numbers up to `max_turns`; it states the instruction, the budget
    of `max_actions` and the `response_words` of a response. The other arguments are fields of `HostTask`.
    """
    plain = response_format if isinstance(response_format, PlainResponse) else None
    tagged = None if isinstance(response_format, PlainResponse) else response_format
    prompt = compile_prompt(
        get_style(style),
        instruction=instruction,
        legend=(),
        actions=response_format.actions,
        pieces=None,
        observation_pieces=observation_tokens,
        think=tagged is not None and tagged.think,
        forced=tagged is not None and tagged.forced,
        separator=tagged.separator if tagged else "",
        plain=plain.opening if plain else None,
        max_actions_budget=max_actions,
        max_turns=max_turns,
        response_words=response_words,
        tokenizer=tokenizer,
    )
    grammar = compile_grammar(response_format, tokenizer)
    return HostTask(
        name, make, prompt, response_format, grammar, observation_tokens, info_keys, levels, validation, baselines
    )
