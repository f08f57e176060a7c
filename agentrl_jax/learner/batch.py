"""Builds the rows for gradient steps from trajectories: rewards, filter, advantages.

A device holds a contiguous block of the episodes, as in the rollout, and their rows. Only numbers of an episode or of a
row are exchanged here; `learner.row_scores` and `learner.update` fetch the rows of a microbatch from their devices.

Shapes: `E` episodes of a device in `Gr` groups of `M` episodes, `T` turns, `N` rows of `S` tokens with `K` response
positions (see `rollout.packing.Sequences`).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.algos import diagnostics, filters, gigpo, kl, masked
from agentrl_jax.algos.advantages import whiten
from agentrl_jax.algos.estimate import AdvantageInputs, estimate
from agentrl_jax.algos.rewards import normalize, place_rewards
from agentrl_jax.errors import BadValue
from agentrl_jax.learner.gradient import TeacherRows
from agentrl_jax.learner.measures import Groups, groups_of, measure
from agentrl_jax.learner.replay_logprobs import Replayer
from agentrl_jax.learner.row_scores import RowScores, score_rows
from agentrl_jax.learner.settings import LearnerConfig, UpdateSettings
from agentrl_jax.learner.state import TrainState
from agentrl_jax.learner.trained_rows import TrainedRows, trained_rows
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.hints import Hints, with_hints
from agentrl_jax.rollout.packing import Layout, Sequences, final_states, layout, pack_trajectories
from agentrl_jax.rollout.returns import RewardRule, overlong, part_values, total_returns, turn_rewards
from agentrl_jax.rollout.trajectory import TRUNCATIONS, Trajectory


class Batch(struct.PyTreeNode):
    """Inputs of the gradient steps: the rows, one per context, of the episodes that this device holds."""

    tokens: Int[Array, "N S"]
    position: Int[Array, "N K"]
    """Index in `tokens` of each response position."""
    mask: Bool[Array, "N K"]
    """The response position holds a token to train on."""
    behavior_logprob: Float[Array, "N K"]
    """Log-probability computed by the rollout."""
    replayed_logprob: Float[Array, "N K"] | None
    """From a replay with the current parameters; None unless `mismatch` is replay."""
    before: RowScores
    """Scores of the rows before the update."""
    advantage: Float[Array, "N K"]
    target: Float[Array, "N K"]
    """Target of the critic."""
    temperature: Float[Array, " N"]
    weight: Float[Array, " N"] | None = None
    """Factor on the losses of a row; None: 1."""
    chosen: Bool[Array, "N K"] | None = None
    """The tokens that `algo.tokens` chose for this step; None if it treats all alike."""
    teacher: TeacherRows | None = None
    """What the teacher reads; None: the rows of the student, or there is no teacher."""
    segment: None = None
    """A row is one context."""


class _Episodes(NamedTuple):
    """The episodes of this device."""

    trajectory: Trajectory
    groups: Groups
    """Their returns, and which of them are trained on."""
    rewards: Float[Array, "E T"]
    """Reward of each turn, penalties and parts included."""
    trained_tokens: Int[Array, "E T"]
    """Number of trained tokens of each turn."""
    baseline: Float[Array, " Gr"] | None
    """Return of the greedy episode of each group; None if nothing reads it."""
    final_value: Float[Array, "*E"]
    """The critic's value of the state in which an episode was truncated; 0 where there is none."""
    layout: Layout
    """Of their rows."""


def make_batch(
    state: TrainState,
    trajectory: Trajectory,
    temperature: Float[Array, " E"],
    settings: UpdateSettings,
    model: ActorCritic,
    config: LearnerConfig,
    shards: Shards,
    replay: Replayer | None,
    greedy: Trajectory | None,
    hints: Hints | None = None,
) -> tuple[Batch, TrainedRows, dict[str, Float[Array, ""]]]:
    """Selects the episodes to train on and computes the advantage of each of their tokens.

    Returns the rows of this device's episodes, which rows of all devices to train on, and metrics of rollout and
    critic. The arguments are those of `learner.update.update`; `replay` replays these episodes.

    Raises:
        ValueError: the groups cannot be divided among the devices.
    """
    if len(temperature) % config.group_size:
        raise BadValue.of(
            "group_size",
            config.group_size,
            f"but {len(temperature) * shards.count} episodes in such groups cannot be divided among {shards.count} "
            f"devices; use a multiple of {config.group_size * shards.count}",
        )
    rule = settings.rewards(config.reward_parts)
    rewards = turn_rewards(trajectory, rule)
    groups = groups_of(trajectory, jnp.sum(rewards, axis=1), config.group_size)
    means = shards.sum(measure(trajectory, groups, config.task_names, rule))
    metrics = {name: x.value for name, x in means.items()}
    over = overlong(trajectory, rule)
    metrics["rollout/overlong"] = masked.moments(over, trajectory.turn_mask, shards)[0]
    chosen, most = _choose_episodes(trajectory, groups, settings, config, shards)
    baseline = None
    if greedy is not None:
        # Without the baseline of a greedy episode that failed, a group has nothing to learn from.
        returns = jnp.where(greedy.failed, jnp.nan, total_returns(greedy, rule))
        baseline = shards.block(returns)
        chosen &= jnp.isfinite(baseline)[:, None]
    groups = groups._replace(valid=groups.valid & chosen)
    means = shards.sum(diagnostics.group_means(*groups))
    metrics |= {f"rollout/chosen_{name}": x.value for name, x in means.items()}
    solved = trajectory.success.astype(jnp.float32).reshape(chosen.shape)
    metrics["rollout/chosen_success"] = shards.sum(masked.mean(solved, groups.valid)).value
    metrics["rollout/filter_kept_groups"] = masked.count(jnp.any(groups.valid, axis=1), shards)
    if config.normalize_rewards == "group":
        groups = groups._replace(scores=_normalized_sums(trajectory, groups, rule))

    # Episodes that were filtered out, whose environment failed, or that are skipped have no trained tokens.
    learned = groups.valid.reshape(-1) & ~_skipped(trajectory, config)
    trained_tokens = jnp.where(learned[:, None], trajectory.response.length, 0)
    learnable = trajectory.replace(response=trajectory.response.replace(length=trained_tokens))
    rows = pack_trajectories(learnable, config.context, config.context_tokens)
    rows_per_episode = len(rows.tokens) // len(temperature)
    trained = trained_rows(rows.response_mask, rows.position, most * rows_per_episode, shards)
    final = None
    if config.advantage.bootstrap_truncated:
        final = final_states(trajectory, config.context, config.context_tokens)
        final = final._replace(known=final.known & groups.valid.reshape(-1, 1))
    temperature = temperature[rows.episode]
    rows, final = shards.after(metrics, (rows, final))
    before, final_value, of_scores = score_rows(state, rows, trained, temperature, final, model, config, shards, replay)
    episodes = _Episodes(
        trajectory, groups, rewards, trained_tokens, baseline, final_value, layout(learnable, config.context)
    )
    episodes, rows = shards.after((before, of_scores), (episodes, rows))
    advantage, target, of_advantages = _advantages(episodes, rows, before, settings, config, shards)
    if episodes.layout.turn is not None:
        # A context that restarts more often than its bounds say: not finite, so that the update is skipped.
        lost = shards.sum(jnp.sum(trained_tokens)) - jnp.sum(trained.tokens)
        of_advantages["update/lost_tokens"] = lost.astype(jnp.float32)
        advantage = jnp.where(lost > 0, jnp.nan, advantage)
    batch = Batch(
        tokens=rows.tokens,
        position=rows.position,
        mask=rows.response_mask,
        behavior_logprob=rows.logprob,
        replayed_logprob=None,
        before=before,
        advantage=advantage,
        target=target,
        temperature=temperature,
        weight=_task_weights(trajectory.ids.task[rows.episode], rows, settings, config, shards),
        teacher=_teacher_rows(learnable, hints, config),
    )
    has_tokens, length = jnp.any(batch.mask, axis=1), rows.length.astype(jnp.float32)
    metrics |= {
        "update/trained_tokens": jnp.sum(trained.tokens).astype(jnp.float32),
        "update/row_tokens_mean": masked.moments(length, has_tokens, shards)[0],
        "update/row_tokens_max": masked.largest(length, has_tokens, shards),
    }
    metrics |= of_scores | of_advantages
    # The gradient steps start when all of this is computed, see `Shards.after`.
    return shards.after(metrics, batch), trained, metrics


def _skipped(trajectory: Trajectory, config: LearnerConfig) -> Bool[Array, " E"]:
    """Episodes that count in their groups, but are not trained on."""
    causes = [1 + TRUNCATIONS.index(cause) for cause in config.skip_truncated]
    return jnp.isin(trajectory.truncation, jnp.array(causes, jnp.int32))


def _task_weights(
    task: Int[Array, " N"], rows: Sequences, settings: UpdateSettings, config: LearnerConfig, shards: Shards
) -> Float[Array, " N"] | None:
    """The weight of each row in the losses, by its task; None where all are 1.

    Balanced, tasks with trained tokens share the weight of the batch evenly, by which the weight of all tokens is the
    same as without.
    """
    if not config.weighs_tasks:
        return None
    weights = settings.task_weight
    if config.balance_tasks:
        here = jnp.sum(rows.response_mask, axis=1, dtype=jnp.float32)
        tokens = shards.sum(jax.ops.segment_sum(here, task, len(config.task_names)))
        share = jnp.sum(tokens) / jnp.maximum(jnp.sum(tokens > 0), 1)
        weights = weights * share / jnp.maximum(tokens, 1.0)
    return weights[task]


def _teacher_rows(trajectory: Trajectory, hints: Hints | None, config: LearnerConfig) -> TeacherRows | None:
    """The rows of `pack_trajectories` after prompts with hints; None where the teacher reads none.

    Raises:
        ValueError: there are hints, but no teacher that reads them, or the other way round.
    """
    if (hints is not None) != (config.distillation.kind == "self" and config.distillation.has_plans):
        raise BadValue.of("algo.distillation", config.distillation.kind, "expected hints where the teacher reads plans")
    if hints is None:
        return None
    limit = config.context_tokens and config.context_tokens + hints.tokens.shape[1]
    rows = pack_trajectories(with_hints(trajectory, hints), config.context, limit)
    return TeacherRows(rows.tokens, rows.position, rows.turn < hints.turns[rows.episode][:, None])


def _choose_episodes(
    trajectory: Trajectory, groups: Groups, settings: UpdateSettings, config: LearnerConfig, shards: Shards
) -> tuple[Bool[Array, "Gr M"], int]:
    """Mask of this device's episodes to train on, and the largest number of such episodes of all devices."""
    number, rule = len(groups.scores) * shards.count, config.filter
    chosen, most = jnp.ones(groups.scores.shape, bool), number
    if rule.kind != "none":
        tokens = jnp.sum(trajectory.response.length, axis=1)
        # The mean of -log p over tokens sampled from p is an unbiased estimate of the mean entropy.
        total = -jnp.sum(jnp.where(trajectory.response_mask, trajectory.response.logprob, 0.0), axis=(1, 2))
        entropy, length = total / jnp.maximum(tokens, 1), tokens.astype(jnp.float32)
        of_groups = (x.reshape(groups.scores.shape) for x in (groups.scores, entropy, length, groups.valid))
        # Groups are ranked among those of all devices.
        everywhere = filters.FilterInputs(*shards.all_gather_blocks(tuple(of_groups)))
        kept = filters.kept_groups(everywhere, rule, settings.of("filter"))
        most = rule.kept(number)
        chosen &= shards.block(kept)[:, None]
    if config.filter_group_size:
        chosen &= filters.within_groups(*groups, config.filter_group_size)
    return chosen, most * config.group_size


def _normalized_sums(trajectory: Trajectory, groups: Groups, rule: RewardRule) -> Float[Array, "Gr M"]:
    """The weighted sum of the parts of each return, each normalized inside its group over members that count (GDPO).

    A part that does not apply to a group, or is the same for its members, adds exactly 0.
    """
    shape, segments = groups.valid.shape, groups.valid.size + len(groups.valid)
    group = jnp.repeat(jnp.arange(len(groups.valid)), shape[1])
    # An episode that does not count is compared with none.
    group = jnp.where(groups.valid.reshape(-1), group, len(groups.valid) + jnp.arange(groups.valid.size))

    def normalized(part):
        return part.weight * normalize(jnp.sum(part.value, axis=1), group, segments, "mean_std")

    return sum(normalized(part) for part in part_values(trajectory, rule).values()).reshape(shape)


def _normalized_rewards(episodes: _Episodes, config: LearnerConfig, shards: Shards) -> Float[Array, "E T"]:
    """Rewards of turns; with a normalization, the whole normalized return is at the last turn.

    Returns are compared only with those of episodes to train on, as in every estimator: failed episodes and filtered
    ones are treated alike, and it does not matter which of them a filter removes. RAGEN normalizes before it filters;
    inside groups this is the same, because its filters keep whole groups.
    """
    rule, rewards = config.advantage, episodes.rewards
    last = jnp.arange(rewards.shape[1]) == episodes.trajectory.num_turns[:, None] - 1
    if config.normalize_rewards == "group":
        return jnp.where(last, episodes.groups.scores.reshape(-1, 1), 0.0)
    if rule.reward_normalization == "identity":
        return rewards
    # The episodes of all devices.
    returns, task, valid = shards.all_gather_blocks(
        (jnp.sum(rewards, axis=1), episodes.trajectory.ids.task, episodes.groups.valid.reshape(-1))
    )
    groups = len(returns) // config.group_size
    compared = {
        "state": jnp.repeat(jnp.arange(groups), config.group_size),
        "task": task,
        "batch": jnp.zeros(len(returns), jnp.int32),
    }[rule.reward_grouping]
    # Episodes that do not count form a separate group, so that no other episode is compared with them.
    segments = max(groups, len(config.task_names)) + 1
    group = jnp.where(valid, compared, segments - 1)
    scores = shards.block(normalize(returns, group, segments, rule.reward_normalization))
    return jnp.where(last, scores[:, None], 0.0)


def _advantages(
    here: _Episodes,
    rows: Sequences,
    before: RowScores,
    settings: UpdateSettings,
    config: LearnerConfig,
    shards: Shards,
) -> tuple[Float[Array, "N K"], Float[Array, "N K"], dict[str, Float[Array, ""]]]:
    """Advantages and the critic's targets of the rows that `pack_trajectories` made of the episodes, and metrics."""
    rule, mask, trajectory = config.advantage, rows.response_mask, here.trajectory
    metrics: dict[str, jax.Array] = {}
    # Estimators need whole episodes, but an episode's turns may be separate rows.
    turns, by_episode = here.trained_tokens.shape[1], here.layout.of_episodes
    of_episode = by_episode(mask)
    positions = jnp.arange(of_episode.shape[1])
    last = jnp.arange(turns) * (len(positions) // turns) + here.trained_tokens - 1
    last = jnp.where(here.trained_tokens > 0, last, -1)
    rewards = place_rewards(_normalized_rewards(here, config, shards), last, len(positions), rule.reward_placement)
    if config.kl.apply_to == "reward":
        assert before.old_logprob is not None
        divergence = kl.estimate(before.old_logprob, before.ref_logprob, config.kl.estimator)
        divergence = jnp.where(mask, divergence, 0.0)
        rewards -= settings.numbers["kl.coef"] * by_episode(divergence)
        metrics["actor/reward_kl_penalty"] = masked.moments(divergence, mask, shards)[0]
    anchor_state = trajectory.turn.state_hash
    if rule.by_observation:
        seen = jnp.arange(trajectory.observation.shape[-1]) < trajectory.observation_length[..., None]
        anchor_state = gigpo.hash_tokens(trajectory.observation, seen)
    inputs = AdvantageInputs(
        rewards=rewards,
        values=by_episode(before.value),
        mask=of_episode,
        turn=jnp.broadcast_to(positions // (len(positions) // turns), of_episode.shape),
        turn_end=jnp.any(last[:, :, None] == positions, axis=1),
        scores=here.groups.scores,
        valid=here.groups.valid,
        baseline=here.baseline,
        turn_rewards=here.rewards,
        state=anchor_state,
        turn_mask=trajectory.turn_mask,
        final_value=here.final_value,
        devices=shards,
    )
    advantage, target = (here.layout.of_rows(x) for x in estimate(inputs, rule, settings.of("advantage")))
    measured = {"reward": (jnp.sum(rewards, axis=1), jnp.any(of_episode, axis=1)), "advantage": (advantage, mask)}
    if rule.has_critic:
        measured |= {"value": (before.value, mask), "return": (target, mask)}
        metrics["critic/explained_variance"] = diagnostics.explained_variance(before.value, target, mask, shards)
    for name, (x, where) in measured.items():
        statistics = diagnostics.masked_stats(x, where, shards)
        metrics |= {f"critic/{name}_{statistic}": y for statistic, y in statistics.items()}
    if rule.whiten and config.whiten_by == "task":
        parts = [mask & (trajectory.ids.task[rows.episode] == k)[:, None] for k in range(len(config.task_names))]
        return functools.reduce(jnp.add, [whiten(advantage, part, shards) for part in parts]), target, metrics
    return whiten(advantage, mask, shards) if rule.whiten else advantage, target, metrics
