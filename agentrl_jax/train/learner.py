"""The update: trajectories in, a new state out, in one program.

Letters: `E` episodes in `Gr` groups of `M` members, `T` turns, `N` rows of `S` tokens with `K` slots for sampled ones
(see `rollout.context.Sequences`), of which a minibatch holds `n` rows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from agentrl_jax.algos import advantages as estimators
from agentrl_jax.algos import diagnostics, filters, kl, losses, masked
from agentrl_jax.algos import rewards as reward_rules
from agentrl_jax.models import actor_critic
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.context import Sequences, assemble
from agentrl_jax.rollout.metrics import trajectory_metrics
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.train.state import TrainState, apply_gradients


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """What fixes the program of an update. Numbers that may move are in `UpdateSettings`.

    Attributes:
        task_names: name of each task, for the metrics.
        members: M.
        context: "full" or "single_turn", as in the rollout.
        advantage: "gae" or "grpo".
        grpo_std: divide the group-relative return by the group's standard deviation.
        whiten: whiten advantages over the batch.
        dual_clip: bound for negative advantages; None for none.
        value_clip: None for none.
        kl_kind: estimator of `agentrl_jax.algos.kl`.
        kl_where: "none", "loss" or "reward".
        aggregation: mode of `losses.token_weights`.
        reward_placement: "episode" or "turn".
        reward_normalisation: method of `rewards.normalise`.
        filter_ratio: share of groups kept.
        filter_kind: "std" keeps the groups with the largest spread of returns, "std_rev" the smallest.
        epochs, minibatches, accumulation: passes, gradient steps per pass, parts of a minibatch.
    """

    task_names: tuple[str, ...]
    members: int
    context: str
    advantage: str
    grpo_std: bool
    whiten: bool
    dual_clip: float | None
    value_clip: float | None
    kl_kind: kl.Kind
    kl_where: str
    aggregation: losses.Aggregation
    reward_placement: reward_rules.Placement
    reward_normalisation: reward_rules.Normalisation
    filter_ratio: float
    filter_kind: str
    epochs: int
    minibatches: int
    accumulation: int


class UpdateSettings(struct.PyTreeNode):
    """Traced numbers of an update, all f32[]: changing one compiles nothing."""

    lr: jax.Array
    critic_lr: jax.Array
    max_grad_norm: jax.Array
    clip_low: jax.Array
    clip_high: jax.Array
    value_coef: jax.Array
    entropy_coef: jax.Array
    kl_coef: jax.Array
    gamma: jax.Array
    lam: jax.Array
    format_penalty: jax.Array


class Batch(struct.PyTreeNode):
    """What a gradient step reads of each row.

    Attributes:
        tokens: i32[N, S].
        position: i32[N, K] of the slots' tokens.
        mask: bool[N, K] the slot holds a sampled token.
        old_logprob: f32[N, K] behaviour log-probability.
        old_value: f32[N, K].
        ref_logprob: f32[N, K]; 0 where there is no reference.
        advantage: f32[N, K].
        target: f32[N, K] target of the critic.
        temperature: f32[N].
    """

    tokens: jax.Array
    position: jax.Array
    mask: jax.Array
    old_logprob: jax.Array
    old_value: jax.Array
    ref_logprob: jax.Array
    advantage: jax.Array
    target: jax.Array
    temperature: jax.Array


def update(
    state: TrainState,
    trajectory: Trajectory,
    temperature: jax.Array,
    key: jax.Array,
    settings: UpdateSettings,
    *,
    model: ActorCritic,
    config: LearnerConfig,
    optimise: optax.GradientTransformation,
    shards: Shards,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One iteration of learning from E episodes. Pure; meant to be compiled whole.

    With `shards.count` > 1 it runs inside `jax.shard_map`: state, trajectory and settings are replicated, each device
    computes its share of the rows, and the state that comes out is replicated again.

    Args:
        state: before.
        trajectory: E episodes; the rows of a group are contiguous.
        temperature: f32[E] the one each episode was sampled at.
        key: order of the minibatches.
        settings: traced numbers.
        model: shapes of policy and critic.
        config: what fixes the program.
        optimise: the optimiser.
        shards: how rows are shared out.

    Returns:
        The state after, and metrics: f32[] each, and "grad_norm" f32[epochs * minibatches].

    Raises:
        ValueError: the kept rows cannot be divided into minibatches, parts and devices.
    """
    penalty = settings.format_penalty * trajectory.turn.format_error
    rewards = jnp.where(trajectory.played, trajectory.turn.reward + penalty, 0.0)
    rewards, trajectory = _without_void(rewards, trajectory, config.members)
    scores = jnp.sum(rewards, axis=1).reshape(-1, config.members)
    metrics = trajectory_metrics(trajectory, config.task_names, config.members, settings.format_penalty)
    metrics = {f"train/{name}": x for name, x in metrics.items()}
    metrics |= {f"rollout/{name}": x for name, x in diagnostics.group_metrics(scores).items()}

    episodes = _kept_episodes(scores, config)
    trajectory, temperature, rewards = jax.tree.map(lambda x: x[episodes], (trajectory, temperature, rewards))
    scores = jnp.sum(rewards, axis=1).reshape(-1, config.members)
    metrics |= {f"rollout/chosen_{name}": x for name, x in diagnostics.group_metrics(scores).items()}

    rewards = _normalised(rewards, trajectory, config)
    rows = assemble(trajectory, rewards, config.context, config.reward_placement)
    # Rows with nothing to learn from go last, where whole parts of them are skipped.
    rows = jax.tree.map(lambda x: x[jnp.argsort(~jnp.any(rows.sampled, axis=1), stable=True)], rows)
    batch, news = _prepare(state, rows, temperature[rows.episode], scores, settings, model, config, shards)
    metrics |= news
    state, news = _learn(state, batch, key, settings, model, config, optimise, shards)
    return state.replace(iteration=state.iteration + 1), metrics | news


def _without_void(rewards: jax.Array, trajectory: Trajectory, members: int) -> tuple[jax.Array, Trajectory]:
    """Takes episodes whose environment broke out of learning: no token is trained, and the group does not see them.

    Their return becomes the mean of the group's intact members, so that spread and baseline are those of the others.
    """
    void = jnp.any(trajectory.turn.failed, axis=1)
    scores = jnp.sum(rewards, axis=1).reshape(-1, members)
    intact = ~void.reshape(-1, members)
    mean = jnp.sum(jnp.where(intact, scores, 0.0), axis=1) / jnp.maximum(jnp.sum(intact, axis=1), 1)
    first = jnp.arange(rewards.shape[1]) == 0
    stand_in = jnp.repeat(mean, members)[:, None] * first
    length = jnp.where(void[:, None], 0, trajectory.reply.length)
    trajectory = trajectory.replace(reply=trajectory.reply.replace(length=length))
    return jnp.where(void[:, None], stand_in, rewards), trajectory


def _kept_episodes(scores: jax.Array, config: LearnerConfig) -> jax.Array:
    groups = scores.shape[0]
    kept = filters.kept_groups(groups, config.filter_ratio)
    if kept == groups:
        return jnp.arange(groups * config.members)
    chosen = filters.top_groups(filters.group_scores(scores, "std"), kept, largest=config.filter_kind == "std")
    return (chosen[:, None] * config.members + jnp.arange(config.members)).reshape(-1)


def _normalised(rewards: jax.Array, trajectory: Trajectory, config: LearnerConfig) -> jax.Array:
    """Rewards [E, T]; under a normalisation the whole normalised return stands at the last turn."""
    if config.reward_normalisation == "identity":
        return rewards
    groups = rewards.shape[0] // config.members
    group = jnp.repeat(jnp.arange(groups), config.members)
    scores = reward_rules.normalise(jnp.sum(rewards, axis=1), group, groups, config.reward_normalisation)
    last = jnp.arange(rewards.shape[1]) == trajectory.num_turns[:, None] - 1
    return jnp.where(last, scores[:, None], 0.0)


def _prepare(
    state: TrainState,
    rows: Sequences,
    temperature: jax.Array,
    scores: jax.Array,
    settings: UpdateSettings,
    model: ActorCritic,
    config: LearnerConfig,
    shards: Shards,
) -> tuple[Batch, dict[str, jax.Array]]:
    """Values, reference log-probabilities and advantages of all kept rows."""
    _check_division(rows.tokens.shape[0], config, shards)
    mask = rows.sampled
    mine, my_mask, my_temperature = shards.local(((rows.tokens, rows.position), mask, temperature))
    parts = config.minibatches * config.accumulation
    params, reference = shards.varying((state.params, state.reference))
    value = ref_logprob = jnp.zeros(mask.shape, jnp.float32)
    if config.advantage == "gae":
        value = shards.replicate(_in_parts(lambda *r: actor_critic.values(params, model, *r), my_mask, mine, parts))
    if config.kl_where != "none":
        tempered = (*mine, my_temperature)
        ref_logprob = shards.replicate(
            _in_parts(lambda *r: actor_critic.logprobs(reference, model, *r), my_mask, tempered, parts)
        )

    rewards = reward_rules.place_rewards(rows.turn_reward, rows.turn_last, mask.shape[1], config.reward_placement)
    if config.kl_where == "reward":
        rewards -= settings.kl_coef * jnp.where(mask, kl.estimate(rows.logprob, ref_logprob, config.kl_kind), 0.0)
    if config.advantage == "gae":
        advantage, target = estimators.gae(rewards, value, mask, gamma=settings.gamma, lam=settings.lam)
    else:
        per_episode = estimators.group_advantages(scores, normalise_std=config.grpo_std).reshape(-1)
        advantage = jnp.where(mask, per_episode[rows.episode][:, None], 0.0)
        target = jnp.zeros_like(advantage)
    metrics = {f"critic/advantage_{k}": x for k, x in diagnostics.masked_stats(advantage, mask).items()}
    if config.advantage == "gae":
        metrics |= {f"critic/value_{k}": x for k, x in diagnostics.masked_stats(value, mask).items()}
        metrics |= {f"critic/return_{k}": x for k, x in diagnostics.masked_stats(target, mask).items()}
        metrics["critic/explained_variance"] = diagnostics.explained_variance(value, target, mask)
    if config.whiten:
        advantage = estimators.whiten(advantage, mask)
    metrics["update/trained_tokens"] = jnp.sum(mask, dtype=jnp.float32)
    batch = Batch(
        tokens=rows.tokens,
        position=rows.position,
        mask=mask,
        old_logprob=rows.logprob,
        old_value=value,
        ref_logprob=ref_logprob,
        advantage=advantage,
        target=target,
        temperature=temperature,
    )
    return batch, metrics


def _in_parts(
    function: Callable[..., jax.Array], mask: jax.Array, rows: tuple[jax.Array, ...], parts: int
) -> jax.Array:
    """A function of rows to f32[N, K], in as many parts as the gradient; 0 for parts without a sampled token."""

    def of_part(part):
        mask, *rows = part
        return jax.lax.cond(jnp.any(mask), lambda: function(*rows), lambda: jnp.zeros_like(mask, jnp.float32))

    split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), (mask, *rows))
    return jax.lax.map(of_part, split).reshape(mask.shape)


def _check_division(rows: int, config: LearnerConfig, shards: Shards) -> None:
    parts = config.minibatches * config.accumulation * shards.count
    if rows % parts:
        raise ValueError(
            f"{rows} kept rows cannot be divided into {config.minibatches} minibatches x {config.accumulation} parts x "
            f"{shards.count} devices; choose groups, members, filter_ratio and these so that {parts} divides the rows"
        )


def _learn(
    state: TrainState,
    batch: Batch,
    key: jax.Array,
    settings: UpdateSettings,
    model: ActorCritic,
    config: LearnerConfig,
    optimise: optax.GradientTransformation,
    shards: Shards,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Epochs of minibatches, each one optimiser step."""
    rows = batch.tokens.shape[0]
    useful = jnp.any(batch.mask, axis=1)

    def epoch_order(epoch):
        # A single minibatch keeps the order of the groups; shuffling it would only change rounding.
        order = jnp.arange(rows)
        if config.minibatches > 1:
            order = jax.random.permutation(jax.random.fold_in(key, epoch), order)
        # Rows with nothing to learn from go last again, evenly over the minibatches.
        order = order[jnp.argsort(~useful[order], stable=True)]
        return order.reshape(-1, config.minibatches).T

    order = jax.vmap(epoch_order)(jnp.arange(config.epochs)).reshape(-1, rows // config.minibatches)

    def step(state, chosen):
        part = jax.tree.map(lambda x: x[chosen], batch)
        loss, grads, metrics = _gradient(state.params, part, settings, model, config, shards)
        state, norm, good = apply_gradients(
            state,
            optimise,
            loss,
            grads,
            lr=settings.lr,
            critic_lr=settings.critic_lr,
            max_grad_norm=settings.max_grad_norm,
        )
        return state, metrics | {"actor/grad_norm": norm, "update/skipped": (~good).astype(jnp.float32), "loss": loss}

    state, per_step = jax.lax.scan(step, state, order)
    metrics = {name: jnp.mean(x) for name, x in per_step.items() if name != "update/skipped"}
    metrics["grad_norm"] = per_step["actor/grad_norm"]
    metrics["actor/grad_norm_max"] = jnp.max(per_step["actor/grad_norm"])
    metrics["update/skipped"] = jnp.sum(per_step["update/skipped"])
    # Before the first step nothing has moved: what is left is the difference between the two forward passes.
    metrics["rollout/logprob_gap_mean"] = per_step["rollout/logprob_gap_mean"][0]
    return state, metrics


def _gradient(
    params: Any, batch: Batch, settings: UpdateSettings, model: ActorCritic, config: LearnerConfig, shards: Shards
) -> tuple[jax.Array, Any, dict[str, jax.Array]]:
    """Loss, gradient and metrics of one minibatch of n rows, in `accumulation` parts on each device.

    The denominators are those of the whole minibatch, so neither parts nor devices change the result.
    """
    denominators = losses.count(batch.mask)
    mine = shards.local(batch)
    parts = jax.tree.map(lambda x: x.reshape(config.accumulation, -1, *x.shape[1:]), mine)
    varying = shards.varying(params)

    def loss_of(params, part):
        return _loss(params, part, denominators, settings, model, config)

    def gradient_of(part):
        (loss, sums), grads = jax.value_and_grad(loss_of, has_aux=True)(varying, part)
        return loss, grads, sums

    shapes = jax.eval_shape(gradient_of, jax.tree.map(lambda x: x[0], parts))
    nothing = shards.varying(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))

    def accumulate(total, part):
        news = jax.lax.cond(jnp.any(part.mask), gradient_of, lambda _: nothing, part)
        return jax.tree.map(jnp.add, total, news), None

    (loss, grads, sums), _ = jax.lax.scan(accumulate, nothing, parts)
    loss, grads, sums = shards.sum((loss, grads, sums))
    tokens = jnp.maximum(denominators.tokens, 1.0)
    metrics = {name: x / tokens for name, x in sums.items()}
    return loss, grads, metrics


def _loss(
    params: Any,
    batch: Batch,
    denominators: losses.Denominators,
    settings: UpdateSettings,
    model: ActorCritic,
    config: LearnerConfig,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """A part's share of the loss, and sums over its tokens for the metrics."""
    scores = actor_critic.score_tokens(params, model, batch.tokens, batch.position, batch.temperature)
    mask = batch.mask
    weights = losses.token_weights(mask, config.aggregation, denominators, norm_length=mask.shape[1])
    policy, stats = losses.policy_loss(
        scores.logprob,
        batch.old_logprob,
        batch.advantage,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        dual_clip=config.dual_clip,
    )
    loss = jnp.sum(policy * weights) - settings.entropy_coef * jnp.sum(scores.entropy * weights)
    sums = {
        "actor/policy_loss": masked.total(policy, mask),
        "actor/entropy": masked.total(scores.entropy, mask),
        "actor/clip_share": masked.total(stats.clipped.astype(jnp.float32), mask),
        "actor/dual_clip_share": masked.total(stats.clipped_low.astype(jnp.float32), mask),
        "actor/ppo_kl": masked.total(-stats.log_ratio, mask),
        "actor/ratio_mean": masked.total(stats.ratio, mask),
        "rollout/logprob_mean": masked.total(batch.old_logprob, mask),
        "rollout/logprob_gap_mean": masked.total(jnp.abs(scores.logprob - batch.old_logprob), mask),
    }
    if config.advantage == "gae":
        value, clipped = losses.value_loss(scores.value, batch.old_value, batch.target, clip=config.value_clip)
        value_weights = losses.token_weights(mask, "token_mean", denominators, norm_length=mask.shape[1])
        loss += settings.value_coef * jnp.sum(value * value_weights)
        sums["critic/value_loss"] = masked.total(value, mask)
        sums["critic/clip_share"] = masked.total(clipped.astype(jnp.float32), mask)
    if config.kl_where != "none":
        divergence = kl.estimate(scores.logprob, batch.ref_logprob, config.kl_kind)
        sums["actor/kl"] = masked.total(divergence, mask)
        if config.kl_where == "loss":
            loss += settings.kl_coef * jnp.sum(divergence * weights)
    return loss, sums
