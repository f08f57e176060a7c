"""Response grammars of several tasks, applied to a batch of `B` rows."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Bool, Int

from agentrl_jax.text import grammar
from agentrl_jax.text.grammar import GrammarState, GrammarTable, ParsedResponse

Tables = tuple[GrammarTable, ...]
"""One grammar per task; all keep the same number of actions per turn. If empty, nothing is parsed."""


def _per_task(tables: Tables, task: Int[Array, " B"], function: Callable[..., Any], *rows: Any) -> Any:
    if not tables:
        return ()

    def row(task, *values):
        return jax.lax.switch(task, [lambda *v, t=t: function(t, *v) for t in tables], *values)

    return jax.vmap(row)(task, *rows)


def start(tables: Tables, task: Int[Array, " B"]) -> GrammarState:
    """State of each row before the first token of a response; `task` selects the grammar."""
    return _per_task(tables, task, grammar.start)


def advance(tables: Tables, task: Int[Array, " B"], state: GrammarState, token: Int[Array, " B"]) -> GrammarState:
    """State after one more token."""
    return _per_task(tables, task, grammar.advance, state, token)


def closed(tables: Tables, task: Int[Array, " B"], state: GrammarState) -> Bool[Array, " B"]:
    """Whether the answer has been closed."""
    return _per_task(tables, task, grammar.closed, state)


def result(tables: Tables, task: Int[Array, " B"], state: GrammarState) -> ParsedResponse:
    """The parsed responses, fields [B, ...]."""
    return _per_task(tables, task, grammar.result, state)
