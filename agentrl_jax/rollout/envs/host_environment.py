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
    """Result of one step of a host environment.

    Attributes:
        observation: text that the agent reads next.
        reward: of this turn, finite.
        terminated: the environment reached a terminal state.
        truncated: a limit of the environment was reached first.
        success: the task is solved.
        valid: the response named an action; otherwise it counts as a format error.
        info: finite numbers for metrics; names are among the task's `info_keys`, and missing ones are 0.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    valid: bool = True
    info: Mapping[str, float] = dataclasses.field(default_factory=dict)


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

        Args:
            response: everything the agent has written, tags included.
            actions: parsed actions: the known ones by their declared names, or, where none are declared, the answer's
                items as written. Empty for a response with a wrong format, and never more than the action budget left.
        """
        ...

    def close(self) -> None:
        """Called once when the episode ends or is abandoned, maybe while a method still runs; must return at once."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class HostTask:
    """One kind of host environment with its prompt and response format; see `host_task`.

    Attributes:
        name: shown in metrics.
        make: makes an environment for one episode; called in many threads.
        prompt: compiled with `pieces=None`.
        grammar: the response format. Without action names the answer is free text: every item of it is a valid action
            and is recorded as action 0; a whole `PlainResponse` is one such item.
        table: `grammar`, compiled.
        observation_tokens: O; a longer text is cut.
        info_keys: names that `HostStep.info` may have.
        levels: number of numbered levels, which the seed then selects; 0 if every seed makes a level.
        validation: how many of the levels, counted from the end, are for validation; the others are for tests.
        baselines: results of a random and a scripted policy on the first n levels; None if they are unknown.
    """

    name: str
    make: Callable[[], HostEnvironment]
    prompt: Prompt
    grammar: ResponseGrammar | PlainResponse
    table: GrammarTable
    observation_tokens: int
    info_keys: tuple[str, ...]
    levels: int = 0
    validation: int = 0
    baselines: Callable[[int], Baselines | None] | None = None

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
    grammar: ResponseGrammar | PlainResponse,
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
    """Makes a task from a host environment: compiles its prompt and its response grammar.

    Args:
        name: shown in metrics.
        make: makes an environment for one episode.
        instruction: the task in words.
        grammar: the response format; `actions=()` for free text between tags, a `PlainResponse` for any response.
        tokenizer: the tokenizer.
        style: name of the prompt style.
        observation_tokens: maximum tokens of an observation; a longer one is cut and its episode marked.
        max_turns: largest turn number that the prompt can show.
        max_actions: action budget stated in the prompt.
        response_words: words of a response stated in the prompt.
        info_keys: names that `HostStep.info` may have.
        levels: see `HostTask`.
        validation: see `HostTask`.
        baselines: see `HostTask`.
    """
    prompt = compile_prompt(
        get_style(style),
        instruction=instruction,
        legend=(),
        actions=grammar.actions,
        pieces=None,
        observation_pieces=observation_tokens,
        think=not isinstance(grammar, PlainResponse) and grammar.think,
        forced=not isinstance(grammar, PlainResponse) and grammar.forced,
        separator="" if isinstance(grammar, PlainResponse) else grammar.separator,
        plain=grammar.opening if isinstance(grammar, PlainResponse) else None,
        max_actions_budget=max_actions,
        max_turns=max_turns,
        response_words=response_words,
        tokenizer=tokenizer,
    )
    table = compile_grammar(grammar, tokenizer)
    return HostTask(name, make, prompt, grammar, table, observation_tokens, info_keys, levels, validation, baselines)
