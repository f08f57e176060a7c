"""The generator of BabyAI's levels: what each level has, and its distribution against MiniGrid's."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from babyai_levels import ALL, Levels, draw, draw_arrays, measure, numbers_of, p_value
from paths import GOLDEN

from envs_jax.babyai import codes, generator, items, levels
from envs_jax.babyai.codes import ANY, EMPTY, KEY, WALL
from envs_jax.babyai.generator import NAMES, make_generator, shape_of
from envs_jax.babyai.recipes import recipes

EIGHTEEN = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 19, 20, 21, 30, 31, 33, 36)
FIXTURE = GOLDEN / "babyai" / "fixtures" / "distributions.json"

# Width, height, most objects, most doors and the possible step limits, by number.
FACTS = {
    **dict.fromkeys((1, 2, 9), (8, 8, 8, 0, {64})),
    3: (8, 8, 1, 0, {64}),
    4: (4, 4, 1, 0, {16}),
    5: (8, 8, 7, 0, {64}),
    6: (19, 19, 1, 11, {441}),
    7: (22, 22, 18, 10, {576}),
    8: (9, 9, 4, 3, {100, 200, 300, 400}),
    10: (19, 19, 0, 4, {441}),
    11: (22, 22, 8, 4, {576}),
    **dict.fromkeys((12, 17), (22, 22, 18, 11, {576})),
    13: (9, 5, 0, 1, {50}),
    14: (22, 22, 0, 4, {576}),
    15: (16, 16, 0, 2, {720}),
    16: (16, 16, 0, 4, {720}),
    18: (22, 22, 20, 11, {576}),
    19: (8, 8, 8, 0, {64}),
    20: (7, 7, 5, 0, {49}),
    21: (16, 16, 1, 11, {288}),
    22: (6, 6, 4, 0, {72}),
    23: (13, 7, 8, 0, {392}),
    24: (22, 22, 25, 10, {576}),
    25: (22, 22, 4, 1, {576}),
    26: (22, 22, 1, 1, {576}),
    27: (11, 6, 6, 1, {288}),
    28: (11, 6, 3, 1, {576}),
    29: (16, 6, 3, 2, {1080}),
    30: (19, 19, 5, 4, {441}),
    31: (19, 19, 1, 11, {980}),
    32: (16, 16, 2, 8, {1080}),
    33: (20, 20, 1, 0, {400}),
    34: (15, 8, 18, 0, {1024}),
    35: (13, 9, 19, 6, {150, 300}),
    36: (22, 22, 19, 11, {576, 1152}),
    38: (9, 9, 8, 3, set(range(100, 900, 100))),
    **dict.fromkeys((37, 39), (22, 22, 19, 11, set(range(576, 8 * 576 + 1, 576)))),
    40: (22, 22, 18, 11, set(range(576, 8 * 576 + 1, 576))),
}
MAY_FACE_A_DOOR = (6, 11, 12, 17, 18, 21, 31, 32)
"""The agent is placed before doors."""


@pytest.fixture(scope="module")
def found():
    return draw(upstream=False, count=8192)


@pytest.fixture(scope="module")
def slips():
    return draw(upstream=True, count=2048, numbers=(7, 24, 27), batch=2048)


def locked_rooms(found):
    """Top left cell of the room that the only door of a locked level locks, as (column, row) of each level.

    The locked room has no other door.
    """
    corners = []
    for door, locked, across in zip(found.door, found.locked, found.size - 1):
        ((row, column),) = np.argwhere(locked)
        upright = column % across == 0
        second = (column, row // across * across) if upright else (column // across * across, row)
        first = (column - across, second[1]) if upright else (second[0], row - across)
        doors = [door[y : y + across + 1, x : x + across + 1].sum() for x, y in (first, second)]
        corners.append((second if doors[1] == 1 else first) if 1 in doors else None)
    return corners


def test_every_number_is_drawn_equally_often_and_no_layout_fails(found):
    counts = np.bincount(found.number, minlength=41)
    assert counts[0] == 0
    assert scipy.stats.chisquare(counts[1:]).pvalue > 1e-4


def test_a_level_depends_on_its_key_alone():
    shape = shape_of((8, 26))
    program = jax.jit(jax.vmap(make_generator((8, 26), shape)))
    keys = jax.random.split(jax.random.key(5), 64)
    first, reversed_, other = program(keys), program(keys[::-1]), program(jax.random.split(jax.random.key(6), 64))
    np.testing.assert_array_equal(first, reversed_[::-1])
    assert first.shape == (64, shape.rows, shape.width)
    assert first.dtype == jnp.int8
    assert (
        len({level.tobytes() for level in np.asarray(first)} | {level.tobytes() for level in np.asarray(other)}) == 128
    )
    # A hidden key is read back, in the last slot.
    boxes = np.flatnonzero(np.asarray(first)[:, shape.height, 0] == 26)
    start = levels.decode(first[boxes[0]], shape)
    door = start.world.slot_cells[codes.form_of(start.world.slot_cells) == codes.LOCKED_DOOR][0]
    assert start.world.slot_cells[-1] == codes.cell_of(KEY, int(codes.color_of(door)))


@pytest.mark.parametrize("number", ALL)
def test_sizes_and_limits(found, number):
    level, recipe = found.of(number), recipes()[number]
    width, height, objects, doors, limits = FACTS[number]
    things, door_counts = level.thing.sum((1, 2)), level.door.sum((1, 2))
    assert (things <= objects).all()
    assert (door_counts <= doors).all()
    assert (things + door_counts + (level.hidden >= 0).sum((1, 2)) <= recipe.most_objects).all()
    assert things.max() == objects
    assert door_counts.max() >= doors - 1
    assert set(level.limit.tolist()) <= limits
    assert (level.size == recipe.room_size).all()
    outside = (level.rows >= height) | (level.columns >= width)
    assert (level.cells[:, outside] == WALL).all()
    border = ~outside & ((level.rows % (height - 1) == 0) | (level.columns % (width - 1) == 0))
    assert (level.cells[:, border] == WALL).all()
    assert ((level.carried >= 0).all(1) == (number == 23)).all()


@pytest.mark.parametrize("number", ALL)
def test_the_agent_starts_on_an_empty_cell_and_faces_an_empty_cell_or_a_wall(found, number):
    level = found.of(number)
    assert (level.cells[np.arange(len(level)), level.y, level.x] == EMPTY).all()
    ahead = level.ahead()
    faces = (ahead == EMPTY) | (ahead == WALL)
    if number in MAY_FACE_A_DOOR:
        faces |= codes.form_of(ahead) >= codes.CLOSED_DOOR
    assert faces.all()
    assert len(np.unique(level.heading)) == 4


@pytest.mark.parametrize("number", ALL)
def test_every_description_names_something(found, number):
    level = found.of(number)
    puts = level.verb == codes.PUT_NEXT
    assert (level.verb[:, 0] > 0).all()
    assert ((level.verb[:, 2] > 0) == (level.order != codes.SINGLE)).all()
    assert (level.described[:, :, 1][~puts] == ANY).all()
    assert (level.described[level.verb == 0] == ANY).all()
    for clause in range(4):
        used = level.verb[:, clause] > 0
        moved = level.matching(clause, 0)
        assert (moved.any((1, 2)) | ~used).all()
        if number not in (35, 36, 37, 40) or not puts[:, clause].any():
            continue
        fixed = level.matching(clause, 1)
        beside = np.pad(fixed, ((0, 0), (1, 1), (1, 1)))
        beside = fixed | beside[:, 2:, 1:-1] | beside[:, :-2, 1:-1] | beside[:, 1:-1, 2:] | beside[:, 1:-1, :-2]
        assert not (moved & beside)[puts[:, clause]].any()
    strict = {15: [1, 0, 0, 0], 16: [1, 0, 1, 0], 20: [1, 0, 0, 0]}.get(number, [0] * 4)
    assert (level.strict == (level.verb > 0) * np.array(strict)).all()


@pytest.mark.parametrize("number", [7, 24, 32, 36, 37, 38, 39])
def test_a_locked_room_has_one_door_whose_key_lies_outside(found, number):
    level = found.of(number)
    level = level.where(level.locked.any((1, 2)))
    for i, corner in enumerate(locked_rooms(level)):
        assert corner is not None
        color = level.color[i][level.locked[i]][0]
        inside = np.zeros(level.cells.shape[1:], bool)
        across = level.size[i]
        inside[corner[1] : corner[1] + across, corner[0] : corner[0] + across] = True
        keys = level.thing[i] & (level.form[i] == KEY) & (level.color[i] == color)
        assert (keys & ~inside).any()
        assert not inside[level.y[i], level.x[i]]
        if number in (7, 24):
            assert (level.thing[i] & inside).sum() == (number == 7)


@pytest.mark.parametrize("number", [35, 36, 37, 38, 39])
def test_no_mission_names_the_key_of_a_locked_door(found, number):
    level = found.of(number)
    doors = np.where(level.locked, level.color, -2).max((1, 2))
    kind, color = level.described[..., 0], level.described[..., 1]
    assert not ((kind == KEY) & (color == doors[:, None, None])).any()


@pytest.mark.parametrize("number", ALL)
def test_every_mission_can_be_fulfilled(found, number):
    level = found.of(number)
    assert can_be_fulfilled(level)[:100].all()
    if number == 18:
        assert not any(
            reach(level, i, blocked=level.thing[i])[0][level.thing[i] | level.door[i]].all() for i in range(100)
        )


def test_the_stored_items_that_nobody_can_solve_are_known():
    indices = np.array(items.stored_indices())
    stored = Levels(items.load(tuple(indices)), items.SHAPE)
    failed = [indices[stored.number == number][~can_be_fulfilled(stored.of(number))] for number in ALL]
    assert sorted(np.concatenate(failed).tolist()) == list(items.UNSOLVABLE)


def can_be_fulfilled(level):
    """Whether all that a mission is about can be reached, bool[N], for levels of one number."""
    matching = level.fits
    found = np.ones(len(level), bool)
    for i in range(len(level)):
        reached, keys = reach(level, i, blocked=level.thing[i] if level.number[i] == 20 else None)
        for clause in np.flatnonzero(level.verb[i]):
            for which in range(1 + (level.verb[i, clause] == codes.PUT_NEXT)):
                fits = matching[clause, which][i] & reached
                if level.verb[i, clause] == codes.OPEN:
                    fits &= ~level.locked[i] | np.isin(level.color[i], list(keys))
                found[i] &= fits.any()
    return found


def reach(level, i, blocked=None):
    """Cells that can be reached, and colors of keys there; without `blocked`, things are moved out of the way."""
    closed = level.cells[i] == WALL
    keys = set()
    while True:
        stops = level.locked[i] & ~np.isin(level.color[i], list(keys))
        stops = stops if blocked is None else blocked
        reached = np.zeros_like(closed)
        reached[level.y[i], level.x[i]] = True
        while True:
            source = np.pad(reached & ~stops, 1)
            grown = source[2:, 1:-1] | source[:-2, 1:-1] | source[1:-1, 2:] | source[1:-1, :-2]
            grown = (reached | grown) & ~closed
            if (grown == reached).all():
                break
            reached = grown
        found = reached & level.thing[i] & (level.form[i] == KEY)
        now = set(level.color[i][found].tolist()) | set(level.hidden[i][reached & (level.hidden[i] >= 0)].tolist())
        if now == keys:
            return reached, keys
        keys = now


def test_slips_of_the_original_are_kept_if_asked_for(slips):
    for number in (7, 24):
        level = slips.of(number)
        corners = locked_rooms(level)
        inside = np.zeros_like(level.thing)
        for i, (column, row) in enumerate(corners):
            inside[i, row : row + 8, column : column + 8] = True
        assert (level.thing.sum((1, 2)) == {7: 20, 24: 28}[number]).all()
        assert ((level.thing & inside).sum((1, 2)) >= {7: 3, 24: 3}[number]).all()
        assert ((level.thing & inside).sum((1, 2)) == 4).any()
    assert set(slips.of(27).limit.tolist()) == {72}


def test_a_level_without_objects_may_come_first():
    level = draw(upstream=False, count=16, numbers=(10, 4), batch=16)
    assert set(level.number.tolist()) == {4, 10}
    assert (level.thing.sum((1, 2)) == (level.number == 4)).all()


def test_a_level_for_which_no_layout_is_accepted_has_the_number_zero(monkeypatch):
    monkeypatch.setattr(generator, "MAX_TRIES", 1)
    # A quarter of the first layouts of level 11 is accepted.
    numbers = draw(upstream=False, count=64, numbers=(11,), batch=64).number
    assert set(numbers.tolist()) == {0, 11}


def test_shapes():
    assert shape_of((3,)) == levels.Shape(8, 8, 1)
    assert shape_of((33, 4)) == levels.Shape(20, 20, 1)
    assert shape_of((26,)) == levels.Shape(22, 22, 3, hides=True)
    assert shape_of(EIGHTEEN) == levels.Shape(22, 22, 30, clauses=4)
    assert shape_of(ALL) == levels.Shape(22, 22, 38, clauses=4, hides=True)
    assert NAMES[1] == "GoToRedBallGrey"
    assert list(NAMES) == list(ALL)


@pytest.mark.parametrize("numbers", [(), (0,), (1, 41)])
def test_unknown_numbers_are_refused(numbers):
    with pytest.raises(ValueError, match="expected at least one number from 1 to 40"):
        shape_of(numbers)


def test_a_shape_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="expected a shape that holds it"):
        make_generator((24,), shape_of((7,)))


@pytest.fixture(scope="module")
def many():
    """More than 10,000 levels of each number, with MiniGrid's slips, and which of them are of their first layout."""
    options = {"upstream": True, "count": 103 * 4096, "seed": 1}
    arrays = draw_arrays(**options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator, "MAX_TRIES", 1)
        return arrays, numbers_of(draw_arrays(**options)) > 0


@pytest.fixture(scope="module")
def reference():
    """MiniGrid's statistics by number."""
    return {int(number): level for number, level in json.loads(FIXTURE.read_text())["levels"].items()}


@pytest.mark.slow
def test_distributions_are_those_of_minigrid(many, reference):
    arrays, _ = many
    p_values = {}
    for number in ALL:
        chosen = arrays[numbers_of(arrays) == number]
        assert len(chosen) >= 10_000
        ours = measure(Levels(chosen, shape_of(ALL)))
        for name, theirs in reference[number].items():
            if isinstance(theirs, dict) and name not in ("rejected", "stuck"):
                p_values[number, name] = p_value(ours.get(name, {}), theirs)
    low = {key: p for key, p in p_values.items() if p < 0.001 / len(p_values)}
    assert len(p_values) > 1000
    assert not low


@pytest.mark.slow
def test_as_many_layouts_are_rejected_as_by_minigrid(many, reference):
    """The share of first layouts that are accepted here, and of all layouts there."""
    arrays, accepted_at_once = many
    p_values = {}
    for number in ALL:
        at_once = accepted_at_once[numbers_of(arrays) == number]
        accepted = at_once.sum()
        if number == 9:
            # MiniGrid rejects a layout with a red or blue ball among its seven things; here none is drawn.
            accepted = round(accepted * (16 / 18) ** 7)
        theirs = {name: tally(reference[number][name]) for name in ("rejected", "stuck")}
        seeds = reference[number]["seeds"]
        rejected = sum(value * count for histogram in theirs.values() for value, count in histogram)
        ours = {"accepted": accepted, "rejected": len(at_once) - accepted}
        p_values[number] = p_value(ours, {"accepted": seeds, "rejected": rejected})
    assert not {number: p for number, p in p_values.items() if p < 0.001 / len(p_values)}


def tally(histogram):
    """The values of a histogram of numbers, each with how often it occurs."""
    return [(int(value), count) for value, count in histogram.items()]
