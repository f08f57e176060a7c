"""A context whose agent writes notes to itself, and forgets everything else."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import toy_agent

from agentrl_jax.algos import masked
from agentrl_jax.rollout.contexts import ACT, Bounds, Context, Note
from agentrl_jax.text.grammar import ResponseGrammar, compile_grammar

ASKED = toy_agent.vocabulary("What happened?")


@dataclasses.dataclass(frozen=True)
class Summaries(Context):
    """Holds every observation back until the agent has written a note, with which the next context begins."""

    note: Note

    @property
    def notes(self):
        return (self.note,)

    @property
    def message_tokens(self):
        return len(ASKED)

    def turns_of(self, acts):
        return 2 * acts - 1

    def bounds(self, turns):
        return Bounds(turns=turns, segments=(turns + 1) // 2, sampled=2, recalled=1, longest=3)

    def start(self, message):
        return message

    def follow(self, state, seen):
        acted = seen.kind == ACT
        held = masked.where(acted, seen.message, state)
        rows, width = held.tokens.shape
        asked = jnp.broadcast_to(jnp.asarray(np.pad(ASKED, (0, width - len(ASKED)))), (rows, width))
        join = held.join.replace(
            restart=~acted,
            recall=jnp.where(acted, -1, 2 * seen.turn + 1)[:, None],
            lead=jnp.where(acted, 0, held.join.lead),
            kind=jnp.where(acted, 1, ACT),
        )
        message = held.replace(
            tokens=jnp.where(acted[:, None], asked, held.tokens),
            length=jnp.where(acted, len(ASKED), held.length),
            join=join,
        )
        return held, message


NOTE_TOKENS = 4
SUMMARIES = Summaries(
    Note(
        compile_grammar(
            ResponseGrammar(actions=("Note",), think=False, forced=True, max_actions=2), toy_agent.TOKENIZER
        ),
        NOTE_TOKENS,
    )
)
