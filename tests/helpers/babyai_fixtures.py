"""Levels and play of the original BabyAI, as `golden/babyai/README.md` describes them, in our form."""

import functools
import hashlib
import json
import zlib

import jax
import numpy as np
from paths import GOLDEN

from envs_jax.babyai import codes, items, levels, macros
from envs_jax.babyai.env import BabyAI
from envs_jax.babyai.state import Mission

FOLDER = GOLDEN / "babyai" / "fixtures"
SHAPE = items.SHAPE

_VERBS = {"goto": codes.GO_TO, "open": codes.OPEN, "pickup": codes.PICK_UP, "putnext": codes.PUT_NEXT}
_ORDERS = {"before": codes.BEFORE, "after": codes.AFTER}


@functools.cache
def read(name):
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def _described(desc):
    names = {"type": codes.TYPE_NAMES, "color": codes.COLOR_NAMES, "loc": codes.PLACES}
    return [of.index(desc[field]) if desc and desc[field] else codes.ANY for field, of in names.items()]


def mission_of(instruction):
    ordered = instruction["kind"] in _ORDERS
    order = _ORDERS[instruction["kind"]] if ordered else codes.SINGLE
    verb, strict = np.zeros(codes.CLAUSES, np.int8), np.zeros(codes.CLAUSES, bool)
    described = np.full((codes.CLAUSES, 2, 3), codes.ANY, np.int8)
    for number, part in enumerate([instruction["a"], instruction["b"]] if ordered else [instruction]):
        clauses = [part["a"], part["b"]] if part["kind"] == "and" else [part]
        for row, clause in enumerate(clauses, 2 * number):
            verb[row], strict[row] = _VERBS[clause["kind"]], clause["strict"]
            described[row, 0] = _described(clause.get("desc") or clause["desc_move"])
            described[row, 1] = _described(clause.get("desc_fixed"))
    return Mission(verb=verb, strict=strict, described=described, order=np.int8(order))


def cells_of(grid, contains):
    """Cell codes of a MiniGrid grid [y, x, (type, color, state)]."""
    kinds, colors, states = np.moveaxis(grid.astype(int), -1, 0)
    cells = np.where(kinds == 2, codes.WALL, codes.EMPTY)
    for form in (codes.KEY, codes.BALL, codes.BOX):
        cells = np.where(kinds == 5 + form, codes.cell_of(form, colors), cells)
    cells = np.where(kinds == 4, codes.cell_of(codes.OPEN_DOOR + states, colors), cells)
    hiding = codes.HIDING + colors * codes.COLORS + contains[..., 1].astype(int)
    return np.where(contains[..., 0] == 5, hiding, cells)


@functools.cache
def all_levels():
    data, made = read("levels"), []
    for row, instruction in enumerate(json.loads(bytes(data["instruction"]))):
        size = slice(data["height"][row]), slice(data["width"][row])
        cells = cells_of(data["grid"][row][size], data["contains"][row][size])
        carried = (-1, -1)
        if data["carrying"][row, 0]:
            # The verifier keeps where the object was that is carried from the start.
            moved = None in instruction["desc_move"]["tracked"]
            (carried,) = instruction["desc_move" if moved else "desc_fixed"]["obj_poss"]
            kind, color = data["carrying"][row].tolist()
            cells[carried[1], carried[0]] = codes.cell_of(kind - 5, color)
        header = dict(zip(("x", "y", "heading", "carried_x", "carried_y"), [*data["agent"][row], *carried]))
        header |= {"number": data["level"][row], "room_size": data["room_size"][row]}
        header["max_steps_hundreds"], header["max_steps_rest"] = divmod(int(data["max_steps"][row]), 100)
        made.append(_pack(cells, header, mission_of(instruction)))
    return np.stack(made)


def _pack(cells, header, mission):
    grid = np.full((SHAPE.height, SHAPE.width), codes.WALL, np.int8)
    grid[: cells.shape[0], : cells.shape[1]] = cells
    header = header | {"order": mission.order}
    clauses = [[mission.verb[i], mission.strict[i], *mission.described[i].ravel()] for i in range(codes.CLAUSES)]
    flat = np.array([*(int(header[name]) for name in levels.HEADER), *np.array(clauses, int).ravel()], np.int8)
    flat = np.pad(flat, (0, (SHAPE.rows - SHAPE.height) * SHAPE.width - len(flat)))
    return np.concatenate([grid, flat.reshape(-1, SHAPE.width)])


@functools.cache
def _ids():
    return {name: number for number, name in enumerate(macros.action_names())}


def action_id(text):
    text = text.lower().strip()
    if "check" in text:
        return macros.CHECK
    return macros.NO_ACTION if text == "" else _ids().get(text, macros.UNKNOWN)


@functools.cache
def action_texts():
    return json.loads(bytes(read("traces")["actions"]))


@functools.cache
def full_texts():
    return json.loads(zlib.decompress(bytes(read("traces")["texts"])))


def digest(data):
    return np.frombuffer(hashlib.blake2b(data, digest_size=8).digest(), np.uint8)


def minigrid_image(view):
    """The bytes of MiniGrid's image, [column, row, 3], of a view."""
    return np.ascontiguousarray(codes.MINIGRID[view.astype(int)].transpose(1, 0, 2)).tobytes()


def panel_hashes():
    rows = np.flatnonzero(np.isin(read("levels")["index"], items.panel()))

    def one(level):
        env = BabyAI(SHAPE)
        return levels.hash_level(env.reset_to_level(level, env.default_params)[1])

    return np.asarray(jax.jit(jax.vmap(one))(all_levels()[rows]))


if __name__ == "__main__":  # writes the levels that the package ships
    index = read("levels")["index"].astype(np.int16)
    np.savez_compressed(items.FILE, index=index, levels=all_levels(), panel_hashes=panel_hashes())
