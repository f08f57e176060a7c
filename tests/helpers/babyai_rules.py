"""What generated levels of BabyAI must have: what MiniGrid's have, as recorded, and what their missions ask for."""

import json

import numpy as np
from babyai_fixtures import read
from babyai_levels import measure
from paths import GOLDEN

from envs_jax.babyai.codes import ANY, CLOSED_DOOR, EMPTY, KEY, OPEN, PUT_NEXT, WALL, form_of
from envs_jax.babyai.recipes import recipes

_RECORDED = json.loads((GOLDEN / "babyai" / "fixtures" / "distributions.json").read_text())["levels"]
REFERENCE = {int(number): level for number, level in _RECORDED.items()}
"""MiniGrid's statistics by number."""
WITHOUT_SLIPS = {
    **{(7, "objects"): "18", (7, "free_cells"): "306", (24, "objects"): "25", (24, "free_cells"): "299"},
    (27, "max_steps"): "288",
}
"""Where MiniGrid's levels have slips, which ours do not have."""
MAY_FACE_A_DOOR = (6, 11, 12, 17, 18, 21, 31, 32)


def check(number, level):
    for name, counts in measure(level).items():
        known = WITHOUT_SLIPS.get((number, name)) or REFERENCE[number].get(name, counts)
        odd = 0 if "other" in known else sum(count for value, count in counts.items() if value not in known)
        assert odd <= len(level) // 100, (number, name)  # of many levels, one may have what none of 10,000 has
    recorded = read("levels")
    walls = np.isin(recorded["grid"][recorded["level"] == number][..., 0], (0, 2)).all(0)
    for place in REFERENCE[number].get("door_cells", ()):
        walls[tuple(map(int, place.split(",")))[::-1]] = False
    assert (level.cells[:, walls[: level.cells.shape[1], : level.cells.shape[2]]] == WALL).all()
    things = level.thing.sum((1, 2)) + level.door.sum((1, 2)) + (level.hidden >= 0).sum((1, 2))
    assert (things <= recipes()[number].most_objects).all()
    check_agent(number, level)
    check_descriptions(number, level)
    if number in (7, 24, 32, 36, 37, 38, 39):
        check_locked_rooms(number, level.where(level.locked.any((1, 2))))
    if number in (35, 36, 37, 38, 39):
        doors = np.where(level.locked, level.color, -2).max((1, 2))
        kind, color = level.described[..., 0], level.described[..., 1]
        assert not ((kind == KEY) & (color == doors[:, None, None])).any(), "no mission names the key of a locked door"


def check_agent(number, level):
    assert (level.cells[np.arange(len(level)), level.y, level.x] == EMPTY).all()
    ahead = level.ahead()
    faces = (ahead == EMPTY) | (ahead == WALL)
    if number in MAY_FACE_A_DOOR:
        faces |= form_of(ahead) >= CLOSED_DOOR
    assert faces.all()
    assert len(np.unique(level.heading)) == 4


def check_descriptions(number, level):
    puts = level.verb == PUT_NEXT
    assert (level.described[:, :, 1][~puts] == ANY).all()
    assert (level.described[level.verb == 0] == ANY).all()
    strict = {15: [1, 0, 0, 0], 16: [1, 0, 1, 0], 20: [1, 0, 0, 0]}.get(number, [0] * 4)
    assert (level.strict == (level.verb > 0) * np.array(strict)).all()
    for clause in range(4 if number in (35, 36, 37, 40) else 0):
        moved, fixed = level.matching(clause, 0), level.matching(clause, 1)
        beside = np.pad(fixed, ((0, 0), (1, 1), (1, 1)))
        beside = fixed | beside[:, 2:, 1:-1] | beside[:, :-2, 1:-1] | beside[:, 1:-1, 2:] | beside[:, 1:-1, :-2]
        assert not (moved & beside)[puts[:, clause]].any()


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
            for which in range(1 + (level.verb[i, clause] == PUT_NEXT)):
                fits = matching[clause, which][i] & reached
                if level.verb[i, clause] == OPEN:
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
