"""What generated levels of BabyAI must have, by the number of the level."""

import numpy as np

from envs_jax.babyai import codes
from envs_jax.babyai.codes import ANY, EMPTY, KEY, WALL
from envs_jax.babyai.recipes import recipes

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


def check(number, level):
    check_size(number, level)
    check_agent(number, level)
    check_descriptions(number, level)
    if number in (7, 24, 32, 36, 37, 38, 39):
        check_locked_rooms(number, level.where(level.locked.any((1, 2))))
    if number in (35, 36, 37, 38, 39):
        doors = np.where(level.locked, level.color, -2).max((1, 2))
        kind, color = level.described[..., 0], level.described[..., 1]
        assert not ((kind == KEY) & (color == doors[:, None, None])).any(), "no mission names the key of a locked door"


def check_most(number, level):
    _, _, objects, doors, _ = FACTS[number]
    assert level.thing.sum((1, 2)).max() == objects
    assert level.door.sum((1, 2)).max() >= doors - 1


def check_size(number, level):
    recipe = recipes()[number]
    width, height, objects, doors, limits = FACTS[number]
    things, door_counts = level.thing.sum((1, 2)), level.door.sum((1, 2))
    assert (things <= objects).all()
    assert (door_counts <= doors).all()
    assert (things + door_counts + (level.hidden >= 0).sum((1, 2)) <= recipe.most_objects).all()
    assert set(level.limit.tolist()) <= limits
    assert (level.size == recipe.room_size).all()
    outside = (level.rows >= height) | (level.columns >= width)
    assert (level.cells[:, outside] == WALL).all()
    border = ~outside & ((level.rows % (height - 1) == 0) | (level.columns % (width - 1) == 0))
    assert (level.cells[:, border] == WALL).all()
    assert ((level.carried >= 0).all(1) == (number == 23)).all()


def check_agent(number, level):
    assert (level.cells[np.arange(len(level)), level.y, level.x] == EMPTY).all()
    ahead = level.ahead()
    faces = (ahead == EMPTY) | (ahead == WALL)
    if number in MAY_FACE_A_DOOR:
        faces |= codes.form_of(ahead) >= codes.CLOSED_DOOR
    assert faces.all()
    assert len(np.unique(level.heading)) == 4


def check_descriptions(number, level):
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


def check_locked_rooms(number, level):
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


def locked_rooms(found):
    """Top left cell, (column, row), of the room of each level that its only locked door, and no other one, closes."""
    corners = []
    for door, locked, across in zip(found.door, found.locked, found.size - 1):
        ((row, column),) = np.argwhere(locked)
        upright = column % across == 0
        second = (column, row // across * across) if upright else (column // across * across, row)
        first = (column - across, second[1]) if upright else (second[0], row - across)
        doors = [door[y : y + across + 1, x : x + across + 1].sum() for x, y in (first, second)]
        corners.append((second if doors[1] == 1 else first) if 1 in doors else None)
    return corners


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
