"""Builds the rows for gradient steps from trajectories: rewards, filter, advantages.

Shapes: `E` episodes in `Gr` groups of `M` episodes, `T` turns, `N` rows of `S` tokens with `K` response positions
(see `rollout.packing.Sequences`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.algos import diagnostics, filters, gigpo, kl, masked
from agentrl_jax.algos.advantages import whiten
from agentrl_jax.algos.estimate import AdvantageInputs, estimate
from agentrl_jax.algos.rewards import normalize, place_rewards
from agentrl_jax.learner.measures import Groups, groups_of, measure
from agentrl_jax.learner.replay_logprobs import Replayer
from agentrl_jax.learner.row_scores import RowScores, score_rows
from agentrl_jax.learner.settings import LearnerConfig, UpdateSettings
from agentrl_jax.learner.state import TrainState
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.packing import Sequences, final_states, pack_trajectories
from agentrl_jax.rollout.returns import overlong, penalized_returns, turn_rewards
from agentrl_jax.rollout.trajectory import Trajectory


class Batch(struct.PyTreeNode):
    """Inputs of the gradient steps, one row per context."""

    tokens: Int[Array, "N S"]
    position: Int[Array, "N K"]
    """Index in `tokens` of each response position."""
    mask: Bool[Array, "N K"]
    """The response position holds a sampled token."""
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
    source: Int[Array, " N"]
    """Index of the row among the rows of all episodes, kept or not."""


class _Kept(NamedTuple):
    """The episodes that rows are built from."""

    trajectory: Trajectory
    groups: Groups
    """Their returns, and which of them are trained on."""
    rewards: Float[Array, "E T"]
    """Reward of each turn, penalties included."""
    trained_tokens: Int[Array, "E T"]
    """Number of trained tokens of each turn."""
    baseline: Float[Array, " Gr"] | None
    """Return of the greedy episode of each group; None if nothing reads it."""
    final_value: Float[Array, "*E"]
    """The critic's value of the state in which an episode was truncated; 0 where there is none."""


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
) -> tuple[Batch, dict[str, Float[Array, ""]]]:
    """Selects the episodes to train on and computes the advantage of each of their tokens.

    Returns the rows of the kept groups, those without sampled tokens last, and metrics of rollout and critic. The
    arguments are those of `learner.update.update`; `replay` replays these episodes.
    """
    rewards = turn_rewards(trajectory, settings.penalties)
    groups = groups_of(trajectory, jnp.sum(rewards, axis=1), config.group_size)
    means = measure(trajectory, groups, config.task_names, settings.penalties)
    metrics = {name: x.value for name, x in means.items()}
    metrics["rollout/overlong"] = masked.moments(overlong(trajectory, settings.penalties), trajectory.turn_mask)[0]
    chosen, episodes = _choose_episodes(trajectory, groups, settings, config)
    kept, temperature, rewards, chosen = jax.tree.map(
        lambda x: x[episodes], (trajectory, temperature, rewards, chosen.reshape(-1))
    )
    groups = groups_of(kept, jnp.sum(rewards, axis=1), config.group_size)
    groups = groups._replace(valid=groups.valid & chosen.reshape(groups.valid.shape))
    metrics |= {f"rollout/chosen_{name}": x for name, x in diagnostics.group_metrics(*groups).items()}
    solved = kept.success.astype(jnp.float32).reshape(groups.valid.shape)
    metrics["rollout/chosen_success"] = masked.mean(solved, groups.valid).value
    metrics["rollout/filter_kept_groups"] = masked.count(jnp.any(groups.valid, axis=1))

    # Episodes that were filtered out, or whose environment failed, have no trained tokens.
    trained_tokens = jnp.where(groups.valid.reshape(-1, 1), kept.response.length, 0)
    learnable = kept.replace(response=kept.response.replace(length=trained_tokens))
    rows = pack_trajectories(learnable, config.context, config.context_tokens)
    rows_per_episode = rows.tokens.shape[0] // episodes.shape[0]
    source = (episodes[:, None] * rows_per_episode + jnp.arange(rows_per_episode)).reshape(-1)
    # Rows without sampled tokens go last, so that whole microbatches of them can be skipped.
    order = jnp.argsort(~jnp.any(rows.response_mask, axis=1), stable=True)
    rows, source = jax.tree.map(lambda x: x[order], (rows, source))
    baseline = final = None
    if greedy is not None:
        returns = jnp.where(greedy.failed, jnp.nan, penalized_returns(greedy, settings.penalties))
        baseline = returns[episodes[:: config.group_size] // config.group_size]
    if config.advantage.bootstrap_truncated:
        final = final_states(kept, config.context, config.context_tokens)
        final = final._replace(known=final.known & groups.valid.reshape(-1, 1))
    temperature = temperature[rows.episode]
    before, final_value, of_scores = score_rows(state, rows, source, temperature, final, model, config, shards, replay)
    advantage, target, of_advantages = _advantages(
        _Kept(kept, groups, rewards, trained_tokens, baseline, final_value), rows, order, before, settings, config
    )
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
        source=source,
    )
    has_tokens, length = jnp.any(batch.mask, axis=1), rows.length.astype(jnp.float32)
    metrics |= {
        "update/trained_tokens": masked.count(batch.mask),
        "update/row_tokens_mean": masked.moments(length, has_tokens)[0],
        "update/row_tokens_max": masked.largest(length, has_tokens),
    }
    return batch, metrics | of_scores | of_advantages


def _choose_episodes(
    trajectory: Trajectory, groups: Groups, settings: UpdateSettings, config: LearnerConfig
) -> tuple[Bool[Array, "Gr M"], Int[Array, " kept"]]:
    """Mask of the episodes to train on, and indices of the episodes to build rows from.

    If the number of kept groups is static, rows are built from the kept groups only, otherwise from all groups.
    """
    number, rule = groups.scores.shape[0], config.filter
    chosen, kept = jnp.ones(groups.scores.shape, bool), jnp.arange(number)
    if rule.kind != "none":
        scores = filters.group_scores(*_values_to_rank(trajectory, groups, rule.by), rule.by)
        if rule.kind == "fraction":
            kept = filters.top_groups(scores, rule.kept(number), largest=rule.largest)
        else:
            options = {"largest": rule.largest, "include_zero": rule.include_zero}
            chosen &= filters.chosen_groups(scores, rule.kind, value=settings.filter_value, **options)[:, None]
    if config.filter_group_size:
        chosen &= filters.within_groups(*groups, config.filter_group_size)
    return chosen, (kept[:, None] * config.group_size + jnp.arange(config.group_size)).reshape(-1)


def _values_to_rank(
    trajectory: Trajectory, groups: Groups, kind: filters.ScoreKind
) -> tuple[Float[Array, "Gr M"], Bool[Array, "Gr M"]]:
    """The episodes' values that groups are ranked by, and which episodes count."""
    if kind in ("std", "mean"):
        return groups
    tokens = jnp.sum(trajectory.response.length, axis=1)
    if kind == "length":
        value = tokens.astype(jnp.float32)
    else:
        # The mean of -log p over tokens sampled from p is an unbiased estimate of the mean entropy.
        total = -jnp.sum(jnp.where(trajectory.response_mask, trajectory.response.logprob, 0.0), axis=(1, 2))
        value = total / jnp.maximum(tokens, 1)
    return value.reshape(groups.scores.shape), groups.valid & (tokens > 0).reshape(groups.scores.shape)


def _normalized_rewards(kept: _Kept, config: LearnerConfig) -> Float[Array, "E T"]:
    """Rewards of turns; with a normalization, the whole normalized return is at the last turn.

    Returns are compared only with those of episodes to train on, as in every estimator: failed episodes and filtered
    ones are treated alike, and it does not matter whether a filter removes groups or masks them. RAGEN normalizes
    before it filters; inside groups this is the same, because its filters keep whole groups.
    """
    rule, rewards = config.advantage, kept.rewards
    if rule.reward_normalization == "identity":
        return rewards
    groups = rewards.shape[0] // config.group_size
    compared = {
        "state": jnp.repeat(jnp.arange(groups), config.group_size),
        "task": kept.trajectory.ids.task,
        "batch": jnp.zeros(rewards.shape[0], jnp.int32),
    }[rule.reward_grouping]
    # Episodes that do not count form a separate group, so that no other episode is compared with them.
    segments = max(groups, len(config.task_names)) + 1
    group = jnp.where(kept.groups.valid.reshape(-1), compared, segments - 1)
    scores = normalize(jnp.sum(rewards, axis=1), group, segments, rule.reward_normalization)
    last = jnp.arange(rewards.shape[1]) == kept.trajectory.num_turns[:, None] - 1
    return jnp.where(last, scores[:, None], 0.0)


def _advantages(
    kept: _Kept,
    rows: Sequences,
    order: Int[Array, " N"],
    before: RowScores,
    settings: UpdateSettings,
    config: LearnerConfig,
) -> tuple[Float[Array, "N K"], Float[Array, "N K"], dict[str, Float[Array, ""]]]:
    """Advantages and the critic's targets, and their metrics.

    `order` are the indices of the rows among those that `pack_trajectories` made of the kept episodes.
    """
    rule, mask, trajectory = config.advantage, rows.response_mask, kept.trajectory
    metrics: dict[str, jax.Array] = {}
    # Estimators need whole episodes, but an episode's turns may be separate rows: group the rows by episode.
    episodes, turns = kept.trained_tokens.shape
    in_place = jnp.argsort(order)

    def by_episode(x):
        return x[in_place].reshape(episodes, -1)

    def by_row(x):
        return x.reshape(mask.shape)[order]

    of_episode = by_episode(mask)
    positions = jnp.arange(of_episode.shape[1])
    last = jnp.arange(turns) * (len(positions) // turns) + kept.trained_tokens - 1
    last = jnp.where(kept.trained_tokens > 0, last, -1)
    rewards = place_rewards(_normalized_rewards(kept, config), last, len(positions), rule.reward_placement)
    if config.kl.apply_to == "reward":
        assert before.old_logprob is not None
        divergence = kl.estimate(before.old_logprob, before.ref_logprob, config.kl.estimator)
        divergence = jnp.where(mask, divergence, 0.0)
        rewards -= settings.kl_coef * by_episode(divergence)
        metrics["actor/reward_kl_penalty"] = masked.moments(divergence, mask)[0]
    anchor_state = trajectory.turn.state_hash
    if rule.kind == "gigpo" and rule.anchor == "observation":
        seen = jnp.arange(trajectory.observation.shape[-1]) < trajectory.observation_length[..., None]
        anchor_state = gigpo.hash_tokens(trajectory.observation, seen)
    inputs = AdvantageInputs(
        rewards=rewards,
        values=by_episode(before.value),
        mask=of_episode,
        turn=by_episode(rows.turn),
        turn_end=jnp.any(last[:, :, None] == positions, axis=1),
        scores=kept.groups.scores,
        valid=kept.groups.valid,
        baseline=kept.baseline,
        turn_rewards=kept.rewards,
        state=anchor_state,
        turn_mask=trajectory.turn_mask,
        final_value=kept.final_value,
    )
    advantage, target = (by_row(x) for x in estimate(inputs, rule, settings))
    measured = {"reward": (jnp.sum(rewards, axis=1), jnp.any(of_episode, axis=1)), "advantage": (advantage, mask)}
    if rule.has_critic:
        measured |= {"value": (before.value, mask), "return": (target, mask)}
        metrics["critic/explained_variance"] = diagnostics.explained_variance(before.value, target, mask)
    for name, (x, where) in measured.items():
        metrics |= {f"critic/{name}_{statistic}": y for statistic, y in diagnostics.masked_stats(x, where).items()}
    return whiten(advantage, mask) if rule.whiten else advantage, target, metrics
