"""The original software: AgentGym's server class around MiniGrid, and what its state is; see `export_fixtures.py`."""

import hashlib
import importlib.util
import json
import re
import sys
import types
import zlib

import numpy as np
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX
from minigrid.envs.babyai.core import roomgrid_level, verifier

SIDE = 22
LEVELS = 40
USED_LEVELS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 19, 20, 21, 30, 31, 33, 36)
USED_INDICES = 2004
OTHER_SEEDS = 23
ROUNDS = 20
AWKWARD_SHARE = 0.25
TEXT_SEEDS = 3
BLOCKED_SEEDS = 5
PRIMITIVE_SEEDS = 5
PRIMITIVES = 60
UNIFORM, BUSY, GREEDY, BLOCKER, EXPERT = 0, 1, 2, 3, 4
LISTING = "check available actions"
NAME = re.compile(r"(red|green|blue|purple|yellow|grey) ((open|closed|locked) )?(door|key|ball|box)( \d+)?")
SCARCE = re.compile("no path|color of the key")
SCARCEST = re.compile("cannot go through .* no path|cannot toggle and go through .* locked door .* no path")
KINDS = {
    verifier.GoToInstr: "goto",
    verifier.OpenInstr: "open",
    verifier.PickupInstr: "pickup",
    verifier.PutNextInstr: "putnext",
    verifier.BeforeInstr: "before",
    verifier.AfterInstr: "after",
    verifier.AndInstr: "and",
}


class Discards:
    """Counts the layouts a level discards, which MiniGrid only prints."""

    def __init__(self):
        self.sampled = self.stuck = 0

    def __call__(self, *message):
        if str(message[0]).startswith("Timeout"):
            self.stuck += 1
        else:
            self.sampled += 1

    def take(self):
        counts = self.sampled, self.stuck
        self.sampled = self.stuck = 0
        return counts


DISCARDS = Discards()


def load_wrapper(path):
    for name in ("gym", "matplotlib", "matplotlib.pyplot", "PIL"):
        if name.split(".")[0] in sys.modules or importlib.util.find_spec(name.split(".")[0]) is None:
            sys.modules.setdefault(name, types.ModuleType(name))
    if not hasattr(sys.modules.get("gym", object), "Env") and "gym" in sys.modules:
        sys.modules["gym"].Env = type("Env", (), {"close": lambda self: None})
    if "PIL" in sys.modules and not hasattr(sys.modules["PIL"], "Image"):
        sys.modules["PIL"].Image = None
    spec = importlib.util.spec_from_file_location("original_environment", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    roomgrid_level.print = DISCARDS
    return module


class Recorder:
    """Stands between the wrapper and MiniGrid and remembers how each primitive step ended."""

    def __init__(self, env):
        self.env = env
        self.endings = []

    @property
    def unwrapped(self):
        return self.env.unwrapped

    def reset(self, **options):
        return self.env.reset(**options)

    def step(self, action):
        outcome = self.env.step(action)
        self.endings.append(bool(outcome[2]))
        return outcome

    def close(self):
        self.env.close()


class Server:
    """The server class with one environment, reset again for every sequence."""

    def __init__(self, module):
        self.server = module.server
        self.id = self.server.create()["id"]

    def reset(self, index):
        payload = self.server.reset(self.id, index)
        if "error" in payload:
            raise RuntimeError(f"item {index}: {payload['error']}")
        self.game.env = Recorder(self.game.env)
        return payload

    def step(self, action):
        self.game.env.endings = []
        payload = self.server.step(self.id, action)
        if "error" in payload:
            raise RuntimeError(f"action {action!r}: {payload['error']}")
        return payload

    @property
    def game(self):
        return self.server.env[self.id]

    @property
    def grid_env(self):
        return self.game.env.unwrapped


def item_indices():
    used = [i for i in range(USED_INDICES) if i % LEVELS + 1 in USED_LEVELS]
    other = [
        seed * LEVELS + level - 1
        for seed in range(OTHER_SEEDS)
        for level in range(1, LEVELS + 1)
        if level not in USED_LEVELS
    ]
    return np.array(sorted(used + other), np.int32)


def digest(data):
    return np.frombuffer(hashlib.blake2b(data, digest_size=8).digest(), np.uint8)


def text_digest(text):
    return digest(text.encode())


def image_digest(image):
    return digest(np.ascontiguousarray(image, np.uint8).tobytes())


def as_bytes(value, compress=False):
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return np.frombuffer(zlib.compress(data, 9) if compress else data, np.uint8)


def code(thing):
    return (0, 0) if thing is None else (OBJECT_TO_IDX[thing.type], COLOR_TO_IDX[thing.color])


def pose(env):
    return [*(int(c) for c in env.agent_pos), int(env.agent_dir)]


def places(env):
    """Position of each object of the grid, by identity."""
    width = env.grid.width
    return {id(thing): [k % width, k // width] for k, thing in enumerate(env.grid.grid) if thing is not None}


def describe(desc, where):
    return {
        "type": desc.type,
        "color": desc.color,
        "loc": desc.loc,
        "obj_poss": [[int(x), int(y)] for x, y in desc.obj_poss],
        "tracked": [where.get(id(thing)) for thing in desc.obj_set],
    }


def structure(instr, where):
    tree = {"kind": KINDS[type(instr)], "strict": bool(getattr(instr, "strict", False))}
    for name in ("desc", "desc_move", "desc_fixed"):
        if hasattr(instr, name):
            tree[name] = describe(getattr(instr, name), where)
    for name in ("a", "b"):
        if hasattr(instr, f"instr_{name}"):
            tree[name] = structure(getattr(instr, f"instr_{name}"), where)
    return tree


def snapshot(env):
    grid = np.zeros((SIDE, SIDE, 3), np.int8)
    grid[: env.height, : env.width] = env.grid.encode().transpose(1, 0, 2)
    contains = np.zeros((SIDE, SIDE, 2), np.int8)
    for k, thing in enumerate(env.grid.grid):
        if thing is not None and thing.contains is not None:
            contains[k // env.width, k % env.width] = code(thing.contains)
    return {
        "mission": env.mission,
        "width": env.width,
        "height": env.height,
        "room_size": env.room_size,
        "num_rows": env.num_rows,
        "num_cols": env.num_cols,
        "max_steps": env.max_steps,
        "grid": grid,
        "contains": contains,
        "agent": pose(env),
        "carrying": code(env.carrying),
        "instruction": structure(env.instrs, places(env)),
    }


def same(one, other):
    return all(np.array_equal(one[key], other[key]) for key in one if key != "instruction") and (
        one["instruction"] == other["instruction"]
    )
