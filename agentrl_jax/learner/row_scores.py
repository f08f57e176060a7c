"""Forward passes over all rows before the update: values, log-probabilities and importance weights.

Shapes: `E` episodes of this device, `N` rows of `S` tokens with `K` response positions (see
`rollout.packing.Sequences`).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from agentrl_jax.algos import masked
from agentrl_jax.algos.importance import importance_weights
from agentrl_jax.learner import bins as binning
from agentrl_jax.learner.replay_logprobs import Replayer
from agentrl_jax.learner.settings import LearnerConfig
from agentrl_jax.learner.state import TrainState
from agentrl_jax.learner.trained_rows import TrainedRows
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
    entropy: Float[Array, "N K"] | None = None
    """Of the policy, in nats; None unless `algo.tokens` reads it."""


def score_rows(
    state: TrainState,
    rows: Sequences,
    trained: TrainedRows,
    temperature: Float[Array, " N"],
    final: FinalStates | None,
    model: ActorCritic,
    config: LearnerConfig,
    shards: Shards,
    replay: Replayer | None,
) -> tuple[RowScores, Float[Array, "*E"], dict[str, Float[Array, ""]]]:
    """Scores the rows to train on, and the final states of truncated episodes if given.

    A microbatch is fetched from the devices that hold its rows, and its scores are sent back. Returns the scores of
    this device's rows (0 for rows that are not trained on), the critic's values of the final states (0 where an episode
    was not truncated), and metrics.
    """
    mask, order, microbatches = rows.response_mask, trained.order, config.minibatches * config.grad_accum_steps
    params, reference = shards.varying((state.merged_params(), state.reference))
    zeros = shards.varying_rows(jnp.zeros(mask.shape, jnp.float32))
    arrays: Any = mask, (rows.tokens, rows.position), temperature
    if config.packing:
        row_mask, (tokens, position), of_row = shards.gather_rows(arrays, order)
        bins = binning.assign(trained.length[order], tokens.shape[1])
        packed = binning.fill(bins, tokens, position, row_mask, of_row)
        arrays = packed.mask, (packed.tokens, packed.position, packed.segment), packed.temperature

    def over_microbatches(function, found, number, some, fetch, put):
        """`found` with the scores of `function(*fetch(...))`, for each microbatch of these numbers that has `some`."""

        def of_one(found, microbatch):
            def scored(found):
                return put(found, shards.all_gather_rows(function(*fetch(microbatch))), microbatch)

            return jax.lax.cond(jnp.any(some[microbatch]), scored, lambda x: x, found), None

        return jax.lax.scan(of_one, found, number.reshape(microbatches, -1))[0]

    def over_rows(function):
        """Scores [N, K] of this device's rows by a function of mask, rows and temperature."""
        if not config.packing:
            some = trained.tokens > 0
            return over_microbatches(
                function, zeros, order, some, lambda numbers: shards.fetch_rows(arrays, numbers), shards.put_rows
            )
        found = over_microbatches(
            function,
            jnp.zeros(packed.mask.shape, jnp.float32),
            packed.number,
            jnp.any(packed.mask, axis=1),
            lambda numbers: shards.shard_rows(jax.tree.map(lambda x: x[numbers], arrays)),
            lambda found, scores, numbers: found.at[numbers].set(scores),
        )
        return shards.put_rows(zeros, binning.unpack(bins, packed, found, position), order)

    def logprobs(policy, score=actor_critic.logprobs):
        with_policy = {**params, "policy": policy}

        def of_rows(mask, row, temperature):
            tokens, position, *segment = row
            return score(with_policy, model, tokens, position, temperature, mask, *segment)

        return over_rows(of_rows)

    value = ref_logprob = zeros
    final_value = shards.varying_rows(jnp.float32(0.0))
    if config.advantage.has_critic:
        value = over_rows(lambda _, row, __: actor_critic.values(params, model, *row))
        params, reference, arrays, final = shards.after(value, (params, reference, arrays, final))
    if final is not None:
        known = shards.all_gather_blocks(final.known[:, 0])
        # One row an episode need not fill the microbatches of all devices: repeat the last one.
        more = -len(known) % (microbatches * shards.count)
        number = jnp.minimum(jnp.arange(len(known) + more), len(known) - 1)
        of_final = over_microbatches(
            lambda _, row: actor_critic.values(params, model, *row),
            shards.varying_rows(jnp.zeros(final.known.shape, jnp.float32)),
            number,
            known,
            lambda numbers: shards.fetch_rows((final.known, (final.tokens, final.position)), numbers),
            shards.put_rows,
        )
        final_value = jnp.where(final.known[:, 0], of_final[:, 0], 0.0)
        params, reference, arrays = shards.after(final_value, (params, reference, arrays))
    # The divergence over the whole vocabulary needs the logits of both policies; the loss computes it.
    if config.kl.kind != "none" and config.kl.estimator != "full":
        ref_logprob = logprobs(reference) if replay is None else replay({**params, "policy": reference})
        params, arrays = shards.after(ref_logprob, (params, arrays))
    old_logprob = None if config.old_logprobs == "same_pass" else rows.logprob
    if config.old_logprobs == "learner":
        old_logprob = logprobs(params["policy"])
    entropy = None
    if config.tokens.reads == "entropy":
        params, arrays = shards.after(old_logprob, (params, arrays))
        entropy = logprobs(params["policy"], actor_critic.entropies)
    metrics: dict[str, jax.Array] = {}
    mask = shards.after((value, final_value, ref_logprob, old_logprob, entropy), mask)
    if final is not None:
        known = shards.after(mask, final.known[:, 0])
        metrics["critic/final_value_mean"] = shards.sum(masked.mean(final_value, known)).value
    if config.kl.kind != "none" and config.kl.estimator != "full":
        metrics["rollout/ref_logprob_mean"] = masked.moments(ref_logprob, mask, shards)[0]
    importance = None
    if config.mismatch.kind == "tis" or config.mismatch.kind == "icepop":
        assert old_logprob is not None
        importance, changed = importance_weights(old_logprob, rows.logprob, mask, config.mismatch)
        metrics["rollout/importance_weight_mean"] = masked.moments(importance, mask, shards)[0]
        metrics["rollout/importance_truncated"] = masked.moments(changed.astype(jnp.float32), mask, shards)[0]
    return RowScores(value, ref_logprob, old_logprob, importance, entropy), final_value, metrics
