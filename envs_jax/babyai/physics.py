"""MiniGrid's primitive actions: turn, walk, pick up, drop, toggle."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from envs_jax.babyai.codes import (
    BALL,
    BOX,
    CLOSED_DOOR,
    COLORS,
    DROP,
    EMPTY,
    FORWARD,
    KEY,
    LEFT,
    LOCKED_DOOR,
    NO_OPERATION,
    OPEN_DOOR,
    PICKUP,
    RIGHT,
    TOGGLE,
    color_of,
    form_of,
)
from envs_jax.babyai.state import NOTHING, World
from envs_jax.babyai.view import ahead_of


def is_move(action: Int[Array, "*K"]) -> Bool[Array, "*K"]:
    """Returns whether an action is none that can change anything but the agent's place and heading."""
    return (action != PICKUP) & (action != DROP) & (action != TOGGLE)


def move(world: World, action: Int[Array, ""]) -> World:
    """Turns or walks; any other action only counts, and `NO_OPERATION` does not."""
    x, y = ahead_of(world)
    cell = world.cells[y, x].astype(jnp.int32)
    walks = (action == FORWARD) & ((cell == EMPTY) | (form_of(cell) == OPEN_DOOR))
    turn = jnp.where(action == RIGHT, 1, jnp.where(action == LEFT, 3, 0))
    return world.replace(
        x=jnp.where(walks, x, world.x),
        y=jnp.where(walks, y, world.y),
        heading=(world.heading + turn) % 4,
        steps=world.steps + (action != NO_OPERATION),
    )


def act(world: World, action: Int[Array, ""]) -> World:
    """Takes one primitive action; one that is not possible only counts."""
    width = world.cells.shape[1]
    x, y = ahead_of(world)
    place = y * width + x
    cell = world.cells[y, x].astype(jnp.int32)
    form, here = form_of(cell), world.places == place
    slot, carrying = jnp.argmax(here), world.carrying
    empty_handed = carrying < 0
    in_hand = world.slot_cells[carrying].astype(jnp.int32)

    lifts = (action == PICKUP) & empty_handed & ((form == KEY) | (form == BALL) | (form == BOX))
    drops = (action == DROP) & ~empty_handed & (cell == EMPTY)
    toggles = action == TOGGLE
    has_key = ~empty_handed & (form_of(in_hand) == KEY) & (color_of(in_hand) == color_of(cell))
    opens = toggles & ((form == CLOSED_DOOR) | (form == LOCKED_DOOR) & has_key)
    closes = toggles & (form == OPEN_DOOR)
    unpacks = toggles & (form == BOX)

    door = jnp.where(opens, OPEN_DOOR, CLOSED_DOOR) - form
    content = jnp.where(unpacks, world.hidden[slot], NOTHING)
    after = jnp.where(opens | closes, cell + door * COLORS, cell)
    after = jnp.where(lifts | unpacks, EMPTY, after)
    after = jnp.where(unpacks & (content >= 0), world.slot_cells[content], after)
    after = jnp.where(drops, in_hand, after).astype(jnp.int8)

    slots = jnp.arange(world.places.shape[0])
    appears = (slots == content) & unpacks | (slots == carrying) & drops
    places = jnp.where(here & (lifts | unpacks), NOTHING, world.places)
    places = jnp.where(appears, place, places).astype(jnp.int16)
    return move(world, action).replace(
        cells=world.cells.at[y, x].set(after),
        slot_cells=jnp.where(here & (opens | closes), after, world.slot_cells),
        places=places,
        known_places=jnp.where(action == DROP, places, world.known_places),
        carrying=jnp.where(lifts, slot, jnp.where(drops, NOTHING, carrying)),
    )
