"""Draws the mission of a level, and checks that it can be given. Shapes: `S` slots of objects and doors."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32

from envs_jax.babyai.bits import nth
from envs_jax.babyai.codes import (
    AFTER,
    ANY,
    BEFORE,
    CLAUSES,
    COLORS,
    DOOR,
    GO_TO,
    KEY,
    LOCKED_DOOR,
    NO_VERB,
    OPEN,
    PICK_UP,
    PLACES,
    PUT_NEXT,
    SINGLE,
    TYPE_NAMES,
    color_of,
    form_of,
    type_of,
)
from envs_jax.babyai.mission import at_places
from envs_jax.babyai.parts import ACT, BY_COLOR, BY_PLACE, BY_SOME, BY_TYPE, SEQUENCE
from envs_jax.babyai.rooms import Draws, any_bit, bits_of, whole
from envs_jax.babyai.state import NOTHING, Mission, World
from envs_jax.babyai.tables import DRAWN, TARGETS, Row

_TYPES = len(TYPE_NAMES)
_NO_DOOR = np.arange(_TYPES) != DOOR
_MAY_BE = np.zeros((PUT_NEXT + 1, 2, _TYPES), bool)
_MAY_BE[GO_TO, 0], _MAY_BE[OPEN, 0] = True, ~_NO_DOOR
_MAY_BE[PICK_UP, 0], _MAY_BE[PUT_NEXT] = _NO_DOOR, [_NO_DOOR, np.ones(_TYPES, bool)]


def draw_goal(row: Row, world: World, draws: Draws) -> tuple[Mission, Int[Array, ""]]:
    """Draws things, and a mission that names them; also returns the slot of the first one."""
    cells = world.slot_cells
    allowed = row.choices & (world.places != NOTHING)
    allowed &= ~row.only_locked | (form_of(cells) == LOCKED_DOOR)
    drawn: list[Array] = []
    for target, uniform in enumerate(draws.take(len(allowed))):
        drawn.append(nth(allowed[target], whole(uniform, jnp.sum(allowed[target])))[0])
        allowed &= ~(allowed[target] & (np.arange(len(cells)) == drawn[-1]))
    slots = jnp.stack(drawn + drawn[:1] * (TARGETS - len(drawn)))
    swaps = row.swaps & (draws.take() < 0.5)
    slots = jnp.where(swaps, slots[jnp.array([1, 0, 2, 3])], slots)

    by = jnp.where(row.by == BY_SOME, whole(draws.take(), BY_COLOR + 1), row.by)
    kind, color = type_of(cells[slots]), color_of(cells[slots])
    place = jnp.where(by == BY_PLACE, whole(draws.take(), len(PLACES)), ANY)
    described = jnp.stack(
        [
            jnp.where(by == BY_COLOR, ANY, kind),
            jnp.where((by == BY_TYPE) | (by == BY_PLACE), ANY, color),
            jnp.broadcast_to(place, kind.shape),
        ],
        axis=1,
    ).reshape(2, 2, 3)
    order = jnp.where(row.order == DRAWN, whole(draws.take(), AFTER + 1), row.order)
    to_it = draws.take() < 0.5
    either = jnp.where(to_it, GO_TO, jnp.where(kind[0] == DOOR, OPEN, PICK_UP))
    verb = jnp.where(row.verb == NO_VERB, either, row.verb)
    second = order != SINGLE
    two = (verb == PUT_NEXT)[None]
    described = jnp.where((np.arange(2) <= two)[..., None], described, ANY)
    described = jnp.where(jnp.stack([jnp.bool_(True), second])[:, None, None], described, ANY)
    nothing = jnp.full((2, 3), ANY)
    mission = Mission(
        verb=jnp.stack([verb, jnp.int32(NO_VERB), jnp.where(second, verb, NO_VERB), jnp.int32(NO_VERB)]),
        strict=jnp.stack([row.strict[0], jnp.bool_(False), row.strict[1] & second, jnp.bool_(False)]),
        described=jnp.stack([described[0], nothing, described[1], nothing]),
        order=order,
    )
    return mission, slots[0]


def draw_sentence(
    row: Row, world: World, bits: Int32[Array, " S"], locked_square: Bool[Array, " S"], draws: Draws
) -> tuple[Mission, Bool[Array, ""]]:
    """Draws a mission of MiniGrid's general generator; also returns whether all descriptions fit something.

    `bits` are `mission.traits`. MiniGrid draws type, color and place until something fits. Here each fitting
    combination has its weight.
    """
    cells = world.slot_cells.astype(jnp.int32)
    pairs = 1 << jnp.maximum(type_of(cells), 0) * COLORS + color_of(cells)
    seen = at_places(bits) & (row.unlocks | ~locked_square)
    there = jnp.bitwise_or.reduce(jnp.where(seen, pairs, 0), axis=-1)
    fits = bits_of(there, _TYPES * COLORS).reshape(-1, _TYPES, COLORS)
    fits = jnp.concatenate([jnp.any(fits, axis=-1, keepdims=True), fits], axis=-1)
    weights = jnp.moveaxis(fits, 0, -1) * row.place_weights

    kind = any_bit(row.kinds, draws.take())
    in_order = kind == SEQUENCE
    paired = draws.take(2) < 0.5
    paired = jnp.where(in_order, paired, jnp.stack([kind != ACT, jnp.bool_(False)]))
    used = jnp.stack([jnp.bool_(True), paired[0], in_order, in_order & paired[1]])
    order = jnp.where(in_order, jnp.where(draws.take() < 0.5, BEFORE, AFTER), SINGLE)
    verbs = jnp.broadcast_to(row.verbs, CLAUSES)
    verb = jnp.where(used, any_bit(verbs, draws.take(CLAUSES)), NO_VERB)

    may_be = jnp.asarray(_MAY_BE)[verb]
    wanted = jnp.any(may_be, axis=-1)
    by_pair = jnp.sum(weights, axis=-1)
    by_type = jnp.where(may_be, jnp.sum(by_pair, axis=-1), 0)
    total = jnp.sum(by_type, axis=-1)
    type_, rank = nth(by_type, whole(draws.take(CLAUSES, 2), total))
    color, rank = nth(by_pair[type_], rank)
    place = nth(weights[type_, color], rank)[0]
    described = jnp.stack([type_, color - 1, place - 1], axis=-1)
    mission = Mission(
        verb=verb,
        strict=jnp.zeros(CLAUSES, bool),
        described=jnp.where(wanted[..., None], described, ANY),
        order=order,
    )
    return mission, jnp.all(~wanted | (total > 0))


def can_be_given(row: Row, world: World, mission: Mission, fits: Bool[Array, "C 2 S"]) -> Bool[Array, ""]:
    """Returns whether MiniGrid accepts a mission whose descriptions fit some objects.

    An object that is to be put next to another one must not be there already, and must not be one of the others. If a
    level spares keys, no key is named by the color of a locked door.
    """
    width = world.cells.shape[1]
    columns, rows = world.places % width, world.places // width
    near = jnp.abs(columns[:, None] - columns) + jnp.abs(rows[:, None] - rows) <= 1
    moved, fixed = fits[:, 0].astype(jnp.float32), fits[:, 1].astype(jnp.float32)
    # Slots on no place fit nothing. A distance of 0 is the same object.
    together = jnp.sum((moved @ near.astype(jnp.float32)) * fixed, axis=1) > 0
    puts = mission.verb == PUT_NEXT
    locked = form_of(world.slot_cells) == LOCKED_DOOR
    kind, color = mission.described[..., 0, None], mission.described[..., 1, None]
    opens = jnp.any((kind == KEY) & locked & (color == color_of(world.slot_cells)), axis=-1)
    return ~jnp.any(puts & together) & ~(row.spares_keys & jnp.any(opens))
