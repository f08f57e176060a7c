"""From trajectories to the rows that gradient steps read: rewards, filter, values, advantages.

Shapes: `E` episodes in `Gr` groups of `M` members, `T` turns, `N` rows of `S` tokens with `K` slots for sampled ones
(see `rollout.context.Sequences`).
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
    """What a gradient step reads of each row.

    Attributes:
        tokens: i32[N, S].
        position: i32[N, K] of the slots' tokens.
        mask: bool[N, K] the slot holds a sampled token.
        behavior_logprob: f32[N, K] log-probability by the rollout.
        old_logprob: f32[N, K] the one that the ratio of the policy loss starts from: the learner's own before the first
            step, or the rollout's. None: that of the forward pass at hand, the same where a batch has one step.
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
        greedy: one greedy episode a group; only remax reads it.

    Returns:
        The rows of the kept groups, those without a sampled token last, and metrics f32[] of rollout and critic.
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

    # No token of an episode that was filtered out, or whose environment broke, is trained.
    length = jnp.where(groups.valid.reshape(-1, 1), kept.response.length, 0)
    learnable = kept.replace(response=kept.response.replace(length=length))
    rows = pack_trajectories(learnable, config.context, config.context_tokens)
    of_episode = rows.tokens.shape[0] // episodes.shape[0]
    source = (episodes[:, None] * of_episode + jnp.arange(of_episode)).reshape(-1)
    # Rows with nothing to learn from go last, where whole parts of them are skipped.
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
    """Return f32[Gr] of the greedy episode of every group; not a number where its environment broke."""
    return jnp.where(greedy.failed, jnp.nan, penalized_returns(greedy, settings.penalties))


def _anchors(trajectory: Trajectory, config: LearnerConfig) -> jax.Array:
    """What gigpo takes for the state of each turn, u32[E, T, 2]."""
    if config.advantage.kind == "gigpo" and config.advantage.anchor == "observation":
        seen = jnp.arange(trajectory.observation.shape[-1]) < trajectory.observation_length[..., None]
        return gigpo.hash_tokens(trajectory.observation, seen)
    return trajectory.turn.state_hash


class _Played(NamedTuple):
    """What estimators read of the kept episodes.

    Attributes:
        groups, turn_rewards, played, state, baseline: see `AdvantageInputs`.
        earned: f32[E, T] what each turn has earned, normalized.
        length: i32[E, T] tokens of each turn that are learned from.
        order: i32[N] number of each row among those of the kept episodes, as `pack_trajectories` made them.
        final: states that the episodes were truncated in; None where nothing reads them.
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
    """Which episodes are learned from, bool[Gr, M], and the numbers i32[.] of those that rows are made of.

    Where the number of kept groups is known before, only they are made rows of; otherwise all of them.
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
    """What groups are ranked by, f32[Gr, M], and which members count."""
    if kind in ("std", "mean"):
        return groups
    tokens = jnp.sum(trajectory.response.length, axis=1)
    if kind == "length":
        value = tokens.astype(jnp.float32)
    else:
        # The mean of -log p over tokens that were drawn with p has the mean entropy as its expectation.
        total = -jnp.sum(jnp.where(trajectory.response_mask, trajectory.response.logprob, 0.0), axis=(1, 2))
        value = total / jnp.maximum(tokens, 1)
    return value.reshape(groups.scores.shape), groups.valid & (tokens > 0).reshape(groups.scores.shape)


def _normalized(rewards: jax.Array, trajectory: Trajectory, counts: jax.Array, config: LearnerConfig) -> jax.Array:
    """Rewards [E, T]; under a normalization the whole normalized return stands at the last turn.

    Returns are compared with those of the episodes that are learned from and with no others, as by every estimator:
    one whose environment broke and one that a filter left out are alike, and whether a filter takes groups out of the
    arrays or masks them changes nothing. RAGEN normalizes before it filters; inside groups, of which its filters keep
    all members, that is the same.

    Args:
        rewards: f32[E, T].
        trajectory: E episodes.
        counts: bool[Gr, M] episodes that are learned from.
        config: how.
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
    # The others stand in a group of their own, where none that counts is compared with them.
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
    """Values, reference log-probabilities and advantages of all kept rows."""
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

    # The divergence over the whole vocabulary reads both policies at once, in the loss.
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
    # Advantages belong to episodes, and an episode's turns may be rows of their own: estimators see it in one piece.
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
    """A function of rows to f32[N, K], in as many parts as the gradient; 0 for parts without a sampled token."""

    def of_part(part):
        mask, *rows = part
        return jax.lax.cond(shards.any(mask), lambda: function(*rows), lambda: jnp.zeros_like(mask, jnp.float32))

    split = jax.tree.map(lambda x: x.reshape(microbatches, -1, *x.shape[1:]), (mask, *rows))
    return jax.lax.map(of_part, split).reshape(mask.shape)


def _padded(final: FinalStates, config: LearnerConfig, shards: Shards) -> FinalStates:
    """As many rows as parts and devices can share, which they need not be able to with one row an episode."""
    more = -len(final.known) % (config.minibatches * config.grad_accum_steps * shards.count)
    padded = FinalStates(*(jnp.pad(x, ((0, more), (0, 0))) for x in final))
    return padded._replace(position=jnp.maximum(padded.position, 1))
