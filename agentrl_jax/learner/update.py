"""The update: one program from trajectories to a new state.

Shapes: as in `batch`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from agentrl_jax.algos import distillation, kl, losses, masked, token_rules
from agentrl_jax.algos.optimizers import Optimizer
from agentrl_jax.config.distillation import SelfDistillation
from agentrl_jax.learner.batch import Batch, make_batch
from agentrl_jax.learner.gradient import Teaching, gradient
from agentrl_jax.learner.recorded import recorded_advantages
from agentrl_jax.learner.replay_logprobs import Replayer, replayer, with_gradient_of
from agentrl_jax.learner.row_scores import RowScores
from agentrl_jax.learner.settings import LearnerConfig, UpdateSettings
from agentrl_jax.learner.state import TrainState, apply_gradients
from agentrl_jax.learner.trained_rows import TrainedRows
from agentrl_jax.models.actor_critic import ActorCritic, TokenScores
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.engine_config import EngineConfig
from agentrl_jax.rollout.hints import Hints
from agentrl_jax.rollout.trajectory import Trajectory

_GAPS = ("_gap_mean", "_gap_max", "_bit_equal")


def update(
    state: TrainState,
    trajectory: Trajectory,
    temperature: Float[Array, " E"],
    key: Key[Array, ""],
    settings: UpdateSettings,
    greedy: Trajectory | None = None,
    hints: Hints | None = None,
    *,
    model: ActorCritic,
    config: LearnerConfig,
    tx: Optimizer,
    shards: Shards,
    engine: EngineConfig | None = None,
) -> tuple[TrainState, dict[str, Any]]:
    """One iteration of learning from E episodes. Pure; meant to be compiled as a whole.

    With `shards.count` > 1 it runs inside `jax.shard_map`: each device has a contiguous block of the episodes, of their
    temperatures and their hints, and computes its share of every microbatch. The other arguments are replicated, and so
    is what is returned, but for parameters that are sharded.

    The episodes of a group are contiguous. `temperature` is that of sampling, `key` orders the minibatches. `greedy` is
    one greedy episode per group, in the order of all groups; only remax reads it. `hints` are what the teacher of
    `algo.distillation` reads besides, E of them; None if it reads nothing else. `engine` is the configuration of the
    rollout on each device, and is read only if `mismatch` is replay.

    Returns the state after the update, and metrics: scalars, "grad_norm" of the policy for each step, and, where
    `recorded_episodes` is set, "recorded", see `learner.recorded.RecordedAdvantages`.

    Raises:
        ValueError: the groups cannot be divided among the devices, or `engine` is not that of the rollout.
    """
    replay = replayer(trajectory, temperature, model, config, engine, shards)
    if config.kl.kind != "none":
        numbers = settings.numbers | {"kl.coef": settings.numbers["kl.coef"] * state.kl.coef}
        settings = settings.replace(numbers=numbers)
    batch, trained, means = make_batch(
        state, trajectory, temperature, settings, model, config, shards, replay, greedy, hints
    )
    metrics: dict[str, Any] = means
    if state.entropy_coef is not None:
        coef, settings = _toward_entropy(state.entropy_coef, batch, settings, shards)
        state, metrics["actor/entropy_coef"] = state.replace(entropy_coef=coef), settings.entropy_coef
    if config.recorded_episodes:
        found = recorded_advantages(batch, trajectory, config, shards)
        metrics["recorded"], batch = found, shards.after(found, batch)
    state, of_steps = _learn(state, batch, trained, key, settings, model, config, tx, shards, replay)
    metrics |= of_steps
    if config.kl.kind != "none":
        metrics["actor/kl_coef"] = settings.numbers["kl.coef"]
    if config.kl.kind == "adaptive":
        seen = metrics["actor/kl" if config.kl.apply_to == "loss" else "actor/reward_kl_penalty"]
        seen = jnp.where(metrics["update/trained_tokens"] > 0, seen, jnp.nan)  # NaN leaves the coefficient unchanged
        episodes = len(temperature) * shards.count
        target, horizon = (settings.numbers[f"kl.{name}"] for name in ("target", "horizon"))
        state = state.replace(kl=kl.update(state.kl, seen, episodes, target, horizon))
    state = state.replace(step=state.step + 1)
    return _with_moved_reference(state, settings, config), metrics


def _toward_entropy(
    coef: Float[Array, ""], batch: Batch, settings: UpdateSettings, shards: Shards
) -> tuple[Float[Array, ""], UpdateSettings]:
    """The weight of the entropy bonus after this batch, and settings with it; with 0 above the target."""
    # The mean of -log p over tokens sampled from p is an unbiased estimate of the mean entropy.
    tokens = masked.count(batch.mask, shards)
    entropy = -masked.total(batch.behavior_logprob, batch.mask, shards) / tokens
    missing = settings.entropy_target - entropy
    change = jnp.where(tokens > 0, jnp.sign(missing) * settings.entropy_step, 0.0)
    coef = jnp.maximum(coef + change, 0.0)
    return coef, settings.replace(entropy_coef=jnp.where(missing >= 0, coef, 0.0))


def _with_moved_reference(state: TrainState, settings: UpdateSettings, config: LearnerConfig) -> TrainState:
    """The state after an iteration, whose reference has moved if its turn has come."""
    if config.kl.kind == "none" or not config.kl.sync_every:
        return state
    mix = jnp.where(state.step % config.kl.sync_every == 0, settings.numbers["kl.sync_mix"], 0.0)
    moved = jax.tree.map(
        lambda old, new: jnp.where(mix == 1, new, old + mix * (new - old)), state.reference, state.params["policy"]
    )
    return state.replace(reference=moved)


def _learn(
    state: TrainState,
    batch: Batch,
    trained: TrainedRows,
    key: Key[Array, ""],
    settings: UpdateSettings,
    model: ActorCritic,
    config: LearnerConfig,
    tx: Optimizer,
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
        if config.tokens.kind != "all":
            current = _with_chosen(current, chosen, jax.random.fold_in(key, number), settings, config, shards)
        loss, grads, metrics = minibatch_gradient(state, current, trained, chosen, settings, model, config, shards)
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
        if state.teacher is not None:
            rate = jnp.where(good, settings.numbers["distillation.ema_rate"], 0.0)
            teacher = distillation.moving_average(state.teacher, state.params["policy"], rate)
            state = state.replace(teacher=teacher)
        if state.average is not None:
            rate = jnp.where(good, settings.average_rate, 0.0)
            average = distillation.moving_average(state.average, state.params["policy"], rate)
            state = state.replace(average=average)
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


def _with_chosen(
    batch: Batch,
    minibatch: Int[Array, " n"],
    key: Key[Array, ""],
    settings: UpdateSettings,
    config: LearnerConfig,
    shards: Shards,
) -> Batch:
    """The batch with the tokens that `config.tokens` chooses among those of a minibatch, the rows of these numbers."""
    here = shards.put_rows(jnp.zeros(len(batch.mask), bool), jnp.ones(len(minibatch), bool), minibatch)
    row = shards.block(jnp.arange(len(batch.mask) * shards.count))
    chosen = token_rules.chosen_tokens(
        config.tokens,
        settings.of("tokens"),
        batch.mask & here[:, None],
        entropy=batch.before.entropy,
        logprob=batch.before.old_logprob,
        advantage=batch.advantage,
        draws=jax.vmap(lambda row: jax.random.bits(jax.random.fold_in(key, row), batch.mask.shape[1:]))(row),
        devices=shards,
    )
    return shards.after(chosen, batch.replace(chosen=chosen, before=batch.before.replace(entropy=None)))


def minibatch_gradient(
    state: TrainState,
    batch: Batch,
    trained: TrainedRows,
    chosen: Int[Array, " n"],
    settings: UpdateSettings,
    model: ActorCritic,
    config: LearnerConfig,
    shards: Shards,
) -> tuple[Float[Array, ""], Any, dict[str, Float[Array, ""]]]:
    """Loss, gradient and metrics of the minibatch of the chosen rows, see `gradient.gradient`."""
    denominators = _denominators(trained, chosen)

    def loss_of(scores, rows):
        if config.packing:  # else they were fetched, and are this device's
            rows = rows.replace(replayed_logprob=shards.varying_rows(rows.replayed_logprob))
        return _loss(scores, rows, denominators, settings, config)

    return gradient(
        state,
        batch,
        chosen,
        trained.length[chosen],
        loss_of,
        config.step_shape,
        tokens=denominators.tokens,
        model=model,
        shards=shards,
        full_divergence=config.kl.estimator == "full",
        teaching=_teaching(model, config),
    )


def _teaching(model: ActorCritic, config: LearnerConfig) -> Teaching | None:
    """How the teacher of the rule scores tokens; None without one."""
    rule, shared = config.distillation, model.shared_prefix_len
    if rule.kind == "none":
        return None
    return Teaching(rule.teacher, rule.loss == "full", min(shared, config.hint_at) if rule.has_plans else shared)


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
    if batch.weight is not None:
        weights *= batch.weight[:, None]
    inputs = losses.ObjectiveInputs(
        logprob=logprob,
        old_logprob=jax.lax.stop_gradient(logprob) if before.old_logprob is None else before.old_logprob,
        behavior_logprob=batch.behavior_logprob,
        advantage=batch.advantage,
        mask=mask,
        entropy=scores.entropy,
    )
    policy, stats = losses.objective(inputs, config.objective, settings.of("objective"))
    if before.importance is not None:
        policy = policy * before.importance
    if batch.chosen is not None:
        old, rule = inputs.old_logprob, config.tokens
        policy = token_rules.changed_loss(policy, batch.chosen, logprob, old, rule, settings.of("tokens"))
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
    if batch.chosen is not None:
        sums["actor/chosen_tokens"] = masked.total(batch.chosen.astype(jnp.float32), mask)
    if config.distillation.kind == "self":
        of_teacher, measured = _distilled(config.distillation, scores, logprob, before)
        if batch.teacher is not None:
            measured["taught"] = batch.teacher.mask.astype(jnp.float32)
            of_teacher = of_teacher * measured["taught"]
        weight = settings.of("distillation")
        loss = weight["rl_coef"] * loss + weight["coef"] * jnp.sum(of_teacher * weights)
        sums |= {f"distill/{name}": masked.total(x, mask) for name, x in measured.items()}
    peaks: dict[str, jax.Array] = {}
    _add_gaps("rollout/logprob", logprob, batch, sums, peaks)
    if batch.replayed_logprob is not None:
        _add_gaps("rollout/parallel", scores.logprob, batch, sums, peaks)
    if config.advantage.has_critic:
        clip = config.advantage.value_clip
        value, clipped = losses.value_loss(scores.value, before.value, batch.target, clip=clip)
        value_weights = losses.token_weights(mask, "token_mean", denominators, norm_length=mask.shape[1])
        if batch.weight is not None:
            value_weights *= batch.weight[:, None]
        loss += settings.numbers[f"advantage.{config.advantage.of_critic}value_coef"] * jnp.sum(value * value_weights)
        sums["critic/value_loss"] = masked.total(value, mask)
        sums["critic/clip_fraction"] = masked.total(clipped.astype(jnp.float32), mask)
    if config.kl.kind != "none":
        divergence = scores.distance
        if divergence is None:
            divergence = kl.estimate(logprob, before.ref_logprob, config.kl.estimator)
        sums["actor/kl"] = masked.total(divergence, mask)
        if config.kl.apply_to == "loss":
            loss += settings.numbers["kl.coef"] * jnp.sum(divergence * weights)
    return loss, (sums, peaks)


def _distilled(
    rule: SelfDistillation, scores: TokenScores, logprob: Float[Array, "N K"], before: RowScores
) -> tuple[Float[Array, "N K"], dict[str, Float[Array, "N K"]]]:
    """The distillation loss of each token, and what is measured of it; `logprob` is that of the policy's loss.

    The gap is that of two parallel forward passes, so that it is 0 where the teacher reads what the student reads.
    """
    assert scores.teacher_logprob is not None
    gap = distillation.gap(scores.logprob, scores.teacher_logprob)
    divergence = scores.teacher_distance
    if divergence is None:
        old = jax.lax.stop_gradient(logprob) if before.old_logprob is None else before.old_logprob
        loss = distillation.sampled_loss(logprob, old, gap, cap=rule.ratio_cap)
        if before.importance is not None:
            loss = loss * before.importance
    else:
        loss = divergence
    measured = {"kl": -gap if divergence is None else divergence, "gap": jnp.abs(gap)}
    if rule.gate == "sdar":
        measured["gate"] = distillation.gate(gap, rule.gate_slope)
        loss = loss * measured["gate"]
    return loss, measured


def _add_gaps(
    name: str, logprob: Float[Array, "N K"], batch: Batch, sums: dict[str, jax.Array], peaks: dict[str, jax.Array]
) -> None:
    """Adds metrics of the difference between log-probabilities and those of the rollout; names end as in `_GAPS`."""
    gap = jnp.abs(logprob - batch.behavior_logprob)
    bits, behavior_bits = (jax.lax.bitcast_convert_type(x, jnp.int32) for x in (logprob, batch.behavior_logprob))
    sums[f"{name}_gap_mean"] = masked.total(gap, batch.mask)
    sums[f"{name}_bit_equal"] = masked.count((bits == behavior_bits) & batch.mask)
    peaks[f"{name}_gap_max"] = masked.largest(gap, batch.mask)
