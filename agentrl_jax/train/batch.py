"""From trajectories to the rows that gradient steps read: rewards, filter, values, advantages.

Letters: `E` episodes in `Gr` groups of `M` members, `T` turns, `N` rows of `S` tokens with `K` slots for sampled ones
(see `rollout.context.Sequences`).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
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
from agentrl_jax.train.settings import LearnerConfig, UpdateSettings
from agentrl_jax.train.state import TrainState
from agentrl_jax.train.strict import Replayer


class Batch(struct.PyTreeNode):
    """What a gradient step reads of each row.

    Attributes:
        tokens: i32[N, S].
        position: i32[N, K] of the slots' tokens.
        mask: bool[N, K] the slot holds a sampled token.
        behaviour_logprob: f32[N, K] log-probability by the rollout.
        old_logprob: f32[N, K] the one that the ratio of the policy loss starts from: the behaviour's, or the learner's
            own where an importance weight stands between the two.
        importance: f32[N, K] that weight; None where there is none.
        replayed_logprob: f32[N, K] by a replay with the present parameters; None where the learner is not strict.
        old_value: f32[N, K].
        ref_logprob: f32[N, K]; 0 where there is no reference.
        advantage: f32[N, K].
        target: f32[N, K] target of the critic.
        temperature: f32[N].
        source: i32[N] number of the row among those of all episodes, kept or not.
    """

    tokens: jax.Array
    position: jax.Array
    mask: jax.Array
    behaviour_logprob: jax.Array
    old_logprob: jax.Array
    importance: jax.Array | None
    replayed_logprob: jax.Array | None
    old_value: jax.Array
    ref_logprob: jax.Array
    advantage: jax.Array
    target: jax.Array
    temperature: jax.Array
    source: jax.Array


def make_batch(
    state: TrainState,
    trajectory: Trajectory,
    temperature: jax.Array,
    settings: UpdateSettings,
    model: ActorCritic,
    config: LearnerConfig,
    shards: Shards,
    replay: Replayer | None,
) -> tuple[Batch, dict[str, jax.Array]]:
    """Chooses what is learned from and works out what each of its tokens is worth.

    Args:
        state: as the following, see `learner.update`.
        trajectory: E episodes.
        temperature: f32[E].
        settings: traced numbers.
        model: shapes.
        config: what fixes the program.
        shards: how rows are shared out.
        replay: of these episodes; None where the learner is not strict.

    Returns:
        The rows of the kept groups, those without a sampled token last, and metrics f32[] of rollout and critic.

    Raises:
        ValueError: the kept rows cannot be divided into minibatches, parts and devices.
    """
    penalty = settings.format_penalty * trajectory.turn.format_error
    rewards = jnp.where(trajectory.played, trajectory.turn.reward + penalty, 0.0)
    groups = _groups_of(trajectory, rewards, config.members)
    metrics = trajectory_metrics(trajectory, config.task_names, config.members, settings.format_penalty)
    metrics = {f"train/{name}": x for name, x in metrics.items()}
    metrics |= {f"rollout/{name}": x for name, x in diagnostics.group_metrics(*groups).items()}

    episodes = _kept_episodes(groups, config)
    kept, temperature, rewards = jax.tree.map(lambda x: x[episodes], (trajectory, temperature, rewards))
    groups = _groups_of(kept, rewards, config.members)
    metrics |= {f"rollout/chosen_{name}": x for name, x in diagnostics.group_metrics(*groups).items()}

    # No token of an episode whose environment broke is trained.
    length = jnp.where(kept.failed[:, None], 0, kept.reply.length)
    learnable = kept.replace(reply=kept.reply.replace(length=length))
    rows = assemble(learnable, _normalised(rewards, kept, config), config.context, config.reward_placement)
    of_episode = rows.tokens.shape[0] // episodes.shape[0]
    source = (episodes[:, None] * of_episode + jnp.arange(of_episode)).reshape(-1)
    # Rows with nothing to learn from go last, where whole parts of them are skipped.
    order = jnp.argsort(~jnp.any(rows.sampled, axis=1), stable=True)
    rows, source = jax.tree.map(lambda x: x[order], (rows, source))
    batch, of_rows = _prepare(
        state, rows, source, temperature[rows.episode], groups, settings, model, config, shards, replay
    )
    return batch, metrics | of_rows


class _Groups(NamedTuple):
    """What is compared inside groups: returns with penalties f32[Gr, M], and bool[Gr, M] whether each counts."""

    scores: jax.Array
    intact: jax.Array


def _groups_of(trajectory: Trajectory, rewards: jax.Array, members: int) -> _Groups:
    return _Groups(jnp.sum(rewards, axis=1).reshape(-1, members), ~trajectory.failed.reshape(-1, members))


def _kept_episodes(groups: _Groups, config: LearnerConfig) -> jax.Array:
    number = groups.scores.shape[0]
    kept = filters.kept_groups(number, config.filter_ratio)
    if kept == number:
        return jnp.arange(number * config.members)
    chosen = filters.top_groups(filters.group_scores(*groups, "std"), kept, largest=config.filter_kind == "std")
    return (chosen[:, None] * config.members + jnp.arange(config.members)).reshape(-1)


def _normalised(rewards: jax.Array, trajectory: Trajectory, config: LearnerConfig) -> jax.Array:
    """Rewards [E, T]; under a normalisation the whole normalised return stands at the last turn."""
    if config.reward_normalisation == "identity":
        return rewards
    groups = rewards.shape[0] // config.members
    # Episodes whose environment broke stand in a group of their own, where no other is compared with them.
    group = jnp.where(trajectory.failed, groups, jnp.repeat(jnp.arange(groups), config.members))
    scores = reward_rules.normalise(jnp.sum(rewards, axis=1), group, groups + 1, config.reward_normalisation)
    last = jnp.arange(rewards.shape[1]) == trajectory.num_turns[:, None] - 1
    return jnp.where(last, scores[:, None], 0.0)


def _prepare(
    state: TrainState,
    rows: Sequences,
    source: jax.Array,
    temperature: jax.Array,
    groups: _Groups,
    settings: UpdateSettings,
    model: ActorCritic,
    config: LearnerConfig,
    shards: Shards,
    replay: Replayer | None,
) -> tuple[Batch, dict[str, jax.Array]]:
    """Values, reference log-probabilities and advantages of all kept rows."""
    _check_division(rows.tokens.shape[0], config, shards)
    mask = rows.sampled
    mine, my_mask, my_temperature = shards.local(((rows.tokens, rows.position), mask, temperature))
    in_parts = functools.partial(_in_parts, parts=config.minibatches * config.accumulation, shards=shards)
    params, reference = shards.varying((state.whole(), state.reference))
    value = ref_logprob = jnp.zeros(mask.shape, jnp.float32)
    if config.advantage == "gae":
        value = shards.replicate(in_parts(lambda *r: actor_critic.values(params, model, *r), my_mask, mine))
        params, reference = shards.after(value, (params, reference))

    def by_forward(policy):
        tempered = (*mine, my_temperature)
        return shards.replicate(
            in_parts(lambda *r: actor_critic.logprobs({**params, "policy": policy}, model, *r), my_mask, tempered)
        )

    if config.kl_where != "none":
        ref_logprob = by_forward(reference) if replay is None else replay({**params, "policy": reference})[source]
        params = shards.after(ref_logprob, params)
    old_logprob, importance = rows.logprob, None
    if config.logprobs == "truncated":
        old_logprob = by_forward(params["policy"])
        importance, truncated = losses.importance_weights(old_logprob, rows.logprob, config.importance_cap)

    has_tokens = jnp.any(mask, axis=1)
    metrics = {
        "update/trained_tokens": masked.count(mask),
        "update/row_tokens_mean": masked.moments(rows.length.astype(jnp.float32), has_tokens)[0],
        "update/row_tokens_max": masked.largest(rows.length.astype(jnp.float32), has_tokens),
    }
    if config.kl_where != "none":
        metrics["rollout/ref_logprob_mean"] = masked.moments(ref_logprob, mask)[0]
    if importance is not None:
        metrics["rollout/importance_weight_mean"] = masked.moments(importance, mask)[0]
        metrics["rollout/importance_truncated"] = masked.moments(truncated.astype(jnp.float32), mask)[0]
    rewards = reward_rules.place_rewards(rows.turn_reward, rows.turn_last, mask.shape[1], config.reward_placement)
    if config.kl_where == "reward":
        divergence = jnp.where(mask, kl.estimate(old_logprob, ref_logprob, config.kl_kind), 0.0)
        rewards -= settings.kl_coef * divergence
        metrics["actor/reward_kl_penalty"] = masked.moments(divergence, mask)[0]
    if config.advantage == "gae":
        advantage, target = estimators.gae(rewards, value, mask, gamma=settings.gamma, lam=settings.lam)
    else:
        per_episode = estimators.group_advantages(*groups, normalise_std=config.grpo_std).reshape(-1)
        advantage = jnp.where(mask, per_episode[rows.episode][:, None], 0.0)
        target = jnp.zeros_like(advantage)
    earned = jnp.sum(rewards, axis=1)
    metrics |= {f"critic/reward_{k}": x for k, x in diagnostics.masked_stats(earned, has_tokens).items()}
    metrics |= {f"critic/advantage_{k}": x for k, x in diagnostics.masked_stats(advantage, mask).items()}
    if config.advantage == "gae":
        metrics |= {f"critic/value_{k}": x for k, x in diagnostics.masked_stats(value, mask).items()}
        metrics |= {f"critic/return_{k}": x for k, x in diagnostics.masked_stats(target, mask).items()}
        metrics["critic/explained_variance"] = diagnostics.explained_variance(value, target, mask)
    if config.whiten:
        advantage = estimators.whiten(advantage, mask)
    batch = Batch(
        tokens=rows.tokens,
        position=rows.position,
        mask=mask,
        behaviour_logprob=rows.logprob,
        old_logprob=old_logprob,
        importance=importance,
        replayed_logprob=None,
        old_value=value,
        ref_logprob=ref_logprob,
        advantage=advantage,
        target=target,
        temperature=temperature,
        source=source,
    )
    return batch, metrics


def _in_parts(
    function: Callable[..., jax.Array], mask: jax.Array, rows: tuple[jax.Array, ...], parts: int, shards: Shards
) -> jax.Array:
    """A function of rows to f32[N, K], in as many parts as the gradient; 0 for parts without a sampled token."""

    def of_part(part):
        mask, *rows = part
        return jax.lax.cond(shards.any(mask), lambda: function(*rows), lambda: jnp.zeros_like(mask, jnp.float32))

    split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), (mask, *rows))
    return jax.lax.map(of_part, split).reshape(mask.shape)


def _check_division(rows: int, config: LearnerConfig, shards: Shards) -> None:
    parts = config.minibatches * config.accumulation * shards.count
    if rows % parts:
        raise ValueError(
            f"{rows} kept rows cannot be divided into {config.minibatches} minibatches x {config.accumulation} parts x "
            f"{shards.count} devices; choose groups, members, filter_ratio and these so that {parts} divides the rows"
        )
