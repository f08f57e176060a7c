"""From trajectories to the rows that gradient steps read: rewards, filter, values, advantages.

Letters: `E` episodes in `Gr` groups of `M` members, `T` turns, `N` rows of `S` tokens with `K` slots for sampled ones
(see `rollout.context.Sequences`).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from agentrl_jax.algos import advantages as estimators
from agentrl_jax.algos import diagnostics, filters, kl
from agentrl_jax.algos import rewards as reward_rules
from agentrl_jax.models import actor_critic
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.context import Sequences, assemble
from agentrl_jax.rollout.metrics import trajectory_metrics
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.train.settings import LearnerConfig, UpdateSettings
from agentrl_jax.train.state import TrainState


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


def make_batch(
    state: TrainState,
    trajectory: Trajectory,
    temperature: jax.Array,
    settings: UpdateSettings,
    model: ActorCritic,
    config: LearnerConfig,
    shards: Shards,
) -> tuple[Batch, dict[str, jax.Array]]:
    """Chooses what is learned from and works out what each of its tokens is worth; arguments as `learner.update`.

    Returns:
        The rows of the kept groups, those without a sampled token last, and metrics f32[] of rollout and critic.

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
    return batch, metrics | news


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
