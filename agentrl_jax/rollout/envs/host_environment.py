"""What a host environment is, and the prompt and the response format around it. `O` tokens of an environment's text."""

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
    """An environment's answer to one response.

    Attributes:
        observation: text that the agent reads next; any text.
        reward: of this turn, finite.
        terminated: the environment's own end.
        truncated: a limit of the environment was reached first.
        success: the task is solved.
        valid: the response said what to do; otherwise it counts as a format error.
        info: numbers worth averaging, finite; names out of the task's `info_keys`, 0 where left out.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    valid: bool = True
    info: Mapping[str, float] = dataclasses.field(default_factory=dict)


class HostEnvironment(Protocol):
    """One episode of an environment in Python. Its methods are called by one thread at a time, not always the same.

    Whatever they raise, and an answer that comes too late, ends this episode as failed and no other.
    """

    def reset(self, seed: int) -> str:
        """Starts the episode and returns the first observation; 0 <= seed < 2**32 decides everything random in it.

        Members of a group get the same seed and have to return the same text, since they share its prefill.
        """
        ...

    def step(self, response: str, actions: Sequence[str]) -> HostStep:
        """Answers one turn.

        Args:
            response: everything the agent has written, tags included.
            actions: what it asked for: the known actions by their declared names, or, where none are declared, the
                answer's items as written. Empty for a response out of format, and never more than the budget has left.
        """
        ...

    def close(self) -> None:
        """Called once when the episode is over or given up, which may be while a method still runs; returns at once."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class HostTask:
    """One kind of host environment with the text around it; see `host_task`.

    Attributes:
        name: shown in metrics.
        make: makes an environment for one episode; called in many threads.
        prompt: compiled with `pieces=None`.
        grammar: the response format. Without action names the answer is free text: every item of it is a valid action
            and is recorded as action 0; a `PlainResponse` is one such item as a whole.
        table: `grammar`, compiled.
        observation_tokens: O; a longer text is cut.
        info_keys: names that `HostStep.info` may hold.
        levels: number of levels that an environment's seed counts, if it is given one of them; 0 where any seed makes a
            level of its own.
        validation: how many of them, the last ones, are for validation; the others are for tests.
        baselines: random and scripted play on the first n levels; None where it is not known.
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
        """The `envs_jax.splits.Split` of each level, i64[levels]; None where any seed makes one."""
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
    """Puts prompt and grammar around a host environment.

    Args:
        name: shown in metrics.
        make: makes an environment for one episode.
        instruction: the task in words.
        grammar: the response format; `actions=()` for free text between tags, a `PlainResponse` for any response.
        tokenizer: the tokenizer.
        style: name of the prompt style.
        observation_tokens: most tokens of the environment's own text; a longer one is cut and its episode marked.
        max_turns: largest turn number that the prompt has to show.
        max_actions: action budget that the prompt tells.
        response_words: words of a response that the prompt tells.
        info_keys: names that `HostStep.info` may hold.
        levels: see `HostTask`.
        validation: likewise.
        baselines: likewise.
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
