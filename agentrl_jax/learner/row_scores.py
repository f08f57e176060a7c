"""Forward passes over all rows before the update: values, log-probabilities and importance weights.

Shapes: `E` episodes, `N` rows of `S` tokens with `K` response positions (see `rollout.packing.Sequences`).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from agentrl_jax.algos import losses, masked
from agentrl_jax.learner import bins as binning
from agentrl_jax.learner.replay_logprobs import Replayer
from agentrl_jax.learner.settings import LearnerConfig
from agentrl_jax.learner.state import TrainState
from agentrl_jax.models import actor_critic
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.packing import FinalStates, Sequences


class RowScores(struct.PyTreeNode):
    """What the critic, the policy and the reference say about the rows before the update."""

    value: Float[Array, "N K"]
    """The critic's values; 0 without a critic."""
    ref_logprob: Float[Array, "N K"]
    """Log-probability under the reference policy; 0 if nothing reads it."""
    old_logprob: Float[Array, "N K"] | None
    """Denominator of the ratio of the policy loss, see `LearnerConfig.old_logprobs`; None: the step's own forward pass,
    which computes the same if a batch has one step."""
    importance: Float[Array, "N K"] | None
    """Importance weight; None without a correction of the mismatch."""


def score_rows(
    state: TrainState,
    rows: Sequences,
    source: Int[Array, " N"],
    temperature: Float[Array, " N"],
    final: FinalStates | None,
    model: ActorCritic,
    config: LearnerConfig,
    shards: Shards,
    replay: Replayer | None,
) -> tuple[RowScores, Float[Array, "*E"], dict[str, Float[Array, ""]]]:
    """Scores all rows, and the final states of truncated episodes if given.

    `source` are the indices of the rows among those that `replay` scores. Returns the scores, the critic's values of
    the final states (0 where an episode was not truncated), and metrics.
    """
    mask = rows.response_mask
    whole: Any = (rows.tokens, rows.position), mask, temperature
    if config.packing:
        bins = binning.assign(jnp.max(jnp.where(mask, rows.position + 1, 0), axis=1), rows.tokens.shape[1])
        packed = binning.fill(bins, rows.tokens, rows.position, mask, temperature)
        whole = (packed.tokens, packed.position, packed.segment), packed.mask, packed.temperature
    local, local_mask, local_temperature = shards.shard_rows(whole)
    microbatches = config.minibatches * config.grad_accum_steps
    params, reference = shards.varying((state.merged_params(), state.reference))
    metrics: dict[str, jax.Array] = {}

    def over_rows(function, mask, rows):
        """The results of all devices for a function of mask and rows; 0 where a microbatch has no sampled tokens."""

        def of_part(part):
            mask, *rows = part
            zeros = jnp.zeros_like(mask, jnp.float32)
            return jax.lax.cond(shards.any(mask), lambda: function(mask, *rows), lambda: zeros)

        split = jax.tree.map(lambda x: x.reshape(microbatches, -1, *x.shape[1:]), (mask, *rows))
        return shards.all_gather_rows(jax.lax.map(of_part, split).reshape(mask.shape))

    def by_row(scores):
        return binning.unpack(bins, packed, scores, rows.position) if config.packing else scores

    def values(mask, rows):
        return over_rows(lambda _, *row: actor_critic.values(params, model, *row), mask, rows)

    def logprobs(policy):
        with_policy = {**params, "policy": policy}

        def of_rows(mask, temperature, tokens, position, *segment):
            return actor_critic.logprobs(with_policy, model, tokens, position, temperature, mask, *segment)

        return by_row(over_rows(of_rows, local_mask, (local_temperature, *local)))

    value = ref_logprob = jnp.zeros(mask.shape, jnp.float32)
    if config.advantage.has_critic:
        value = by_row(values(local_mask, local))
        params, reference = shards.after(value, (params, reference))
    final_value = jnp.float32(0.0)
    if final is not None:
        tokens, position, known = shards.shard_rows(_pad_rows(final, microbatches * shards.count))
        of_final = values(known, (tokens, position))[: len(final.known), 0]
        final_value = jnp.where(final.known[:, 0], of_final, 0.0)
        params, reference = shards.after(final_value, (params, reference))
        metrics["critic/final_value_mean"] = masked.mean(final_value, final.known[:, 0]).value
    # The divergence over the whole vocabulary needs the logits of both policies; the loss computes it.
    if config.kl.kind != "none" and config.kl.estimator != "full":
        ref_logprob = logprobs(reference) if replay is None else replay({**params, "policy": reference})[source]
        params = shards.after(ref_logprob, params)
        metrics["rollout/ref_logprob_mean"] = masked.moments(ref_logprob, mask)[0]
    old_logprob, importance = None if config.old_logprobs == "same_pass" else rows.logprob, None
    if config.old_logprobs == "learner":
        old_logprob = logprobs(params["policy"])
    if config.mismatch.kind == "tis" or config.mismatch.kind == "icepop":
        assert old_logprob is not None
        importance, changed = losses.importance_weights(
            old_logprob,
            rows.logprob,
            mask,
            cap=config.mismatch.cap,
            correction="truncated" if config.mismatch.kind == "tis" else "masked",
            level=config.mismatch.level,
        )
        metrics["rollout/importance_weight_mean"] = masked.moments(importance, mask)[0]
        metrics["rollout/importance_truncated"] = masked.moments(changed.astype(jnp.float32), mask)[0]
    return RowScores(value, ref_logprob, old_logprob, importance), final_value, metrics


def _pad_rows(final: FinalStates, multiple: int) -> FinalStates:
    """Pads the rows to a multiple of a number, which one row per episode need not be."""
    more = -len(final.known) % multiple
    padded = FinalStates(*(jnp.pad(x, ((0, more), (0, 0))) for x in final))
    return padded._replace(position=jnp.maximum(padded.position, 1))
