"""Causal attention of whole rows: one function, and several implementations behind it.

Shapes: as in `attention`; the queries are those of the last `C` of `S` positions.
"""

from jaxtyping import Array, Int

from agentrl_jax.models.attention import Keys, Query
from agentrl_jax.models.block_attention import attend_in_blocks


def attention(
    query: Query, key: Keys, value: Keys, *, window: int = 0, segment_ids: Int[Array, "B S"] | None = None
) -> Query:
    """Causal grouped-query attention of the last C of S positions; the softmax is computed in f32.

    A query sees its own position and those before it: with a `window` the latest `window` positions only, its own
    included; with `segment_ids`, for rows packed with several sequences, only positions of its own segment. The
    backward pass recomputes the scores.
    """
    return attend_in_blocks(query, key, value, window=window, segment_ids=segment_ids)
