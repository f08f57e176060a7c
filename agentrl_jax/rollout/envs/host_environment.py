"""Host environments with their prompt and response format. Shapes: `O` tokens of an observation."""

import dataclasses
from collections.abc import Callable

import numpy as np

from agentrl_jax.environments import HostEnvironment
from agentrl_jax.environments import HostStep as HostStep  # where it was before
from agentrl_jax.text.grammar import GrammarTable, PlainResponse, ResponseGrammar, compile_grammar
from agentrl_jax.text.prompt import Prompt, compile_prompt
from agentrl_jax.text.styles import get_style
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax.budget import Baselines
from envs_jax.splits import Split


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
    has_content: bool = False
    """Environments have a method `content`, from the seed to what the level is about, by which levels are compared."""
    undivided: str = ""
    """Why the levels are not divided; empty if they are."""

    has_items = True
    """See `batched_env.Task`."""
    has_boards = False
    """See `batched_env.Task`."""
    lists_actions = True
    """See `batched_env.Task`."""

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
    has_content: bool = False,
    undivided: str = "",
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
    return HostTask(
        name=name,
        make=make,
        prompt=prompt,
        response_format=response_format,
        grammar=compile_grammar(response_format, tokenizer),
        observation_tokens=observation_tokens,
        info_keys=info_keys,
        levels=levels,
        validation=validation,
        baselines=baselines,
        has_content=has_content,
        undivided=undivided,
    )
