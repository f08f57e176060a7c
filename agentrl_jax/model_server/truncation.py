"""Restricts sampling to likely tokens: top_k and top_p, of each row its own.

Shapes: `B` rows, `V` vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def truncate(
    logits: Float[Array, "B V"],
    temperature: Float[Array, " B"],
    top_k: Int[Array, " B"],
    top_p: Float[Array, " B"],
) -> Float[Array, "B V"]:
    """The logits, with -inf for tokens that are not to be sampled.

    As in Hugging Face's transformers the temperature comes first, then top_k (Fan et al. 2018, arXiv 1805.04833,
    section 3.2), then top_p over what is left (Holtzman et al. 2020, arXiv 1904.09751, section 3.1): the smallest set
    of most likely tokens whose probability reaches top_p. At least one token is left. Tokens that are exactly as likely
    as the last one of a set belong to it too.

    Args:
        logits: before the temperature.
        temperature: 0 counts as 1, as the most likely token is left in any case.
        top_k: number of tokens; 0 for no limit.
        top_p: from 0 to 1; 1 for no limit. Rows without a limit keep all their logits.
    """
    needed = jnp.any(((top_k > 0) | (top_p < 1.0)) & (temperature > 0))
    # Not `jnp.where`: where no row needs it, no token waits for a sort of the vocabulary.
    return jax.lax.cond(needed, _truncate, lambda logits, *_: logits, logits, temperature, top_k, top_p)


def _truncate(
    logits: Float[Array, "B V"],
    temperature: Float[Array, " B"],
    top_k: Int[Array, " B"],
    top_p: Float[Array, " B"],
) -> Float[Array, "B V"]:
    scaled = logits / jnp.where(temperature <= 0, 1.0, temperature)[:, None]
    ordered = jnp.flip(jnp.sort(scaled, axis=-1), axis=-1)
    last_of_k = _at(ordered, jnp.where(top_k > 0, top_k, logits.shape[-1]))
    probs = jax.nn.softmax(jnp.where(ordered >= last_of_k, ordered, -jnp.inf), axis=-1)
    before = jnp.cumsum(probs, axis=-1) - probs  # of the tokens that are more likely
    last_of_p = _at(ordered, jnp.sum(before < top_p[:, None], axis=-1))
    kept = (scaled >= last_of_k) & ((scaled >= last_of_p) | (top_p >= 1.0)[:, None])
    return jnp.where(kept, logits, -jnp.inf)


def _at(ordered: Float[Array, "B V"], number: Int[Array, " B"]) -> Float[Array, "B 1"]:
    """The value of the last of the first `number` tokens, which are at least 1 and at most all."""
    return jnp.take_along_axis(ordered, jnp.clip(number, 1, ordered.shape[-1])[:, None] - 1, axis=-1)
