"""Builds the rows for gradient steps from trajectories: rewards, filter, values, advantages.

Shapes: `E` episodes in `Gr` groups of `M` episodes, `T` turns, `N` rows of `S` tokens with `K` response positions
(see `rollout.packing.Sequences`).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from agentrl_jax.algos import diagnostics, filters, kl, losses, masked
from agentrl_jax.algos import gigpo as gigpo
from agentrl_jax.algos import rewards as reward_rules
from agentrl_jax.algos.advantages import whiten
from agentrl_jax.algos.estimate import AdvantageInputs, estimate
from agentrl_jax.learner.measures import Groups, groups_of, measure
from agentrl_jax.learner.replay_logprobs import Replayer
from agentrl_jax.learner.settings import LearnerConfig, UpdateSettings
from agentrl_jax.learner.state import TrainState
from agentrl_jax.models import actor_critic
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.packing import FinalStates, Sequences, final_states, pack_trajectories
from agentrl_jax.rollout.returns import overlong, penalized_returns, turn_rewards
from agentrl_jax.rollout.trajectory import Trajectory


class Batch(struct.PyTreeNode):
    """Inputs of the gradient steps, one row per context.

    Attributes:
        tokens: i32[N, S].
        position: i32[N, K] index in `tokens` of each response position.
        mask: bool[N, K] the response position holds a sampled token.
        behavior_logprob: f32[N, K] log-probability computed by the rollout.
        old_logprob: f32[N, K] denominator of the ratio of the policy loss: computed by the learner before the first
            step, or by the rollout. None: the current forward pass, which is the same if a batch has one step.
        importance: f32[N, K] importance weight; None without a correction of the mismatch.
        replayed_logprob: f32[N, K] from a replay with the current parameters; None unless `mismatch` is replay.
        old_value: f32[N, K] critic's value before the update.
        ref_logprob: f32[N, K] log-probability under the reference; 0 if it is not needed.
        advantage: f32[N, K].
        target: f32[N, K] target of the critic.
        temperature: f32[N] sampling temperature.
        source: i32[N] index of the row among the rows of all episodes, kept or not.
    """

    tokens: jax.Array
    position: jax.Array
    mask: jax.Array
    behavior_logprob: jax.Array
    old_logprob: jax.Array | None
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
    greedy: Trajectory | None,
) -> tuple[Batch, dict[str, jax.Array]]:
    """Selects the episodes to train on and computes the advantage of each of their tokens.

    Args:
        state: the state before the update; it and the following arguments are those of `learner.update.update`.
        trajectory: E episodes.
        temperature: f32[E].
        settings: traced numbers.
        model: shapes.
        config: static settings.
        shards: how rows are divided among devices.
        replay: replays these episodes; None unless `mismatch` is replay.
        greedy: one greedy episode per group; only remax reads it.

    Returns:
        The rows of the kept groups, those without sampled tokens last, and metrics f32[] of rollout and critic.
    """
    rewards = turn_rewards(trajectory, settings.penalties)
    groups = groups_of(trajectory, jnp.sum(rewards, axis=1), config.group_size)
    means = measure(trajectory, groups, config.task_names, settings.penalties)
    metrics = {name: x.value for name, x in means.items()}
    metrics["rollout/overlong"] = masked.moments(overlong(trajectory, settings.penalties), trajectory.turn_mask)[0]
    chosen, episodes = _chosen(trajectory, groups, settings, config)
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
    length = jnp.where(groups.valid.reshape(-1, 1), kept.response.length, 0)
    learnable = kept.replace(response=kept.response.replace(length=length))
    rows = pack_trajectories(learnable, config.context, config.context_tokens)
    of_episode = rows.tokens.shape[0] // episodes.shape[0]
    source = (episodes[:, None] * of_episode + jnp.arange(of_episode)).reshape(-1)
    # Rows without sampled tokens go last, so that whole microbatches of them can be skipped.
    order = jnp.argsort(~jnp.any(rows.response_mask, axis=1), stable=True)
    rows, source = jax.tree.map(lambda x: x[order], (rows, source))
    baseline = (
        None if greedy is None else _baseline(greedy, settings)[episodes[:: config.group_size] // config.group_size]
    )
    earned = _normalized(rewards, kept, groups.valid, config)
    final = None
    if config.advantage.bootstrap_truncated:
        final = final_states(kept, config.context, config.context_tokens)
        final = final._replace(known=final.known & groups.valid.reshape(-1, 1))
    played = _Played(groups, earned, length, rewards, kept.turn_mask, _anchors(kept, config), baseline, order, final)
    batch, of_rows = _prepare(
        state, rows, source, temperature[rows.episode], played, settings, model, config, shards, replay
    )
    return batch, metrics | of_rows


def _baseline(greedy: Trajectory, settings: UpdateSettings) -> jax.Array:
    """Return f32[Gr] of the greedy episode of every group; NaN where its environment failed."""
    return jnp.where(greedy.failed, jnp.nan, penalized_returns(greedy, settings.penalties))


def _anchors(trajectory: Trajectory, config: LearnerConfig) -> jax.Array:
    """Hash of the anchor state of each turn for gigpo, u32[E, T, 2]."""
    if config.advantage.kind == "gigpo" and config.advantage.anchor == "observation":
        seen = jnp.arange(trajectory.observation.shape[-1]) < trajectory.observation_length[..., None]
        return gigpo.hash_tokens(trajectory.observation, seen)
    return trajectory.turn.state_hash


class _Played(NamedTuple):
    """The kept episodes' inputs of the estimators.

    Attributes:
        groups, turn_rewards, turn_mask, state, baseline: see `AdvantageInputs`.
        earned: f32[E, T] reward of each turn, normalized.
        length: i32[E, T] number of trained tokens of each turn.
        order: i32[N] index of each row among the rows that `pack_trajectories` made of the kept episodes.
        final: states in which the episodes were truncated; None if nothing reads them.
    """

    groups: Groups
    earned: jax.Array
    length: jax.Array
    turn_rewards: jax.Array
    turn_mask: jax.Array
    state: jax.Array
    baseline: jax.Array | None
    order: jax.Array
    final: FinalStates | None


def _chosen(
    trajectory: Trajectory, groups: Groups, settings: UpdateSettings, config: LearnerConfig
) -> tuple[jax.Array, jax.Array]:
    """Mask bool[Gr, M] of the episodes to train on, and indices i32[.] of the episodes to build rows from.

    If the number of kept groups is static, rows are built from the kept groups only, otherwise from all groups.
    """
    number, rule = groups.scores.shape[0], config.filter
    chosen, kept = jnp.ones(groups.scores.shape, bool), jnp.arange(number)
    if rule.kind != "none":
        scores = filters.group_scores(*_filtered_by(trajectory, groups, rule.by), rule.by)
        if rule.kind == "fraction":
            kept = filters.top_groups(scores, rule.kept(number), largest=rule.largest)
        else:
            by_rule = filters.chosen_groups(
                scores,
                rule.kind,
                value=settings.filter_value,
                largest=rule.largest,
                include_zero=rule.include_zero,
            )
            chosen &= by_rule[:, None]
    if config.filter_group_size:
        chosen &= filters.within_groups(*groups, config.filter_group_size)
    return chosen, (kept[:, None] * config.group_size + jnp.arange(config.group_size)).reshape(-1)


def _filtered_by(trajectory: Trajectory, groups: Groups, kind: filters.ScoreKind) -> tuple[jax.Array, jax.Array]:
    """Values f32[Gr, M] that groups are ranked by, and mask bool[Gr, M] of the episodes that count."""
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


def _normalized(rewards: jax.Array, trajectory: Trajectory, counts: jax.Array, config: LearnerConfig) -> jax.Array:
    """Rewards f32[E, T]; with a normalization, the whole normalized return is at the last turn.

    Returns are compared only with those of episodes to train on, as in every estimator: failed episodes and filtered
    ones are treated alike, and it does not matter whether a filter removes groups or masks them. RAGEN normalizes
    before it filters; inside groups this is the same, because its filters keep whole groups.

    Args:
        rewards: f32[E, T].
        trajectory: E episodes.
        counts: bool[Gr, M] episodes to train on.
        config: has the normalization.
    """
    rule = config.advantage
    if rule.reward_normalization == "identity":
        return rewards
    groups = rewards.shape[0] // config.group_size
    compared = {
        "state": jnp.repeat(jnp.arange(groups), config.group_size),
        "task": trajectory.ids.task,
        "batch": jnp.zeros(rewards.shape[0], jnp.int32),
    }[rule.reward_grouping]
    # Episodes that do not count form a separate group, so that no other episode is compared with them.
    segments = max(groups, len(config.task_names)) + 1
    group = jnp.where(counts.reshape(-1), compared, segments - 1)
    scores = reward_rules.normalize(jnp.sum(rewards, axis=1), group, segments, rule.reward_normalization)
    last = jnp.arange(rewards.shape[1]) == trajectory.num_turns[:, None] - 1
    return jnp.where(last, scores[:, None], 0.0)


def _prepare(
    state: TrainState,
    rows: Sequences,
    source: jax.Array,
    temperature: jax.Array,
    played: _Played,
    settings: UpdateSettings,
    model: ActorCritic,
    config: LearnerConfig,
    shards: Shards,
    replay: Replayer | None,
) -> tuple[Batch, dict[str, jax.Array]]:
    """Computes values, reference log-probabilities and advantages of all kept rows."""
    mask = rows.response_mask
    mine, my_mask, my_temperature = shards.shard_rows(((rows.tokens, rows.position), mask, temperature))
    in_microbatches = functools.partial(
        _in_microbatches, microbatches=config.minibatches * config.grad_accum_steps, shards=shards
    )
    params, reference = shards.varying((state.merged_params(), state.reference))
    value = ref_logprob = jnp.zeros(mask.shape, jnp.float32)
    if config.advantage.has_critic:
        value = shards.all_gather_rows(
            in_microbatches(lambda *r: actor_critic.values(params, model, *r), my_mask, mine)
        )
        params, reference = shards.after(value, (params, reference))
    final_value = jnp.zeros(played.length.shape[0])
    if played.final is not None:
        tokens, position, known = shards.shard_rows(_padded(played.final, config, shards))
        of_rows = in_microbatches(lambda *r: actor_critic.values(params, model, *r), known, (tokens, position))
        of_final = shards.all_gather_rows(of_rows)[: len(final_value), 0]
        final_value = jnp.where(played.final.known[:, 0], of_final, 0.0)
        params, reference = shards.after(final_value, (params, reference))

    def by_forward(policy):
        tempered = (*mine, my_temperature)
        return shards.all_gather_rows(
            in_microbatches(
                lambda *r: actor_critic.logprobs({**params, "policy": policy}, model, *r), my_mask, tempered
            )
        )

    # The divergence over the whole vocabulary needs the logits of both policies; the loss computes it.
    estimated = config.kl.kind != "none" and config.kl.estimator != "full"
    if estimated:
        ref_logprob = by_forward(reference) if replay is None else replay({**params, "policy": reference})[source]
        params = shards.after(ref_logprob, params)
    old_logprob, importance = None if config.old_logprobs == "same_pass" else rows.logprob, None
    if config.old_logprobs == "learner":
        old_logprob = by_forward(params["policy"])
    if config.mismatch.kind == "tis" or config.mismatch.kind == "icepop":
        assert old_logprob is not None
        importance, truncated = losses.importance_weights(
            old_logprob,
            rows.logprob,
            mask,
            cap=config.mismatch.cap,
            correction="truncated" if config.mismatch.kind == "tis" else "masked",
            level=config.mismatch.level,
        )

    has_tokens = jnp.any(mask, axis=1)
    metrics = {
        "update/trained_tokens": masked.count(mask),
        "update/row_tokens_mean": masked.moments(rows.length.astype(jnp.float32), has_tokens)[0],
        "update/row_tokens_max": masked.largest(rows.length.astype(jnp.float32), has_tokens),
    }
    if estimated:
        metrics["rollout/ref_logprob_mean"] = masked.moments(ref_logprob, mask)[0]
    if importance is not None:
        metrics["rollout/importance_weight_mean"] = masked.moments(importance, mask)[0]
        metrics["rollout/importance_truncated"] = masked.moments(truncated.astype(jnp.float32), mask)[0]
    # Estimators need whole episodes, but an episode's turns may be separate rows: group the rows by episode.
    episodes, turns = played.length.shape
    in_place = jnp.argsort(played.order)

    def by_episode(x):
        return x[in_place].reshape(episodes, -1)

    def by_row(x):
        return x.reshape(mask.shape)[played.order]

    of_episode = by_episode(mask)
    slots = jnp.arange(of_episode.shape[1])
    last = jnp.arange(turns) * (len(slots) // turns) + played.length - 1
    last = jnp.where(played.length > 0, last, -1)
    rewards = reward_rules.place_rewards(played.earned, last, len(slots), config.advantage.reward_placement)
    if config.kl.apply_to == "reward":
        assert old_logprob is not None
        divergence = jnp.where(mask, kl.estimate(old_logprob, ref_logprob, config.kl.estimator), 0.0)
        rewards -= settings.kl_coef * by_episode(divergence)
        metrics["actor/reward_kl_penalty"] = masked.moments(divergence, mask)[0]
    evidence = AdvantageInputs(
        rewards=rewards,
        values=by_episode(value),
        mask=of_episode,
        turn=by_episode(rows.turn),
        turn_end=jnp.any(last[:, :, None] == slots, axis=1),
        scores=played.groups.scores,
        valid=played.groups.valid,
        baseline=played.baseline,
        turn_rewards=played.turn_rewards,
        state=played.state,
        turn_mask=played.turn_mask,
        final_value=final_value,
    )
    advantage, target = (by_row(x) for x in estimate(evidence, config.advantage, settings))
    earned, trained = jnp.sum(rewards, axis=1), jnp.any(of_episode, axis=1)
    metrics |= {f"critic/reward_{k}": x for k, x in diagnostics.masked_stats(earned, trained).items()}
    metrics |= {f"critic/advantage_{k}": x for k, x in diagnostics.masked_stats(advantage, mask).items()}
    if played.final is not None:
        metrics["critic/final_value_mean"] = masked.mean(final_value, played.final.known[:, 0]).value
    if config.advantage.has_critic:
        metrics |= {f"critic/value_{k}": x for k, x in diagnostics.masked_stats(value, mask).items()}
        metrics |= {f"critic/return_{k}": x for k, x in diagnostics.masked_stats(target, mask).items()}
        metrics["critic/explained_variance"] = diagnostics.explained_variance(value, target, mask)
    if config.advantage.whiten:
        advantage = whiten(advantage, mask)
    batch = Batch(
        tokens=rows.tokens,
        position=rows.position,
        mask=mask,
        behavior_logprob=rows.logprob,
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


def _in_microbatches(
    function: Callable[..., jax.Array], mask: jax.Array, rows: tuple[jax.Array, ...], microbatches: int, shards: Shards
) -> jax.Array:
    """Applies a function of rows to f32[N, K] in microbatches; 0 for microbatches without sampled tokens."""

    def of_part(part):
        mask, *rows = part
        return jax.lax.cond(shards.any(mask), lambda: function(*rows), lambda: jnp.zeros_like(mask, jnp.float32))

    split = jax.tree.map(lambda x: x.reshape(microbatches, -1, *x.shape[1:]), (mask, *rows))
    return jax.lax.map(of_part, split).reshape(mask.shape)


def _padded(final: FinalStates, config: LearnerConfig, shards: Shards) -> FinalStates:
    """Pads the rows to a multiple of microbatches times devices, which one row per episode need not be."""
    more = -len(final.known) % (config.minibatches * config.grad_accum_steps * shards.count)
    padded = FinalStates(*(jnp.pad(x, ((0, more), (0, 0))) for x in final))
    return padded._replace(position=jnp.maximum(padded.position, 1))
