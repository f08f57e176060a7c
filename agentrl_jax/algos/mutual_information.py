"""How much responses depend on the prompt: mutual information and retrieval (RAGEN-2, arXiv 2604.06268).

Responses may vary, with a healthy entropy, and still follow one template that fits every prompt. To detect this, each
text z_i is scored under each prompt x_j. With H(Z) = I(X; Z) + H(Z | X) and equally likely prompts, the mean of
log p(z_i | x_i) - log mean_j p(z_i | x_j) estimates I(X; Z). The estimate never exceeds the logarithm of the number of
prompts, even if the true I(X; Z) over all prompts is larger.

Shapes: `N` texts, `J` prompts.
"""

import math
from collections.abc import Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Real

from agentrl_jax.algos import masked

RETRIEVED = (1, 2, 4, 8)
"""Values of k for retrieval@k: whether a text's own prompt is among its k best."""

_STD_FLOOR = 1e-3
_DECAY = 0.9

_Number = TypeVar("_Number", float, jax.Array)


def measure(
    scores: Float[Array, "N J"],
    length: Real[Array, " N"],
    own: Int[Array, " N"],
    valid: Bool[Array, " N"],
    prompt: Int[Array, " J"],
) -> dict[str, Float[Array, ""]]:
    """RAGEN-2's collapse metrics.

    The metrics that end in _per_token divide each score by the length of its text first, so that long texts do not
    outweigh short ones. They are proxies: the logarithm of a mean of such powers is not a marginal probability.

    `scores` are log p(z_i | x_j) in nats, sums over the tokens of z_i; `length` is the number of these tokens, `own`
    the column of the prompt that the text answers. Texts that are not `valid` are ignored; a prompt that no valid text
    answers does not count. Columns with the same number in `prompt` have the same text: each is a separate column in
    the marginal, but for retrieval any of them is a hit.

    In nats, with and without _per_token: mi, the mean of matched - marginal, where matched is the score under the own
    prompt and marginal = logsumexp_j l_ij - log J; conditional_entropy = -mean matched; marginal_entropy = -mean
    marginal (RAGEN-2's reasoning entropy); marginal_std, the population standard deviation of marginal over the texts.
    Unitless, with and without _per_token: mi_zscore = `zscore`(mi, marginal_std). mi_bound: log J in nats.

    For each k of `RETRIEVED` below J: retrieval@k, the share of texts whose own prompt is among the k with the highest
    scores, in expectation over random tie-breaking; retrieval_chance@k, the same for random scores; retrieval_margin@k,
    the first minus the second. All these are NaN if fewer than two texts or two prompts count. pairs and prompts: how
    many count.
    """
    counted = jnp.zeros(prompt.shape, bool).at[own].max(valid)
    found = _information(scores, jnp.ones_like(length), own, valid, counted)
    found |= {f"{name}_per_token": x for name, x in _information(scores, length, own, valid, counted).items()}
    found |= _retrieval(scores, own, valid, counted, prompt)
    numbers = {"pairs": masked.count(valid), "prompts": masked.count(counted)}
    found["mi_bound"] = jnp.log(numbers["prompts"])
    enough = (numbers["pairs"] >= 2) & (numbers["prompts"] >= 2)
    return {name: jnp.where(enough, x, jnp.nan) for name, x in found.items()} | numbers


def zscore(mi: _Number, std: _Number) -> _Number:
    """Mutual information in units of the marginal's standard deviation, both in nats: mi / (std + 0.001)."""
    return mi / (std + _STD_FLOOR)


def smoothed(found: Mapping[str, float], before: Mapping[str, float | None]) -> dict[str, float]:
    """RAGEN-2's smoothed z-scores: the standard deviation over few texts is noisy, so a moving average replaces it.

    `found` are the metrics of one measurement, on the host, with the names of `measure` and any prefix and suffix;
    `before` those of the previous measurement with what this function added to them (None means NaN), empty for
    the first. For every marginal_std in `found`, returns marginal_std_smoothed in nats, 0.9 * its last value + 0.1 *
    the new one (at first the new one; a NaN leaves it unchanged), and mi_zscore_smoothed, the `zscore` with it.
    """
    added: dict[str, float] = {}
    for name, new in found.items():
        beginning, middle, ending = name.partition("marginal_std")
        if not middle:
            continue
        kept = f"{beginning}marginal_std_smoothed{ending}"
        last = before.get(kept)
        old = new if last is None or math.isnan(last) else last
        added[kept] = old if math.isnan(new) else _DECAY * old + (1 - _DECAY) * new
        added[f"{beginning}mi_zscore_smoothed{ending}"] = zscore(found[f"{beginning}mi{ending}"], added[kept])
    return added


def _information(
    scores: jax.Array, divisor: jax.Array, own: jax.Array, valid: jax.Array, counted: jax.Array
) -> dict[str, jax.Array]:
    """The metrics of scores divided by `divisor`; `counted` marks the prompts that count."""
    divisor = jnp.maximum(divisor, 1)
    matched = jnp.take_along_axis(scores, own[:, None], axis=1)
    # The marginal relative to the own prompt: exactly 0 for a text that does not depend on the prompt.
    others = jnp.where(counted, (scores - matched) / divisor[:, None], -jnp.inf)
    matched = matched[:, 0] / divisor
    highest = jnp.max(others, axis=1)
    mean = jnp.sum(jnp.exp(others - highest[:, None]), axis=1) / masked.count(counted)
    gained = -(highest + jnp.log(mean))
    marginal = matched - gained
    center, variance = masked.moments(marginal, valid)
    number = masked.count(valid)
    std = jnp.sqrt(variance * (number - 1) / jnp.maximum(number, 1))
    mi = masked.moments(gained, valid)[0]
    return {
        "mi": mi,
        "conditional_entropy": -masked.moments(matched, valid)[0],
        "marginal_entropy": -center,
        "marginal_std": std,
        "mi_zscore": zscore(mi, std),
    }


def _retrieval(
    scores: jax.Array, own: jax.Array, valid: jax.Array, counted: jax.Array, prompt: jax.Array
) -> dict[str, jax.Array]:
    matched = jnp.take_along_axis(scores, own[:, None], axis=1)
    same_prompt = counted & (prompt == prompt[own][:, None])
    irrelevant = counted & ~same_prompt
    same, better, tied, rest = (
        jnp.sum(x, axis=1)
        for x in (same_prompt, irrelevant & (scores > matched), irrelevant & (scores == matched), irrelevant)
    )
    found: dict[str, jax.Array] = {}
    for k in (k for k in RETRIEVED if k < scores.shape[1]):
        rate = masked.moments(_hit_rate(k - better, same, tied, k), valid)[0]
        chance = masked.moments(_hit_rate(jnp.full_like(same, k), same, rest, k), valid)[0]
        found |= {f"retrieval@{k}": rate, f"retrieval_chance@{k}": chance, f"retrieval_margin@{k}": rate - chance}
    return found


def _hit_rate(num_retrieved: jax.Array, relevant: jax.Array, irrelevant: jax.Array, max_retrieved: int) -> jax.Array:
    """Probability that a relevant prompt is among the retrieved ones, for each text.

    `num_retrieved` prompts, at most `max_retrieved`, are retrieved at random without replacement.
    """
    missed = jnp.ones(num_retrieved.shape, jnp.float32)
    for number in range(max_retrieved):
        left = jnp.maximum(irrelevant - number, 0) / jnp.maximum(relevant + irrelevant - number, 1)
        missed *= jnp.where(number < num_retrieved, left, 1.0)
    return 1.0 - missed
