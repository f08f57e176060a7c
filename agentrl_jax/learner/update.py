"""The update: one program from trajectories to a new state.

Shapes: as in `batch`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key

from agentrl_jax.algos import kl, losses, masked
from agentrl_jax.learner import bins as binning
from agentrl_jax.learner.batch import Batch, make_batch
from agentrl_jax.learner.recorded import recorded_advantages
from agentrl_jax.learner.replay_logprobs import Replayer, replayer, with_gradient_of
from agentrl_jax.learner.settings import LearnerConfig, UpdateSettings
from agentrl_jax.learner.state import TrainState, apply_gradients
from agentrl_jax.learner.trained_rows import TrainedRows
from agentrl_jax.models import actor_critic
from agentrl_jax.models.actor_critic import ActorCritic, TokenScores
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.engine_config import EngineConfig
from agentrl_jax.rollout.trajectory import Trajectory

_GAPS = ("_gap_mean", "_gap_max", "_bit_equal")


def update(
    state: TrainState,
    trajectory: Trajectory,
    temperature: Float[Array, " E"],
    key: Key[Array, ""],
    settings: UpdateSettings,
    greedy: Trajectory | None = None,
    *,
    model: ActorCritic,
    config: LearnerConfig,
    tx: optax.GradientTransformation,
    shards: Shards,
    engine: EngineConfig | None = None,
) -> tuple[TrainState, dict[str, Any]]:
    """One iteration of learning from E episodes. Pure; meant to be compiled as a whole.

    With `shards.count` > 1 it runs inside `jax.shard_map`: each device has a contiguous block of the episodes and of
    their temperatures, and computes its share of every microbatch. The other arguments are replicated, and so is what
    is returned, but for parameters that are sharded.

    The episodes of a group are contiguous. `temperature` is that of sampling, `key` orders the minibatches. `greedy` is
    one greedy episode per group, in the order of all groups; only remax reads it. `engine` is the configuration of the
    rollout on each device, and is read only if `mismatch` is replay.

    Returns the state after the update, and metrics: scalars, "grad_norm" of the policy for each step, and, where
    `recorded_episodes` is set, "recorded", see `learner.recorded.RecordedAdvantages`.

    Raises:
        ValueError: the groups cannot be divided among the devices, or `engine` is not that of the rollout.
    """
    replay = replayer(trajectory, temperature, model, config, engine, shards)
    settings = settings.replace(kl_coef=settings.kl_coef * state.kl.coef)
    batch, trained, means = make_batch(state, trajectory, temperature, settings, model, config, shards, replay, greedy)
    metrics: dict[str, Any] = means
    if config.recorded_episodes:
        found = recorded_advantages(batch, trajectory, config, shards)
        metrics["recorded"], batch = found, shards.after(found, batch)
    state, of_steps = _learn(state, batch, trained, key, settings, model, config, tx, shards, replay)
    metrics |= of_steps
    if config.kl.kind != "none":
        metrics["actor/kl_coef"] = settings.kl_coef
    if config.kl.kind == "adaptive":
        seen = metrics["actor/kl" if config.kl.apply_to == "loss" else "actor/reward_kl_penalty"]
        seen = jnp.where(metrics["update/trained_tokens"] > 0, seen, jnp.nan)  # NaN leaves the coefficient unchanged
        episodes = len(temperature) * shards.count
        state = state.replace(kl=kl.update(state.kl, seen, episodes, settings.kl_target, settings.kl_horizon))
    return state.replace(iteration=state.iteration + 1), metrics


def _learn(
    state: TrainState,
    batch: Batch,
    trained: TrainedRows,
    key: Key[Array, ""],
    settings: UpdateSettings,
    model: ActorCritic,
    config: LearnerConfig,
    tx: optax.GradientTransformation,
    shards: Shards,
    replay: Replayer | None,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Runs the epochs; each minibatch is one optimizer step."""

    def epoch_order(epoch):
        # A single minibatch keeps the order of the groups; shuffling it would only change rounding.
        order = trained.order
        if config.minibatches > 1:
            order = jax.random.permutation(jax.random.fold_in(key, epoch), order)
        # Rows without sampled tokens go last again, evenly over the minibatches.
        order = order[jnp.argsort(trained.tokens[order] == 0, stable=True)]
        return order.reshape(-1, config.minibatches).T

    order = jax.vmap(epoch_order)(jnp.arange(config.epochs)).reshape(config.epochs * config.minibatches, -1)
    if config.length_buckets > 1:  # so that microbatches have rows of similar length
        order = jax.vmap(lambda chosen: chosen[jnp.argsort(-trained.length[chosen], stable=True)])(order)

    def step(state, numbered):
        number, chosen = numbered
        tokens, before = _denominators(trained, chosen).tokens, state.bad_updates
        current = batch
        if replay is not None:
            current = batch.replace(replayed_logprob=replay(state.merged_params()))
        loss, grads, metrics = gradient(state, current, trained, chosen, settings, model, config, shards)
        state, norms, good = apply_gradients(
            state,
            tx,
            loss,
            grads,
            tokens=tokens,
            lr=settings.lr,
            critic_lr=settings.critic_lr,
            max_grad_norm=settings.max_grad_norm,
            freeze_policy=settings.freeze_policy > 0,
            norm=shards.norm,
        )
        metrics["loss"] = loss
        metrics["actor/grad_norm"] = norms["policy"]
        if config.advantage.has_critic:
            metrics["critic/grad_norm"] = norms["critic"]
        # A filter may keep fewer rows than there are minibatches. The first minibatch is empty only if the whole batch
        # is; that counts as one skipped update.
        empty = tokens == 0
        left_out = empty & (number > 0)
        state = state.replace(bad_updates=jnp.where(left_out, before, state.bad_updates))
        return state, (metrics, empty, ~good & ~left_out, state.bad_updates)

    state, (per_step, empty, skipped, in_a_row) = jax.lax.scan(step, state, (jnp.arange(len(order)), order))
    # Without a step there is nothing to measure: NaN.
    taken = jnp.sum(~empty, dtype=jnp.float32)
    metrics = {name: jnp.sum(jnp.where(empty, 0.0, x)) / taken for name, x in per_step.items()}
    metrics["grad_norm"] = per_step["actor/grad_norm"]
    metrics["actor/grad_norm_max"] = jnp.where(taken > 0, jnp.max(per_step["actor/grad_norm"]), jnp.nan)
    metrics["update/skipped"] = jnp.sum(skipped, dtype=jnp.float32)
    metrics["update/skipped_in_a_row"] = jnp.max(in_a_row).astype(jnp.float32)
    # Before the first step the parameters are unchanged, so the gap shows only numerical differences.
    metrics |= {name: x[0] for name, x in per_step.items() if name.endswith(_GAPS)}
    return state, metrics


def gradient(
    state: TrainState,
    batch: Batch,
    trained: TrainedRows,
    chosen: Int[Array, " n"],
    settings: UpdateSettings,
    model: ActorCritic,
    config: LearnerConfig,
    shards: Shards,
) -> tuple[Float[Array, ""], Any, dict[str, Float[Array, ""]]]:
    """Loss, gradient and metrics of the minibatch of the chosen rows, in `grad_accum_steps` microbatches.

    Each microbatch is fetched from the devices that hold its rows. The denominators are those of the whole minibatch,
    so neither microbatches nor devices change the result. A microbatch is cut to the shortest of `length_buckets`
    lengths that fits its rows on all devices, and skipped if it has no sampled tokens. With `packing`, microbatches
    have bins instead of rows, and every device gathers the rows of the minibatch.
    """
    denominators, size = _denominators(trained, chosen), batch.tokens.shape[1]
    number, lengths = chosen, trained.length[chosen]
    rows = packed = None
    if config.packing:
        rows = shards.gather_rows(batch, chosen)
        bins = binning.assign(lengths, size)
        packed = binning.fill(bins, rows.tokens, rows.position, rows.mask, rows.temperature)
        number, lengths = packed.number, jnp.where(jnp.any(packed.mask, axis=1), size, 0)

    def fetch(part):
        if packed is None:
            return shards.fetch_rows(batch, part)
        return shards.shard_rows(jax.tree.map(lambda x: x[part], packed))

    varying, frozen_params, reference = shards.varying((state.params, state.frozen_params, state.reference))
    frozen = state.replace(frozen_params=frozen_params)

    def score(params, part, compared, segment=None):
        arrays = (part.tokens, part.position, part.temperature)
        return actor_critic.score_tokens(params, model, *arrays, compared, part.mask, segment)

    def loss_of(params, part):
        params, compared = frozen.merged_params(params), (reference, kl.full) if config.kl.estimator == "full" else None
        if rows is None:
            return _loss(score(params, part, compared), part, denominators, settings, config)
        scores = binning.unpack(bins, part, score(params, part, compared, part.segment), rows.position)
        # The rows are the same on all devices, but the scores are those of each device's bins.
        replayed = shards.varying_rows(rows.replayed_logprob)
        here = rows.replace(mask=rows.mask & binning.are_in(bins, part)[:, None], replayed_logprob=replayed)
        return _loss(scores, here, denominators, settings, config)

    def gradient_of(part):
        (loss, (sums, peaks)), grads = jax.value_and_grad(loss_of, has_aux=True)(varying, part)
        return (loss, grads, sums), peaks

    def up_to(length):
        def cut(number):
            part = fetch(number)
            return gradient_of(part.replace(tokens=part.tokens[:, :length]))

        return cut

    microbatches = number.reshape(config.grad_accum_steps, -1)
    shapes = jax.eval_shape(up_to(size), microbatches[0])
    (loss, grads, sums), peaks = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    loss, sums, peaks = shards.varying_rows((loss, sums, peaks))
    zeros = (loss, shards.varying(grads), sums), peaks

    buckets = config.length_buckets
    cuts = [max(-(-size * step // buckets), model.shared_prefix_len + 1) for step in range(1, buckets + 1)]
    branches = [lambda _: zeros, *map(up_to, cuts)]

    def accumulate(total, microbatch):
        part, longest = microbatch
        sums, peaks = jax.lax.switch(jnp.sum(longest > jnp.array([0, *cuts[:-1]])), branches, part)
        return (jax.tree.map(jnp.add, total[0], sums), jax.tree.map(jnp.maximum, total[1], peaks)), None

    longest = jnp.max(lengths.reshape(config.grad_accum_steps, -1), axis=1)
    (added, peaks), _ = jax.lax.scan(accumulate, zeros, (microbatches, longest))
    loss, grads, sums = added
    loss, sums = shards.sum((loss, sums))
    grads = shards.sum_of_gradients(grads, state.params)
    tokens = jnp.maximum(denominators.tokens, 1.0)
    metrics = {name: x / tokens for name, x in sums.items()} | shards.largest(peaks)
    return loss, grads, metrics


def _denominators(trained: TrainedRows, chosen: Int[Array, " n"]) -> losses.Denominators:
    """Those of the minibatch of the chosen rows."""
    tokens = trained.tokens[chosen]
    return losses.Denominators(
        tokens=jnp.sum(tokens).astype(jnp.float32), sequences=jnp.sum(tokens > 0, dtype=jnp.float32)
    )


def _loss(
    scores: TokenScores,
    batch: Batch,
    denominators: losses.Denominators,
    settings: UpdateSettings,
    config: LearnerConfig,
) -> tuple[Float[Array, ""], tuple[dict[str, Float[Array, ""]], dict[str, Float[Array, ""]]]]:
    """A microbatch's share of the loss, and for the metrics sums and maxima over its tokens."""
    mask, before, logprob = batch.mask, batch.before, scores.logprob
    if batch.replayed_logprob is not None:
        logprob = with_gradient_of(batch.replayed_logprob, scores.logprob)
    weights = losses.token_weights(mask, config.aggregation, denominators, norm_length=mask.shape[1])
    policy, stats = losses.objective(
        config.objective.kind,
        logprob,
        jax.lax.stop_gradient(logprob) if before.old_logprob is None else before.old_logprob,
        batch.advantage,
        mask,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        dual_clip=config.objective.dual_clip,
    )
    if before.importance is not None:
        policy = policy * before.importance
    loss = jnp.sum(policy * weights) - settings.entropy_coef * jnp.sum(scores.entropy * weights)
    sums = {
        "actor/policy_loss": masked.total(policy, mask),
        "actor/entropy": masked.total(scores.entropy, mask),
        "actor/clip_fraction": masked.total(stats.clipped.astype(jnp.float32), mask),
        "actor/dual_clip_fraction": masked.total(stats.clipped_low.astype(jnp.float32), mask),
        "actor/ppo_kl": masked.total(-stats.log_ratio, mask),
        "actor/ratio_mean": masked.total(stats.ratio, mask),
        "rollout/logprob_mean": masked.total(batch.behavior_logprob, mask),
    }
    peaks: dict[str, jax.Array] = {}
    _add_gaps("rollout/logprob", logprob, batch, sums, peaks)
    if batch.replayed_logprob is not None:
        _add_gaps("rollout/parallel", scores.logprob, batch, sums, peaks)
    if config.advantage.has_critic:
        clip = config.advantage.value_clip
        value, clipped = losses.value_loss(scores.value, before.value, batch.target, clip=clip)
        value_weights = losses.token_weights(mask, "token_mean", denominators, norm_length=mask.shape[1])
        loss += settings.value_coef * jnp.sum(value * value_weights)
        sums["critic/value_loss"] = masked.total(value, mask)
        sums["critic/clip_fraction"] = masked.total(clipped.astype(jnp.float32), mask)
    if config.kl.kind != "none":
        divergence = scores.distance
        if divergence is None:
            divergence = kl.estimate(logprob, before.ref_logprob, config.kl.estimator)
        sums["actor/kl"] = masked.total(divergence, mask)
        if config.kl.apply_to == "loss":
            loss += settings.kl_coef * jnp.sum(divergence * weights)
    return loss, (sums, peaks)


def _add_gaps(
    name: str, logprob: Float[Array, "N K"], batch: Batch, sums: dict[str, jax.Array], peaks: dict[str, jax.Array]
) -> None:
    """Adds metrics of the difference between log-probabilities and those of the rollout; names end as in `_GAPS`."""
    gap = jnp.abs(logprob - batch.behavior_logprob)
    bits, behavior_bits = (jax.lax.bitcast_convert_type(x, jnp.int32) for x in (logprob, batch.behavior_logprob))
    sums[f"{name}_gap_mean"] = masked.total(gap, batch.mask)
    sums[f"{name}_bit_equal"] = masked.count((bits == behavior_bits) & batch.mask)
    peaks[f"{name}_gap_max"] = masked.largest(gap, batch.mask)
