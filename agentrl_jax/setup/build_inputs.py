"""From a configuration to what the programs of a run are given: their settings, and the ids of episodes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from agentrl_jax.config import Config
from agentrl_jax.config.algo import UpdateRule
from agentrl_jax.config.defaults import length_buckets
from agentrl_jax.config.fields import Section
from agentrl_jax.config.rates import rates
from agentrl_jax.learner.settings import LearnerConfig, UpdateSettings
from agentrl_jax.rollout.engine_config import EngineConfig
from agentrl_jax.rollout.envs.mixed_env import TaskEnv
from agentrl_jax.rollout.resampling import ONE_ROUND, Resampling
from agentrl_jax.rollout.returns import NamedPart
from agentrl_jax.rollout.trajectory import EpisodeIds, RolloutSettings
from agentrl_jax.setup.agents import context_of
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax.splits import Split


def engine_config(config: Config, tokenizer: Tokenizer, *, group_size: int, slots: int) -> EngineConfig:
    """Builds the static configuration of the rollout engine."""
    return EngineConfig(
        max_turns=config.prompt.max_turns,
        max_response_tokens=config.prompt.max_response_tokens,
        group_size=group_size,
        slots=slots,
        prefill_threshold=config.rollout.prefill_threshold,
        context=context_of(config),
        stop_at_answer=config.prompt.stop_at_answer,
        end_of_turn=tokenizer.stop_ids,
        chunk=config.rollout.prefill_chunk,
        prefill_rows=config.rollout.prefill_rows,
        context_tokens=config.rollout.context_tokens,
    )


def learner_config(config: Config, *, recorded_episodes: int = 0, hint_at: int = 0) -> LearnerConfig:
    """Builds the static configuration of the learner; `hint_at` is the least of the tasks'."""
    rule: dict[str, Any] = {name: getattr(config.algo, name) for name in UpdateRule.model_fields}
    rule = {name: value.untraced() if isinstance(value, Section) else value for name, value in rule.items()}
    rule["length_buckets"] = length_buckets(config)
    return LearnerConfig.model_construct(
        None,
        task_names=tuple(task.label for task in config.tasks),
        group_size=config.rollout.group_size,
        context=context_of(config),
        context_tokens=config.rollout.context_tokens,
        weighs_tasks=config.algo.balance_tasks or any(task.loss_weight != 1 for task in config.tasks),
        reward_parts=reward_parts(config),
        normalize_rewards=config.algo.normalize_rewards,
        skip_truncated=config.algo.skip_truncated,
        recorded_episodes=recorded_episodes,
        hint_at=hint_at if config.algo.distillation.kind == "self" else 0,
        **rule,
    )


def reward_parts(config: Config) -> tuple[NamedPart, ...]:
    """The parts of the reward of a run, whose numbers are in the settings of rollouts and updates."""
    labels = [task.label for task in config.tasks]
    return tuple(
        NamedPart(name, part.untraced(), tuple(map(labels.index, part.tasks)))
        for name, part in config.algo.rewards.items()
    )


def resampling(config: Config) -> Resampling:
    """How a training rollout resamples groups."""
    rounds = config.algo.dynamic_sampling
    if rounds == 1:
        return ONE_ROUND
    return Resampling(rounds, reward_parts(config), config.algo.normalize_rewards == "group")


def training_ids(config: Config) -> EpisodeIds:
    """Ids of the E training episodes: tasks in contiguous ranges, then groups; the group's key gives the level."""
    count, group_size = config.groups, config.rollout.group_size
    task = np.repeat(np.arange(len(config.tasks)), [task.groups for task in config.tasks])
    return episode_ids(
        group=np.repeat(np.arange(count), group_size),
        member=np.tile(np.arange(group_size), count),
        task=np.repeat(task, group_size),
        level=np.full(count * group_size, -1),
    )


def training_temperature(config: Config, iteration: int) -> Float[np.ndarray, " E"]:
    """The sampling temperature of each training episode, in the order of `training_ids`."""
    usual = float(schedules(config)["rollout.temperature"](iteration))
    of_tasks = [usual if task.temperature is None else task.temperature for task in config.tasks]
    return np.repeat(of_tasks, [task.groups * config.rollout.group_size for task in config.tasks])


def evaluation_ids(
    numbers: Int[np.ndarray, " n"], task: int, rows: Int[np.ndarray, " n"] | None = None, *, sample: int = 0
) -> EpisodeIds:
    """Ids of a task's episodes by their numbers, one per level: sampled levels, or `rows` of the task's pack.

    Every `sample` is another episode on the same levels.
    """
    level = np.full(len(numbers), -1) if rows is None else rows
    member, of_task = np.full(len(numbers), sample), np.full(len(numbers), task)
    return episode_ids(group=numbers, member=member, task=of_task, level=level)


def episode_ids(*, group: Any, member: Any, task: Any, level: Any) -> EpisodeIds:
    """Builds `EpisodeIds` from integers or integer arrays."""
    return EpisodeIds(*(jnp.asarray(x, jnp.int32) for x in (group, member, task, level)))


def rollout_settings(
    config: Config,
    batched_env: TaskEnv,
    episodes: int,
    temperature: float | Float[np.ndarray, " E"],
    horizon: int | None = None,
    *,
    iteration: int = 0,
    split: jax.Array | int = Split.ANY,
) -> RolloutSettings:
    """Builds the traced settings of a rollout; the default horizon is prompt.max_turns.

    `split` comes from `LevelSplits.of`; by default episodes are on any level.
    """
    now = {key: schedule(iteration) for key, schedule in schedules(config).items()}
    numbers = {key.removeprefix("rewards."): jnp.float32(x) for key, x in now.items() if key.startswith("rewards.")}
    return RolloutSettings(
        split=jnp.asarray(split, jnp.int32),
        format_penalty=jnp.float32(now["prompt.format_penalty"]),
        reward_numbers=numbers,
        overlong_buffer=jnp.float32(config.algo.overlong_buffer),
        overlong_penalty=jnp.float32(config.algo.overlong_penalty),
        temperature=jnp.full(episodes, jnp.asarray(temperature, jnp.float32)),
        horizon=jnp.int32(config.prompt.max_turns if horizon is None else horizon),
        task_turns=jnp.array(config.turns, jnp.int32) if len({*config.turns}) > 1 else None,
        # A response in plain text is one action.
        max_actions=jnp.int32(config.prompt.max_actions if config.prompt.has_answer_block else config.prompt.max_turns),
        env_params=batched_env.env_params,
    )


def learning_rates(config: Config) -> optax.Schedule:
    """Returns the schedule of the learning-rate factor, by iteration."""
    rising = config.optim.warmup or round(config.optim.warmup_share * config.train.iterations)
    warm, chosen = optax.linear_schedule(0.0, 1.0, max(rising, 1)), _after_warmup(config)
    return (lambda i: warm(i + 1) * chosen(i)) if rising else chosen


def _after_warmup(config: Config) -> optax.Schedule:
    schedule = config.optim.schedule
    if schedule.kind == "constant":
        return optax.constant_schedule(1.0)
    total, end = schedule.iterations or max(config.train.iterations, 1), schedule.end_factor
    if schedule.kind == "cosine":
        return optax.cosine_decay_schedule(1.0, total, alpha=end)
    falling = total if schedule.kind == "linear" else max(round(schedule.decay_share * total), 1)
    return optax.linear_schedule(1.0, end, falling, transition_begin=total - falling)


def schedules(config: Config) -> dict[str, optax.Schedule]:
    """Each value that `algo.schedules` can change, as a function of the iteration."""
    start = config.schedule_starts()
    schedules: dict[str, optax.Schedule] = {name: optax.constant_schedule(value) for name, value in start.items()}
    for name, change in config.algo.schedules.items():
        if change.shape == "linear":
            schedules[name] = optax.linear_schedule(start[name], change.end, change.iterations)
        else:
            falling = optax.cosine_decay_schedule(1.0, change.iterations)
            schedules[name] = lambda i, a=start[name], b=change.end, f=falling: b + (a - b) * f(i)
    return schedules


def update_settings(config: Config, factor: float, iteration: int = 0) -> UpdateSettings:
    """Builds the traced settings of the update of an iteration; `factor` is the value of `learning_rates`."""
    algo, chosen = config.algo, rates(config)
    now = {key: schedule(iteration) for key, schedule in schedules(config).items()}
    values = {
        "entropy_coef": now["entropy_coef"],
        "entropy_target": algo.entropy_target or 0.0,
        "entropy_step": algo.entropy_step,
        "format_penalty": now["prompt.format_penalty"],
        "lr": chosen.policy * factor,
        "critic_lr": chosen.critic * factor,
        "max_grad_norm": config.optim.max_grad_norm,
        "average_rate": config.optim.average_rate,
        "freeze_policy": iteration < config.train.critic_warmup,
        "overlong_buffer": algo.overlong_buffer,
        "overlong_penalty": algo.overlong_penalty,
        "task_weight": np.array([task.loss_weight for task in config.tasks]),
    }
    numbers = {key: now[key] for key in algo.traced_keys()}
    return jax.tree.map(jnp.float32, UpdateSettings(**values, numbers=numbers))
