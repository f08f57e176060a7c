"""Steps before the first iteration: the rows to imitate, notes to the user, and the state that learning starts from."""

import dataclasses
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from agentrl_jax.algos.optimizers import Optimizer
from agentrl_jax.config import Config, rates
from agentrl_jax.config.fields import is_own
from agentrl_jax.config.mismatch import NoCorrection
from agentrl_jax.config.stages import DpoStage
from agentrl_jax.errors import BadValue
from agentrl_jax.learner.state import Kept, TrainState, init_optimizer, with_kept
from agentrl_jax.models import actor_critic
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel import hosts
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.envs.level_splits import LevelSplits
from agentrl_jax.rollout.envs.mixed_env import TaskEnv
from agentrl_jax.rollout.hints import with_hints
from agentrl_jax.rollout.packing import Sequences, context_ends, pack_trajectories
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.setup import run_keys
from agentrl_jax.setup.agents import context_of
from agentrl_jax.setup.demonstrations import check_imitable, demonstrations
from agentrl_jax.setup.plan_hints import PlanHints
from agentrl_jax.setup.service_demonstrations import service_demonstrations
from agentrl_jax.setup.service_tasks import Services
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax import registry


def check_imitation(config: Config, batched_env: TaskEnv) -> None:
    """Refuses an imitation of compiled tasks without the plans that it needs, as `demonstrations.check_imitable` does.

    Those of services are refused where they are played.
    """
    if config.imitation.chunks and not batched_env.on_host:
        check_imitable(cast(CompiledEnv, batched_env), config.prompt.max_response_tokens, config.imitation)
    for index, stage in enumerate(config.stages):
        if isinstance(stage, DpoStage) and stage.levels:
            for task in batched_env.tasks:
                if registry.spec(task.name).plan_after is None:
                    why = f"but {task.name} has no planner that starts in every situation; give data instead"
                    raise BadValue.of(f"stages.{index}.levels", stage.levels, why)


def plan_hints(config: Config, batched_env: TaskEnv, tokenizer: Tokenizer) -> PlanHints | None:
    """What searches the plans that a run shows in prompts; None if it shows none.

    Raises:
        ValueError: a task has no planner and needs one.
    """
    rule, hinted = config.algo.distillation, config.imitation.hinted
    teaches = rule.kind == "self" and rule.has_plans
    if not (teaches or hinted):
        return None
    # The configuration refuses environments on the host.
    found = PlanHints(cast(CompiledEnv, batched_env), config.prompt, config.turns, tokenizer)
    if rule.kind == "self" and teaches:
        found.check("algo.distillation.context", rule.context)
    return found


def imitating_model(config: Config, model: ActorCritic, batched_env: TaskEnv) -> ActorCritic:
    """The model for rows to imitate, some of whose prompts may have hints, and are no longer alike behind them."""
    if not config.imitation.hinted:
        return model
    return dataclasses.replace(model, shared_prefix_len=min(model.shared_prefix_len, int(batched_env.hint_at.min())))


def _with_plans(
    hints: PlanHints, trajectory: Trajectory, imitated: Bool[Array, "E T"], share: float, key: jax.Array
) -> Trajectory:
    """Demonstrations of which a share shows, in the prompt, the actions that it takes in imitated turns."""
    actions = np.where(np.asarray(imitated)[..., None], np.asarray(trajectory.turn.actions), -1)
    shown = np.asarray(jax.random.uniform(key, (len(actions),))) < share
    plans = [row[row >= 0] if show else None for row, show in zip(actions.reshape(len(actions), -1), shown)]
    return with_hints(trajectory, hints.write(plans, np.asarray(trajectory.ids.task)))


def demonstration_rows(
    config: Config,
    batched_env: TaskEnv,
    splits: LevelSplits,
    tokenizer: Tokenizer,
    services: Services | None,
    key: jax.Array,
    report: Callable[[str], None],
) -> tuple[Sequences, Trajectory]:
    """Returns the rows that a run imitates, and its demonstrations; `key` is that of the seed.

    `report` shows the progress of a long search.

    Raises:
        ValueError: as in `demonstrations` or `service_demonstrations`.
    """
    key = jax.random.fold_in(key, run_keys.DEMONSTRATIONS)
    if services is not None:
        env = cast(HostEnv, batched_env)  # tasks of several kinds are not imitated
        trajectory, imitated = service_demonstrations(config, services, env, tokenizer, key)
        if not hosts.same((trajectory, imitated)):
            raise BadValue(
                "the demonstrations of the hosts differ, because their services answer differently; use services of "
                "one version, or imitation.levels 0",
                key="imitation.levels",
            )
    else:
        trajectory, imitated = demonstrations(
            *(cast(CompiledEnv, batched_env), splits, key, config.prompt, config.imitation, context_of(config)),
            report=report,
            turns=config.turns,
            tokenizer=tokenizer,
        )
    prompts, width = trajectory, 0
    if hints := plan_hints(config, batched_env, tokenizer) if config.imitation.hinted else None:
        share = config.imitation.hinted
        prompts = _with_plans(hints, trajectory, imitated, share, jax.random.fold_in(key, run_keys.HINTS))
        width = hints.width
    rows = imitated_rows(config, prompts, imitated, hint_tokens=width)
    if config.rollout.context_tokens and not jnp.any(rows.response_mask):
        raise BadValue.of(
            "rollout.context_tokens", config.rollout.context_tokens, "into which no turn of the demonstrations fits"
        )
    return rows, trajectory


def imitated_rows(
    config: Config, trajectory: Trajectory, imitated: Bool[Array, "E T"], *, hint_tokens: int = 0
) -> Sequences:
    """The contexts of trajectories as a learner reads them, with the tokens of the turns to imitate.

    A trajectory ends before the first turn that does not fit into `rollout.context_tokens`, and `hint_tokens` more.
    """
    limit, context = config.rollout.context_tokens, context_of(config)
    limit = limit and limit + hint_tokens
    if limit and not context.fresh:
        response = trajectory.response
        fits = jnp.cumprod(trajectory.turn_mask & (context_ends(trajectory, context) <= limit), axis=1) > 0
        trajectory = trajectory.replace(
            num_turns=jnp.sum(fits, axis=1, dtype=jnp.int32),
            response=response.replace(length=jnp.where(fits, response.length, 0)),
        )
        imitated &= fits
    rows = pack_trajectories(trajectory, context, limit)
    return rows.replace(response_mask=rows.response_mask & imitated[rows.episode[:, None], rows.turn])


def imitation_rates(config: Config) -> tuple[jax.Array, ...]:
    """Learning rate of imitation, the steps in which it falls to 0, and the largest norm of its gradients."""
    decay = config.imitation.steps if config.imitation.schedule == "linear" else float("inf")
    return jnp.float32(config.imitation.lr), jnp.float32(decay), jnp.float32(config.optim.max_grad_norm)


def notes(config: Config) -> list[str]:
    """Notes shown at the start of a run that learns: its rates, what it lacks, and settings that have no effect."""
    algo, lines = config.algo, [rates.note(config)]
    rule = algo.distillation
    if rule.kind == "self" and not rule.has_plans and rule.teacher == "current":
        lines.append("algo.distillation.context none teaches nothing: the teacher reads what the student reads")
    if config.model.critic != "shared" and not algo.advantage.has_critic:
        # Not an error, because the variants of a comparison share their model.
        lines.append(
            f"model.critic {config.model.critic} does nothing in this run: algo.advantage {algo.advantage.kind} has "
            "no critic"
        )
    if not config.prompt.has_answer_block and not config.train.validate_every:
        lines.append("no validation: the tasks name no items for it (tasks.0.validation)")
    if algo.epochs * algo.minibatches > 1:
        return lines
    keys = []
    clips = algo.objective.has_ratio and not is_own(algo.objective.kind)
    if algo.mismatch != NoCorrection(ratio_from="rollout") and clips:
        numbers = algo.objective.model_dump(exclude={"kind"}, exclude_none=True)
        keys = [f"objective.{name}" for name in numbers]
        if algo.objective.kind not in ("ppo", "gmpo"):  # gmpo takes the mean of advantages in any case
            keys.append(f"objective {algo.objective.kind}")
    if algo.advantage.has_critic and algo.advantage.value_clip is not None:
        keys.append("advantage.value_clip")
    if keys:
        names = ", ".join(f"algo.{key}" for key in keys)
        lines.append(
            f"{names} {'do' if len(keys) > 1 else 'does'} nothing in this run: algo.epochs x algo.minibatches is 1, so "
            "that no ratio and no value has changed before the only step of a batch"
        )
    return lines


def begin_learning(state: TrainState, tx: Optimizer, kept: Kept, *, going_on: bool = False) -> TrainState:
    """The next stage of a state, with a separate critic, the optimizer and what is kept initialized.

    If it is `going_on` with the critic and the optimizer of another run, only what is kept.
    """
    if not going_on:
        params = actor_critic.critic_from_policy(state.params)
        state = state.replace(params=params, opt_state=init_optimizer(tx, params))
    return with_kept(state.next_stage(), kept)
