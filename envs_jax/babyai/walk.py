"""Takes the primitive actions of a batch of actions.

Most of them only move the agent and leave the grid as it is, so moves are taken together and the others apart.
Shapes: `B` rows of a batch, `D` longest path.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int8, Int32

from envs_jax.babyai import mission, physics
from envs_jax.babyai.codes import NO_OPERATION
from envs_jax.babyai.state import Mission, Progress, World
from envs_jax.babyai.view import look
from envs_jax.batching import in_turns, where_rows, while_active

_POSE = ("x", "y", "heading", "steps")
_CHECKED = ("done", "first_done", "carried_before")
"""What moves change in a world and in the progress of a mission; copying the rest would cost more than the moves."""

_OTHERS = 8
"""About one action in so many is another one than moves."""


class Plan(NamedTuple):
    """What does not change during a walk."""

    length: Int32[Array, " B"]
    actions: Int8[Array, "B D"]
    mission: Mission
    max_steps: Int32[Array, " B"]


class Walk(NamedTuple):
    """A walk that is under way: whether it goes on, the number of its next action, and what the last one led to.

    `world` and `progress` are a `World` and a `Progress`, or dicts of what moves change in them.
    """

    going: Bool[Array, " B"]
    number: Int32[Array, " B"]
    world: Any
    progress: Any
    view: Int8[Array, "B 7 7"]
    result: Int32[Array, " B"]


def walk(
    plan: Plan, world: World, progress: Progress, view: Int8[Array, "B 7 7"], *, upstream: bool
) -> tuple[World, Progress, Int8[Array, "B 7 7"], Int32[Array, " B"]]:
    """Takes up to `length` primitive actions in each row, until the view does not change.

    Without `upstream`, also until the mission is fulfilled or failed, or MiniGrid's limit is reached. Returns the
    result of the last check.
    """
    take = partial(_take, upstream=upstream)

    def take_moves(active: jax.Array, here: Walk, given: tuple[Plan, World, Progress]) -> tuple[jax.Array, Walk]:
        plan, world, progress = given
        after = _small(take(active, _whole(here, world, progress), plan, moves=True))
        return after.going & physics.is_move(_next(plan, after)), after

    def both(here: Walk) -> Walk:
        moves = here.going & physics.is_move(_next(plan, here))
        moved = while_active(take_moves, moves, _small(here), (plan, here.world, here.progress))
        here = moved._replace(world=here.world.replace(**moved.world), progress=here.progress.replace(**moved.progress))
        return in_turns(partial(take, moves=False), here.going, here, plan, -(-len(here.going) // _OTHERS))

    result = jnp.full_like(plan.length, mission.CONTINUE)
    first = Walk(plan.length > 0, jnp.zeros_like(plan.length), world, progress, view, result)
    last = jax.lax.while_loop(lambda here: jnp.any(here.going), both, first)
    return last.world, last.progress, last.view, last.result


def _small(here: Walk) -> Walk:
    world = {name: getattr(here.world, name) for name in _POSE}
    progress = {name: getattr(here.progress, name) for name in _CHECKED}
    return here._replace(world=world, progress=progress)


def _whole(here: Walk, world: World, progress: Progress) -> Walk:
    return here._replace(world=world.replace(**here.world), progress=progress.replace(**here.progress))


def _next(plan: Plan, here: Walk) -> Int32[Array, " B"]:
    return jnp.take_along_axis(plan.actions, here.number[:, None], axis=1, mode="clip")[:, 0].astype(jnp.int32)


def _take(active: Bool[Array, " B"], here: Walk, plan: Plan, *, moves: bool, upstream: bool) -> Walk:
    """Takes the next action in the active rows; with `moves`, it is one that only moves."""
    action = jnp.where(active, _next(plan, here), NO_OPERATION)
    world = jax.vmap(physics.move if moves else physics.act)(here.world, action)
    check = jax.vmap(partial(mission.check, upstream=upstream))
    checked, result = check(world, plan.mission, here.progress, None if moves else action)
    seen, number = jax.vmap(look)(world), here.number + 1
    goes_on = (number < plan.length) & jnp.any(seen != here.view, axis=(1, 2))
    if not upstream:
        goes_on &= (result == mission.CONTINUE) & (world.steps < plan.max_steps)
    return where_rows(active, Walk(goes_on, number, world, checked, seen, result), here)
