"""Demonstrations: optimal or random plans as trajectories, in the same environments and text as a rollout.

Shapes: `E` episodes, `T` turns.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int8

from agentrl_jax.config import ImitationConfig, PromptConfig
from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.contexts import Context
from agentrl_jax.rollout.envs.batched_env import CompiledEnv, Task
from agentrl_jax.rollout.envs.level_splits import LevelSplits, TaskLevels
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.setup.command_demonstrations import command_demonstrations, policy_of
from agentrl_jax.setup.play_plans import Plans, PlayPlans
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax import registry
from envs_jax.budget import Budget
from envs_jax.splits import Split, fixed_levels, splits_of_levels

Report = Callable[[str], None]
"""Shows a line of progress."""

MAX_BATCHES = 64
"""Maximum number of batches of `levels` sampled levels, after which too few different ones is an error."""

PLANNED_AT_ONCE = 1024
"""Levels that are planned between two lines of progress."""


def check_imitable(batched_env: CompiledEnv, max_response_tokens: int, imitation: ImitationConfig) -> None:
    """Checks that every task has the plans of `imitation`, with turns that fit in L = `max_response_tokens` tokens.

    Raises:
        ValueError: a task has no planner and needs one, or a canonical response is longer than L.
    """
    per_turn = batched_env.max_actions_per_turn
    for task in batched_env.tasks:
        spec = registry.spec(task.name)
        if spec.scripts:
            policy_of(task, imitation.plans)
            if imitation.hinted:
                raise BadValue.of("imitation.hinted", imitation.hinted, f"but {task.name} has no plans; set it to 0")
        elif imitation.plans not in ("optimal", "exploring", "random"):
            why = f"which {task.name} has not; expected optimal, exploring or random"
            raise BadValue.of("imitation.plans", imitation.plans, why)
        if imitation.plans == "exploring" and not spec.scripts and spec.exploring_after is None:
            raise BadValue(
                f"imitation.plans is exploring, but {task.name} has no planner that looks around; use optimal",
                key="imitation.plans",
                value="exploring",
            )
        missing = {"random_start": spec.random_actions, "dagger_rounds": spec.plan_after}
        for name in (name for name, needed in missing.items() if needed is None):
            if value := getattr(imitation, name):
                why = "no random actions before a plan" if spec.plan_after else "a planner that starts with the episode"
                raise BadValue.of(f"imitation.{name}", value, f"but {task.name} has {why}; set it to 0")
        if imitation.images and spec.symmetry is None:
            raise BadValue.of(
                "imitation.images",
                imitation.images,
                f"but {task.name} has no symmetry that changes its text; set it to 0",
            )
        if spec.scripts:
            continue
        if imitation.plans != "random" and spec.plan is None:
            raise BadValue(
                f"{task.name} has no planner to imitate; set imitation.plans to random, which teaches the format only, "
                "or imitation.levels to 0",
                key=task.name,
            )
        longest = task.prompt.max_response_tokens(per_turn)
        if longest > max_response_tokens:
            raise BadValue.of(
                "max_response_tokens",
                max_response_tokens,
                f"but a response of {per_turn} actions in {task.name} takes {longest}; use at least {longest}, or "
                "lower prompt.max_actions_per_turn",
            )


def demonstrations(
    batched_env: CompiledEnv,
    splits: LevelSplits,
    key: jax.Array,
    prompt: PromptConfig,
    imitation: ImitationConfig,
    context: Context,
    report: Report = lambda line: None,
    turns: Sequence[int] = (),
    tokenizer: Tokenizer | None = None,
) -> tuple[Trajectory, Bool[Array, "E T"]]:
    """Makes `imitation.levels` demonstrations of every compiled task, on different training levels of `splits`.

    Optimal plans are the planner's, which are the shortest ones or nearly, found on the host, and exploring ones look
    around before, and are cut off where they do not fit; levels without a plan are skipped, and so are those whose
    optimal plan does not fit. Random plans are a uniform number of uniform random actions, and work for any
    environment. After them come the demonstrations of `imitation.images` images of each level, without those that are
    no training levels or occurred before. `turns` are those of each task's episodes; empty: `prompt.max_turns`.
    Environments of commands are played by scripted policies, whose words need the `tokenizer`.

    Also returns which turns are imitated: all but those of `imitation.random_start`.

    Raises:
        ValueError: too few different levels have an optimal plan that fits, or as `check_imitable`.
    """
    check_imitable(batched_env, prompt.max_response_tokens, imitation)
    per_turn = batched_env.max_actions_per_turn
    every = turns or (prompt.max_turns,) * len(batched_env.tasks)
    limits = [Budget(prompt.max_actions, most, per_turn).reachable for most in every]
    of_commands = [index for index, task in enumerate(batched_env.tasks) if task.arguments is not None]
    parts = []
    if of_commands:
        assert tokenizer is not None
        commands = command_demonstrations(batched_env, of_commands, splits, key, prompt, imitation, context, tokenizer)
        parts.append((commands, commands.turn_mask))
    if len(of_commands) == len(batched_env.tasks):
        return parts[0]
    if imitation.plans != "random":
        found = _optimal_plans(batched_env, splits, key, imitation, limits, report)
    else:
        found = _random_plans(batched_env, key, imitation, limits)
    play = PlayPlans(batched_env, splits, prompt, context)
    parts.append(play(key, found))
    used = _contents(found) if imitation.images else set()
    for number in range(1, imitation.images + 1):
        image = _image(batched_env, found, jax.random.fold_in(key, number))
        chosen = _new_training_levels(batched_env, splits, image, used)
        parts.append(jax.tree.map(lambda x, chosen=chosen: x[chosen], play(key, image)))
        report(f"{sum(len(part[1]) for part in parts):,} demonstrations with {number} of {imitation.images} images")
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts) if len(parts) > 1 else parts[0]


def _optimal_plans(
    batched_env: CompiledEnv,
    splits: LevelSplits,
    key: jax.Array,
    imitation: ImitationConfig,
    limits: Sequence[int],
    report: Report,
) -> Plans:
    levels, per_turn = imitation.levels, batched_env.max_actions_per_turn
    plans, before, tasks, params = [], [], [], []
    for index, (task, split, limit) in enumerate(zip(batched_env.tasks, splits.tasks, limits)):
        if task.arguments is not None:
            params.append(task.env_params)
            continue
        make = _planner(task, per_turn, imitation, limit)
        boards, found = _solve_levels(task, split, jax.random.fold_in(key, index), make, levels, limit, report)
        plans += [plan for _, plan in found]
        before += [turns for turns, _ in found]
        tasks += [index] * levels
        params.append(dataclasses.replace(task.env_params, levels=jnp.asarray(boards)))
    rows = np.tile(np.arange(levels), len(tasks) // levels)
    return Plans(plans, np.array(before), np.array(tasks), rows, tuple(params))


_Planned = list[tuple[int, np.ndarray] | None]
"""For each level the turns of random actions, and these and the plan in one; None if there is no plan."""


def _planner(
    task: Task, per_turn: int, imitation: ImitationConfig, limit: int
) -> Callable[[Int8[np.ndarray, "n H W"], jax.Array], _Planned]:
    spec = registry.spec(task.name)

    def optimal(boards, key):
        assert spec.plan is not None
        found = spec.plan(task.env, task.env_params, boards, limit)
        return [None if plan is None else (0, plan) for plan in found]

    exploring = imitation.plans == "exploring"
    plan_after = spec.exploring_after if exploring else spec.plan_after

    def after_random(boards, key):
        assert plan_after is not None
        first = np.zeros((len(boards), 0), np.int32)
        if imitation.random_start:
            assert spec.random_actions is not None
            first = spec.random_actions(task.env, task.env_params, boards, imitation.random_start, key)
        planned: _Planned = []
        for taken, plan in zip(first, plan_after(task.env, task.env_params, boards, limit, first), strict=True):
            if plan is None:
                planned.append(None)
                continue
            taken = taken[taken >= 0]
            # No turn has both random actions and those of the plan.
            taken = np.pad(taken, (0, -len(taken) % per_turn), constant_values=-1)
            planned.append((len(taken) // per_turn, np.concatenate([taken, plan])))
        return planned

    return after_random if exploring or imitation.random_start else optimal


def _solve_levels(
    task: Task,
    split: TaskLevels,
    key: jax.Array,
    plan: Callable[[Int8[np.ndarray, "n H W"], jax.Array], _Planned],
    levels: int,
    limit: int,
    report: Report,
) -> tuple[Int8[np.ndarray, "n H W"], list[tuple[int, np.ndarray]]]:
    """The first `levels` distinct training levels sampled from the key whose plan fits, and their plans."""
    found: dict[bytes, tuple[np.ndarray, tuple[int, np.ndarray]]] = {}
    tried: set[bytes] = set()
    for batch in range(MAX_BATCHES):
        keys = jax.random.split(jax.random.fold_in(key, batch), levels)
        boards = registry.sample_levels(task.env, task.env_params, keys, split.split(Split.TRAIN))
        fresh = {board.tobytes(): board for board in boards if board.tobytes() not in tried}
        tried |= fresh.keys()
        different = list(fresh.values())
        for begin in range(0, len(different), PLANNED_AT_ONCE):
            some = different[begin : begin + PLANNED_AT_ONCE]
            piece_key = jax.random.fold_in(keys[0], 1 + begin // PLANNED_AT_ONCE)
            for board, planned in zip(some, plan(np.stack(some), piece_key)):
                if planned is not None and 0 < len(planned[1]) <= limit and len(found) < levels:
                    found[board.tobytes()] = board, planned
            if levels > PLANNED_AT_ONCE:
                report(f"{task.name}: plans of {len(found):,} of {levels:,} levels")
            if len(found) == levels:
                break
        if len(found) == levels:
            return np.stack([board for board, _ in found.values()]), [planned for _, planned in found.values()]
    raise BadValue.of(
        "imitation.levels",
        levels,
        f"but {MAX_BATCHES * levels} samples of {task.name} have only {len(found)} different training levels with a "
        f"plan of at most {limit} actions; lower it or raise the limits",
    )


def _boards(found: Plans) -> list[Int8[np.ndarray, "n H W"]]:
    """The levels of each task, in the order of the episodes."""
    return [np.asarray(params.levels) for params in found.env_params]


def _contents(found: Plans) -> set[tuple[int, bytes]]:
    """The task and the content of each level."""
    return {(task, board.tobytes()) for task, boards in enumerate(_boards(found)) for board in boards}


def _image(batched_env: CompiledEnv, found: Plans, key: jax.Array) -> Plans:
    """The same plans on the images of their levels under random symmetries."""
    plans, params = [], []
    for index, (task, boards) in enumerate(zip(batched_env.tasks, _boards(found))):
        symmetry = registry.spec(task.name).symmetry
        assert symmetry is not None
        own = [plan for plan, of in zip(found.actions, found.task) if of == index]
        images, carried = symmetry(task.env, boards, own, jax.random.fold_in(key, index))
        plans += carried
        params.append(dataclasses.replace(task.env_params, levels=jnp.asarray(images)))
    return found._replace(actions=plans, env_params=tuple(params))


def _new_training_levels(
    batched_env: CompiledEnv, splits: LevelSplits, found: Plans, used: set[tuple[int, bytes]]
) -> Bool[np.ndarray, " E"]:
    """Which levels are training levels and are not in `used`, to which they are added."""
    chosen = []
    for index, (task, boards) in enumerate(zip(batched_env.tasks, _boards(found))):
        wanted = splits.tasks[index].split(Split.TRAIN)
        training = (wanted == Split.ANY) | (splits_of_levels(task.env, task.env_params, boards) == wanted)
        if wanted == Split.NOT_FIXED:
            training = ~fixed_levels(task.env, task.env_params, boards)
        for board, usable in zip(boards, training):
            content = index, board.tobytes()
            chosen.append(bool(usable) and content not in used)
            used.add(content)
    return np.array(chosen)


def _random_plans(batched_env: CompiledEnv, key: jax.Array, imitation: ImitationConfig, limits: Sequence[int]) -> Plans:
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    of_ids = [index for index, task in enumerate(batched_env.tasks) if task.arguments is None]
    actions = [
        rng.integers(batched_env.tasks[index].env.num_actions, size=rng.integers(1, limits[index], endpoint=True))
        for index in of_ids
        for _ in range(imitation.levels)
    ]
    tasks = np.repeat(of_ids, imitation.levels)
    return Plans(
        actions,
        np.zeros(len(tasks), int),
        tasks,
        np.full(len(tasks), -1),
        tuple(task.env_params for task in batched_env.tasks),
    )
