"""Generated BabyAI levels as NumPy arrays, and the statistics that the fixture has of MiniGrid's levels."""

import re
from collections import Counter

import jax
import numpy as np
import scipy.stats
import xla_settings

from envs_jax.babyai import codes, levels
from envs_jax.babyai.codes import AFTER, ANY, BOX, COLOR_NAMES, COLORS, DOOR, EMPTY, GRAY, HIDING, OBJECT, WALL
from envs_jax.babyai.generator import make_generator, shape_of
from envs_jax.babyai.recipes import recipes

ALL = tuple(range(1, 41))
VERBS = ("", "goto", "open", "pickup", "putnext")
WORDS = {"goto": "go to {}", "open": "open {}", "pickup": "pick up {}", "putnext": "put {} next to {}"}
PLACE_WORDS = (" on your left", " on your right", " in front of you", " behind you", "")
COLOR = re.compile("|".join(COLOR_NAMES))


class Levels:
    def __init__(self, arrays, shape):
        self.stored, flat = arrays[:, : shape.height], arrays[:, shape.height :].reshape(len(arrays), -1).astype(int)
        header = dict(zip(levels.HEADER, flat.T))
        self.number, self.x, self.y, self.heading = (header[name] for name in ("number", "x", "y", "heading"))
        self.size, self.order = header["room_size"], header["order"]
        self.limit = 100 * header["max_steps_hundreds"] + header["max_steps_rest"]
        self.carried = np.stack([header["carried_x"], header["carried_y"]], axis=1)
        clauses = flat[:, len(levels.HEADER) : shape.header].reshape(len(arrays), shape.clauses, 8)
        missing = np.tile([0, 0, *[ANY] * 6], (len(arrays), 4 - shape.clauses, 1))
        clauses = np.concatenate([clauses, missing], axis=1)
        self.verb, self.strict, self.described = clauses[..., 0], clauses[..., 1], clauses[..., 2:].reshape(-1, 4, 2, 3)
        hides = self.stored >= HIDING
        self.cells = np.where(hides, codes.cell_of(BOX, (self.stored - HIDING) // COLORS), self.stored)
        self.hidden = np.where(hides, (self.stored - HIDING) % COLORS, -1)
        self.form, self.color = codes.form_of(self.cells), codes.color_of(self.cells)
        self.thing, self.door = (self.cells >= OBJECT) & (self.form < DOOR), self.form >= DOOR
        self.locked = self.form == codes.LOCKED_DOOR
        self.rows, self.columns = np.mgrid[: shape.height, : shape.width]

    def of(self, number):
        return self.where(self.number == number)

    def where(self, mask):
        chosen = object.__new__(Levels)
        shared = ("rows", "columns")
        vars(chosen).update({name: v if name in shared else v[mask] for name, v in vars(self).items()})
        return chosen

    @property
    def fits(self):
        return {(clause, which): self.matching(clause, which) for clause in range(4) for which in range(2)}

    def __len__(self):
        return len(self.number)

    def matching(self, clause, which):
        """Cells that fit a description, bool[N, H, W]; walls are gray things."""
        kind, color, place = (v[:, None, None] for v in np.moveaxis(self.described[:, clause, which], -1, 0))
        recipe = recipes()[self.number[0]]
        inside = self.columns <= recipe.columns * (recipe.room_size - 1)
        inside &= self.rows <= recipe.rows * (recipe.room_size - 1)
        walls = (self.cells == WALL) & inside & (kind == ANY) & ((color == ANY) | (color == GRAY))
        type_of = np.minimum(self.form, DOOR)
        fits = (self.cells >= OBJECT) & ((kind == ANY) | (kind == type_of)) & ((color == ANY) | (color == self.color))
        right, down = self.columns - self.x[:, None, None], self.rows - self.y[:, None, None]
        ahead, sideways = (np.array(codes.DIRECTIONS)[(self.heading + turn) % 4, :, None, None] for turn in (0, 1))
        front = right * ahead[:, 0] + down * ahead[:, 1]
        side = right * sideways[:, 0] + down * sideways[:, 1]
        there = np.choose(np.maximum(place, 0), [side < 0, side > 0, front > 0, front < 0])
        return (fits | walls) & ((place == ANY) | there & self.in_room())

    def in_room(self):
        across = (self.size - 1)[:, None, None]
        left, top = self.x[:, None, None] // across * across, self.y[:, None, None] // across * across
        inside = (self.columns >= left) & (self.columns <= left + across)
        return inside & (self.rows >= top) & (self.rows <= top + across)

    def ahead(self):
        step = codes.DIRECTIONS[self.heading]
        return self.cells[np.arange(len(self)), self.y + step[:, 1], self.x + step[:, 0]]


def draw(upstream, count, seed=0):
    with xla_settings.optimized():
        program = jax.jit(jax.vmap(make_generator(ALL, shape_of(ALL), upstream=upstream)))
        keys = jax.random.split(jax.random.key(seed), count).reshape(-1, 4096)
        return np.concatenate([np.asarray(program(part)) for part in keys])


def numbers_of(arrays):
    return arrays[:, shape_of(ALL).height, 0]


def clause_tree(verbs, order):
    parts = [f"and({verbs[k]},{verbs[k + 1]})" if verbs[k + 1] else verbs[k] for k in (0, 2)]
    return parts[0] if order == codes.SINGLE else f"{'after' if order == AFTER else 'before'}({parts[0]},{parts[1]})"


def sentence(clauses, order):
    parts = [" and ".join(text for text in clauses[k : k + 2] if text) for k in (0, 2)]
    return parts[0] if order == codes.SINGLE else (" after you " if order == AFTER else ", then ").join(parts)


def missions(found, numbers_of):
    names = np.full((len(found), 4, 2), "", object)
    for clause in range(4):
        for which in range(2):
            for row in np.flatnonzero(found.verb[:, clause] > (0 if which == 0 else codes.PICK_UP)):
                kind, color, place = found.described[row, clause, which]
                words = [] if color == ANY else [COLOR_NAMES[color]]
                words.append("object" if kind == ANY else codes.TYPE_NAMES[kind])
                article = "a" if numbers_of[clause, which][row] > 1 else "the"
                names[row, clause, which] = f"{article} {' '.join(words)}{PLACE_WORDS[place]}"
    texts = [
        [WORDS[VERBS[v]].format(*names[i, c]) if v else "" for c, v in enumerate(found.verb[i])]
        for i in range(len(found))
    ]
    return [sentence(text, order) for text, order in zip(texts, found.order)]


def measure(found):
    """The histograms of the fixture, for the levels of one number."""
    counts, count = {}, len(found)
    held = np.zeros_like(found.thing)
    carrying = found.carried[:, 0] >= 0
    held[np.flatnonzero(carrying), found.carried[carrying, 1], found.carried[carrying, 0]] = True

    def add(name, values):
        counts[name] = Counter(str(value) for value in np.asarray(values).tolist())

    def per_level(mask):
        return mask.sum((1, 2))

    def named(mask):
        return [f"{COLOR_NAMES[c]} {codes.FORMS[f]}" for c, f in zip(found.color[mask], found.form[mask])]

    add("objects", per_level(found.thing))
    for form in range(DOOR):
        add(f"objects_{codes.FORMS[form]}", per_level(found.thing & (found.form == form)))
    for color, name in enumerate(COLOR_NAMES):
        add(f"objects_{name}", per_level(found.thing & (found.color == color)))
        add(f"doors_{name}", per_level(found.door & (found.color == color)))
    add("object_pairs", named(found.thing))
    add("box_contents", [f"{COLOR_NAMES[color]} key" for color in found.hidden[found.hidden >= 0]])
    across = found.size[:, None, None] - 1
    rooms = np.char.add(np.char.add((found.columns // across).astype(str), ","), (found.rows // across).astype(str))
    add("object_rooms", rooms[found.thing & ~held])
    add("doors", per_level(found.door))
    for offset, name in enumerate(("open", "closed", "locked")):
        add(f"doors_{name}", per_level(found.form == codes.OPEN_DOOR + offset))
    places = np.char.add(np.char.add(found.columns.astype(str), ","), found.rows.astype(str))
    add("door_cells", np.broadcast_to(places, found.door.shape)[found.door])
    side = found.size - 1
    add("agent_room", [f"{a},{b}" for a, b in zip(found.x // side, found.y // side)])
    add("agent_offset", [f"{a},{b}" for a, b in zip(found.x % side, found.y % side)])
    add("agent_heading", found.heading)
    add("carrying", named(held) if carrying.any() else ["nothing"] * count)
    add("free_cells", per_level((found.cells == EMPTY) | held))
    add("max_steps", found.limit)
    add("shape", [clause_tree([VERBS[v] for v in verb], order) for verb, order in zip(found.verb, found.order)])
    fits = found.fits
    texts = missions(found, {key: per_level(value) for key, value in fits.items()})
    add("mission_form", [COLOR.sub("{color}", text) for text in texts])
    colors = [COLOR.findall(text) for text in texts]
    add("mission_colors", ["several" if len(named) > 1 else "".join(named) for named in colors])
    first = fits[0, 0]
    add("tracked", per_level(first))
    away = np.abs(found.columns - found.x[:, None, None]) + np.abs(found.rows - found.y[:, None, None])
    # Among the nearest, the one with the smallest column, then row.
    order = (away * 100 + found.columns) * 100 + found.rows
    nearest = np.where(first, order, 10**8).reshape(count, -1).argmin(1)
    add("nearest", away.reshape(count, -1)[np.arange(count), nearest])
    add("nearest_same_room", found.in_room().reshape(count, -1)[np.arange(count), nearest])
    return counts


def p_value(ours, theirs):
    """Two-sample chi-square; values that are rare, or were left out of the fixture, count as one."""
    least = 20 if "other" in theirs else 1
    values = [value for value, count in theirs.items() if value != "other" and count >= least]
    rows = np.array([(ours.get(value, 0), theirs[value]) for value in values]).reshape(-1, 2)
    total = np.array([sum(ours.values()), sum(theirs.values())])
    rows = np.vstack([rows, total - rows.sum(0)])
    rare = (rows.sum(1)[:, None] * total / total.sum()).min(1) < 5
    rows = np.vstack([rows[~rare], rows[rare].sum(0)])
    rows = rows[rows.sum(1) > 0]
    return 1.0 if len(rows) < 2 else scipy.stats.chi2_contingency(rows.T, correction=False).pvalue
