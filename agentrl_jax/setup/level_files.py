"""Makes the environment of a task, with levels from a file if the configuration names one."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import envs_jax
from agentrl_jax.config import TaskConfig
from agentrl_jax.config.tasks import NAMED_LEVELS
from agentrl_jax.errors import BadValue, UserError, refusals
from envs_jax.environment import TextEnvironment
from envs_jax.frozen_lake import FrozenLake
from envs_jax.frozen_lake import levels as frozen_lake_levels
from envs_jax.grid import GridEnvironment
from envs_jax.packs import LevelRules, read_pack
from envs_jax.sokoban import Sokoban
from envs_jax.sokoban import levels as sokoban_levels

MAX_BYTES = 64 * 1024 * 1024
"""Largest size of a level file, in bytes."""


def make_env(task: TaskConfig) -> tuple[TextEnvironment, Any]:
    """Makes a task's environment; with `task.levels` its parameters hold those levels as a pack.

    The board grows to the largest level of a text file. A `.npy` file holds a pack i8[N, H, W], for BabyAI of the shape
    of its own levels and for another `GridEnvironment` of the size of its board; any other file is text, in XSB symbols
    for Sokoban and the letters S F H G for FrozenLake. The `NAMED_LEVELS` are stored items of BabyAI, with AgentGym's
    own rules.

    Raises:
        UserError: the environment or an option is unknown, or the levels cannot be read or do not fit the environment.
    """
    try:
        env, params = envs_jax.make(task.env, **task.options)
    except ValueError as error:
        raise UserError.after("", error) from error
    if not task.levels:
        return env, params
    if task.levels in NAMED_LEVELS:
        from envs_jax import babyai

        if not isinstance(env, babyai.BabyAI):
            raise UserError.of(
                "levels", task.levels, f"but {task.env} has no such levels; give a file with levels of {task.env}"
            )
        with refusals():
            return env.on_items(params, babyai.items.NAMED[task.levels]())
    file = Path(task.levels)
    if not file.is_file():
        raise UserError.at(file, "there is no such file; give a text file with levels or a .npy pack")
    if file.stat().st_size > MAX_BYTES:
        raise UserError.at(
            file, f"has {file.stat().st_size} bytes, expected at most {MAX_BYTES}; split the file", file.stat().st_size
        )
    try:
        env, pack = _fit(env, file)
    except (ValueError, OSError) as error:
        raise UserError.after(file, error) from error
    if pack is None:
        raise UserError.at(
            file,
            f"{task.env} has no levels that can be given; leave the file out (files are read for Sokoban, FrozenLake, "
            "BabyAI and environments that are a GridEnvironment)",
            task.env,
        )
    return env, params.replace(levels=jnp.asarray(pack))


def _fit(env: TextEnvironment, file: Path) -> tuple[TextEnvironment, np.ndarray | None]:
    """Returns the environment with a board for the largest level, and the levels; None if it does not use levels."""
    from envs_jax import babyai

    packed = file.suffix == ".npy"
    if isinstance(env, Sokoban):
        levels = sokoban_levels.load_pack(file) if packed else sokoban_levels.parse_xsb(_text(file))
        height = max(env.height, *(level.shape[0] for level in levels))
        width = max(env.width, *(level.shape[1] for level in levels))
        pack = sokoban_levels.stack_levels(levels, height, width)
        boxes = max(env.boxes, sokoban_levels.most_boxes(pack))
        return Sokoban(height, width, boxes, env.vocabulary, env.observation), pack
    if isinstance(env, FrozenLake):
        levels = frozen_lake_levels.load_pack(file) if packed else frozen_lake_levels.parse_maps(_text(file))
        pack = frozen_lake_levels.stack_levels(levels)
        return FrozenLake(pack.shape[1], pack.shape[2], env.observation), pack
    if isinstance(env, babyai.BabyAI):
        return env, babyai.levels.load_pack(file, env.shape)
    if isinstance(env, GridEnvironment):
        if not packed:
            raise BadValue(
                f"levels of {env.name} are read from a .npy pack only, int8 [N, {env.height}, {env.width}]",
                key="levels",
                value=env.name,
            )
        levels = read_pack(file)
        if levels.shape[1:] != (env.height, env.width):
            raise BadValue(
                f"holds levels of {levels.shape[1]}x{levels.shape[2]}; expected the size of the board of {env.name}, "
                f"{env.height}x{env.width}",
                key="levels",
                value=f"{levels.shape[1]}x{levels.shape[2]}",
            )
        LevelRules(env.num_codes - 1, lambda pack: iter(())).check_pack(levels)
        return env, levels
    return env, None


def _text(file: Path) -> str:
    data = file.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:  # older collections have Latin-1 names in comments
        return data.decode("latin-1")
