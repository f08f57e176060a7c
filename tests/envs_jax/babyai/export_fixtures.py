"""Records levels, play and statistics of the original BabyAI software as fixtures for our tests.

Not a test and not imported by one: it runs once, in an environment of its own, with minigrid 2.3.1 and the environment
file of AgentGym's BabyAI server. Neither is a dependency of this repository and no code of theirs is kept in it. To
recreate everything (Python 3.11; `gym`, `matplotlib` and `PIL` are replaced by empty stand-ins where missing):

    python3.11 -m venv minigrid_venv
    minigrid_venv/bin/pip install minigrid==2.3.1 gymnasium==0.29.1 "numpy<2"
    git clone https://github.com/WooooDyy/AgentGym
    WRAPPER=AgentGym/agentenv-babyai/agentenv_babyai/environment.py
    minigrid_venv/bin/python tests/envs_jax/babyai/export_fixtures.py levels --wrapper $WRAPPER
    minigrid_venv/bin/python tests/envs_jax/babyai/export_fixtures.py traces --wrapper $WRAPPER
    minigrid_venv/bin/python tests/envs_jax/babyai/export_fixtures.py distributions --wrapper $WRAPPER

Items: data indices 0 to 2003 of the eighteen levels that AgentGym uses, and seeds 0 to 22 of the other levels, in
increasing order of the index (level = index mod 40 + 1, seed = index div 40). The server creates an environment per
item and resets it twice with the same seed; so does everything here.

`levels.npz` (row n is item n; a string array is fixed-width unicode):
    index i32[N], level i8[N], seed i16[N], mission U[N], goal U[N] (the server's wording of the mission);
    width, height, room_size, num_rows, num_cols i8[N], max_steps i32[N];
    grid i8[N, 22, 22, 3]: type, color and state of the whole level at [y, x] in MiniGrid's codes, 0 outside of it;
    contains i8[N, 22, 22, 2]: type and color of what a box holds, 0 without;
    agent i8[N, 3]: x, y, heading; carrying i8[N, 2]: type and color, 0 without;
    image u8[N, 7, 7, 3]: the first view, at [column, row] as MiniGrid has it;
    instruction u8[B]: UTF-8 bytes of a JSON list with one object per item. Kinds goto, open, pickup: `desc`, `strict`.
        putnext: `desc_move`, `desc_fixed`, `strict`. before, after, and: `a`, `b`, `strict`. A description: `type`,
        `color`, `loc` (each a word or null), `obj_poss` (the positions the verifier holds) and `tracked` (where the
        tracked objects are, null for one in the agent's hands);
    rejected i16[N]: layouts discarded in the first reset; once bool[N]: the second reset gave the level of the first.

`traces.npz`:
    index i32[N]; first_text, first_image u8[N, 8]: digests of what the server's reset returned;
    sequence_item i32[S] (row of `index`), sequence_kind i8[S] (0 uniform, 1 busy hands, 2 greedy, 3 blocked doors, only
        where seeds 0 to 4 have doors), sequence_start i32[S + 1]: sequence s has the steps from sequence_start[s] up to
        sequence_start[s + 1]. A sequence ends after twenty steps or with `done`;
    actions u8[B]: JSON list of action texts; action u16[T]: the text sent, as position in that list; awkward bool[T]:
        it was drawn to provoke a refusal (often in a fifth of the sequences of kinds 0 and 1, now and then in those of
        kind 2) or was not listed;
    reward, score f64[T], done bool[T] as the server returned them; step_count i32[T] of MiniGrid; primitives u8[T]:
        MiniGrid steps of this action; terminated bool[T]: the last of them terminated (false without any);
    agent i8[T, 3] and carrying i8[T, 2] after the step, coded as in the levels;
    text, image u8[T, 8]: digests of the server's observation and of the view the wrapper holds after the step;
    texts u8[B]: zlib-compressed JSON list of full texts: the first observations of the rows in text_item i32[K1], then
        the observations of the steps in text_step i32[K2];
    primitive_item i32[P], primitive_kind i8[P] (0 uniform over the seven actions, 1 drawn to what lies ahead),
        primitive_action u8[P, 60], primitive_image u8[P, 60, 8], primitive_reward f64[P, 60], primitive_terminated
        bool[P, 60], primitive_agent i8[P, 60, 3], primitive_carrying i8[P, 60, 2]: MiniGrid played directly, on after
        a termination.
A digest is blake2b with 8 bytes, of the UTF-8 text or of the view's 147 bytes in C order.

`distributions.json`: see `count_levels`.
"""

import argparse
import hashlib
import importlib.util
import json
import re
import signal
import sys
import time
import types
import zlib
from collections import Counter
from pathlib import Path

import gymnasium
import minigrid
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
UNIFORM, BUSY, GREEDY, BLOCKER = 0, 1, 2, 3
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


# Original software


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


# Levels


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


LEVEL_TYPES = {
    "index": np.int32,
    "level": np.int8,
    "seed": np.int16,
    "width": np.int8,
    "height": np.int8,
    "room_size": np.int8,
    "num_rows": np.int8,
    "num_cols": np.int8,
    "max_steps": np.int32,
    "grid": np.int8,
    "contains": np.int8,
    "agent": np.int8,
    "carrying": np.int8,
    "image": np.uint8,
    "rejected": np.int16,
    "once": bool,
    "mission": np.str_,
    "goal": np.str_,
}


def export_levels(module, out):
    server = Server(module)
    rows = []
    for index in item_indices():
        level, seed = int(index) % LEVELS + 1, int(index) // LEVELS
        lone = gymnasium.make(module.all_levels[level]).unwrapped
        DISCARDS.take()
        lone.reset(seed=seed)
        rejected = sum(DISCARDS.take())
        server.reset(int(index))
        row = snapshot(server.grid_env)
        once = same(row, snapshot(lone))
        row.update(index=index, level=level, seed=seed, goal=server.game.goal, rejected=rejected, once=once)
        row["image"] = server.game.obs_2d
        rows.append(row)
    arrays = {name: np.array([row[name] for row in rows], kind) for name, kind in LEVEL_TYPES.items()}
    arrays["instruction"] = as_bytes([row["instruction"] for row in rows])
    save(out / "levels.npz", arrays)


# Play


def leaf(instr):
    """The clause to work on next."""
    while isinstance(instr, verifier.SeqInstr):
        first, second = ("b", "a") if isinstance(instr, verifier.AfterInstr) else ("a", "b")
        pending = getattr(instr, f"{first}_done") != "success"
        instr = getattr(instr, f"instr_{first if pending else second}")
    return instr


def fits(desc, name):
    words = name.split()
    return desc.type in (None, words[-1]) and desc.color in (None, words[0])


def named(listed, verb, keep):
    """Listed actions `verb <name> <number>` whose name passes."""
    return [a for a in listed if a.startswith(verb + " ") and keep(a[len(verb) + 1 :].rsplit(" ", 1)[0])]


def pick(rng, options, weights=None):
    weights = np.ones(len(options)) if weights is None else np.array(weights, float)
    return options[int(rng.choice(len(options), p=weights / weights.sum()))]


def uniform(rng, game, plan):
    return pick(rng, listed_actions(game))


def listed_actions(game):
    return [a for a in game._get_action_space() if a != LISTING]


def busy_hands(rng, game, plan):
    listed = listed_actions(game)
    hands = ("pickup", "drop", "toggle", "go through")
    return pick(rng, listed, [5 if a.startswith(hands) else 1 for a in listed])


def greedy(rng, game, plan):
    """Goes for the next clause where the menu offers it, otherwise through doors; one action in ten is random."""
    listed = [a for a in listed_actions(game) if game.action_space[a]]
    while plan:
        action = plan.pop(0)
        if action in listed:
            return action
        plan.clear()
    if rng.random() >= 0.1:
        wanted = towards(rng, game, listed, leaf(game.env.unwrapped.instrs), plan)
        if wanted:
            return pick(rng, wanted)
        return explore(rng, game, listed)
    return pick(rng, listed)


def towards(rng, game, listed, clause, plan):
    env = game.env.unwrapped
    ahead = env.grid.get(*env.front_pos)
    hands = env.carrying

    def take(desc):
        if hands is None:
            return named(listed, "pickup", lambda name: fits(desc, name))
        return ["drop"] if "drop" in listed else ["turn left", "turn right"]

    if isinstance(clause, verifier.GoToInstr):
        return named(listed, "go to", lambda name: fits(clause.desc, name))
    if isinstance(clause, verifier.PickupInstr):
        return take(clause.desc)
    if isinstance(clause, verifier.OpenInstr):
        if "toggle" in listed and fits(clause.desc, f"{ahead.color} door"):
            return ["toggle"]
        locked = named(listed, "go to", lambda name: fits(clause.desc, name) and "locked" in name)
        colors = {action.split()[2] for action in locked}
        if hands is not None and hands.type == "key" and hands.color in colors:
            return [action for action in locked if action.split()[2] == hands.color]
        closed = named(listed, "go to", lambda name: fits(clause.desc, name) and "closed" in name)
        keys = [] if hands else named(listed, "pickup", lambda name: name.split()[0] in colors and "key" in name)
        return closed + keys
    if hands is None or not any(hands is thing for thing in clause.desc_move.obj_set):
        return take(clause.desc_move)
    x, y = env.front_pos
    if "drop" in listed and any(abs(x - i) + abs(y - j) == 1 for i, j in clause.desc_fixed.obj_poss):
        return ["drop"]
    if ahead is not None and any(ahead is thing for thing in clause.desc_fixed.obj_set):
        turns = pick(rng, [("turn left", "turn right"), ("turn right", "turn left")])
        plan.extend(["move forward", turns[1]])
        return [turns[0]]
    return named(listed, "go to", lambda name: fits(clause.desc_fixed, name))


def blocker(rng, game, plan):
    """Opens a door and puts something in front of it, so that the way through an open door is barred."""
    listed = [a for a in listed_actions(game) if game.action_space[a]]
    if plan:
        return plan.pop(0)
    env = game.env.unwrapped
    if env.carrying is None:
        things = named(listed, "pickup", lambda name: True)
        return pick(rng, things) if things else explore(rng, game, listed)
    if "toggle" in listed:
        door = f"{env.grid.get(*env.front_pos).color} open door 1"
        around = ["turn left", "turn left"]
        plan.extend([*around, "move forward", *around, "drop", f"go through {door}", f"go to {door}"])
        return "toggle"
    doors = named(listed, "go to", lambda name: "closed" in name)
    return pick(rng, doors) if doors else explore(rng, game, listed)


def explore(rng, game, listed):
    keyless = game.env.unwrapped.carrying is None
    locks = any(
        thing is not None and thing.type == "door" and thing.is_locked for thing in game.env.unwrapped.grid.grid
    )
    weights = []
    for action in listed:
        if action.startswith("toggle and"):
            weights.append(6)
        elif action.startswith(("go through", "move")):
            weights.append(2)
        elif action.startswith("pickup"):
            weights.append(4 if keyless and locks and " key " in action else 0.1)
        elif action == "drop":
            weights.append(0.1)
        elif action.startswith("go to"):
            weights.append(0.3)
        else:
            weights.append(1)
    return pick(rng, listed, weights)


def awkward(rng, game, seen, pattern):
    """An action outside the list, or a listed one in unusual spelling."""
    listed = game._get_action_space()
    way = 15 if scarce(game, pattern) and rng.random() < 0.75 else int(rng.integers(16))
    if way == 0:
        return pick(rng, [LISTING, "check", " CHECK available actions", "let me check"])
    if way == 1:
        return pick(rng, ["", "   "])
    if way == 2:
        return pick(rng, ["nonsense", "go to", "pickup", "go to the moon 1", "toggle and go through", "turn", "done"])
    if way in (3, 4, 5):
        return ("move forward", "drop", "toggle")[way - 3]
    if way == 6:
        verbs = ("pickup", "go to", "go through", "toggle and go through")
        names = re.findall(r"There is a ([a-z ]+) (\d+) ", seen)
        options = [f"{verb} {name} {int(k) + more}" for verb in verbs for name, k in names for more in (0, 1)]
        options = [option for option in options if option not in listed]
        if options:
            return pick(rng, options)
    if way == 7:
        action = pick(rng, listed)
        return pick(rng, [action.upper(), f" {action} ", action.title(), action + "."])
    reasons = {}
    for refused, message in game.error_message.items():
        if pattern.search(message) or not scarce(game, pattern):
            reasons.setdefault(reason(message), []).append(refused)
    return pick(rng, reasons[pick(rng, sorted(reasons))]) if reasons else "drop"


def scarce(game, pattern):
    """Whether a refusal is to be had that seldom is."""
    return any(pattern.search(message) for message in game.error_message.values())


def reason(message):
    """A refusal without its names, numbers and dictionaries."""
    return NAME.sub(
        lambda name: "{" + f"{name[3] or ''} {name[4]}".strip() + "}" if name[4] == "door" else "{object}",
        re.sub(r"\{.*\}", "{dictionary}", message),
    )


def play(server, index, kind, texts, said):
    """One sequence: the columns of its steps."""
    players = (uniform, busy_hands, greedy, blocker)
    rng = np.random.default_rng([index, kind])
    first = server.reset(index)
    game, plan, steps = server.game, [], []
    odd = kind in (UNIFORM, BUSY) and (index % LEVELS + index // LEVELS) % 5 == 4 - kind
    seen = first["observation"]
    for _ in range(ROUNDS):
        if kind == GREEDY:
            strange = scarce(game, SCARCEST) and rng.random() < 0.5
        else:
            strange = odd and rng.random() < (0.75 if scarce(game, SCARCE) else AWKWARD_SHARE)
        if strange:
            action = awkward(rng, game, seen, SCARCEST if kind == GREEDY else SCARCE)
        else:
            action = players[kind](rng, game, plan)
        strange = strange or action not in game._get_action_space()
        payload = server.step(action)
        if "The room has walls" in payload["observation"]:
            seen = payload["observation"]
        endings = game.env.endings
        steps.append(
            {
                "action": action,
                "awkward": strange,
                "reward": payload["reward"],
                "score": payload["score"],
                "done": payload["done"],
                "step_count": server.grid_env.step_count,
                "primitives": len(endings),
                "terminated": bool(endings) and endings[-1],
                "agent": pose(server.grid_env),
                "carrying": code(server.grid_env.carrying),
                "text": text_digest(payload["observation"]),
                "image": image_digest(game.obs_2d),
            }
        )
        replies = payload["observation"].split("\nAvailable")[0]
        if "The room has walls" not in replies:
            said[reason(replies) if "You can take" not in replies else replies[:39]] += 1
        if texts is not None:
            texts.append(payload["observation"])
        if payload["done"]:
            break
    return first, steps


STEP_TYPES = {
    "awkward": bool,
    "reward": np.float64,
    "score": np.float64,
    "done": bool,
    "step_count": np.int32,
    "primitives": np.uint8,
    "terminated": bool,
    "agent": np.int8,
    "carrying": np.int8,
    "text": np.uint8,
    "image": np.uint8,
}


def drawn_ahead(rng, env):
    """Mostly an action that does something to the cell ahead."""
    ahead = env.grid.get(*env.front_pos)
    if rng.random() < 0.25:
        return int(rng.integers(7))
    if ahead is None:
        if env.carrying is not None and rng.random() < 0.2:
            return 4
        return pick(rng, [0, 1, 2], [1, 1, 4])
    if ahead.type == "wall":
        return pick(rng, [0, 1])
    return pick(rng, [0, 1, 2, 3, 4, 5], [1, 1, 2, 3, 1, 3])


def play_primitives(server, index, kind):
    rng = np.random.default_rng([index, 3 + kind])
    server.reset(index)
    env = server.grid_env
    steps = []
    for _ in range(PRIMITIVES):
        action = int(rng.integers(7)) if kind == 0 else drawn_ahead(rng, env)
        obs, reward, terminated, _, _ = env.step(action)
        steps.append((action, image_digest(obs["image"]), reward, terminated, pose(env), code(env.carrying)))
    return steps


def export_traces(module, out):
    server = Server(module)
    indices = item_indices()
    items, starts, kinds, steps = [], [0], [], []
    first_text, first_image = [], []
    text_item, text_step, openings, observations = [], [], [], []
    said = Counter()
    for row, index in enumerate(indices.tolist()):
        kept = index // LEVELS < TEXT_SEEDS
        server.reset(index)
        first_image.append(image_digest(server.game.obs_2d))
        doors = any(thing is not None and thing.type == "door" for thing in server.grid_env.grid.grid)
        for kind in (UNIFORM, BUSY, GREEDY, BLOCKER)[: 4 if doors and index // LEVELS < BLOCKED_SEEDS else 3]:
            first, played = play(server, index, kind, observations if kept else None, said)
            if kept:
                text_step.extend(range(len(steps), len(steps) + len(played)))
            steps.extend(played)
            items.append(row)
            kinds.append(kind)
            starts.append(len(steps))
        if kept:
            text_item.append(row)
            openings.append(first["observation"])
        first_text.append(text_digest(first["observation"]))
    words = sorted({step["action"] for step in steps})
    position = {word: k for k, word in enumerate(words)}
    arrays = {
        "index": indices,
        "first_text": np.array(first_text),
        "first_image": np.array(first_image),
        "sequence_item": np.array(items, np.int32),
        "sequence_kind": np.array(kinds, np.int8),
        "sequence_start": np.array(starts, np.int32),
        "actions": as_bytes(words),
        "action": np.array([position[step["action"]] for step in steps], np.uint16),
        "text_item": np.array(text_item, np.int32),
        "text_step": np.array(text_step, np.int32),
        "texts": as_bytes(openings + observations, compress=True),
    }
    for name, kind in STEP_TYPES.items():
        arrays[name] = np.array([step[name] for step in steps], kind)
    rows = [r for r, index in enumerate(indices.tolist()) if index // LEVELS < PRIMITIVE_SEEDS]
    runs = [(row, kind, play_primitives(server, int(indices[row]), kind)) for row in rows for kind in (0, 1)]
    arrays["primitive_item"] = np.array([run[0] for run in runs], np.int32)
    arrays["primitive_kind"] = np.array([run[1] for run in runs], np.int8)
    columns = {"action": np.uint8, "image": np.uint8, "reward": np.float64, "terminated": bool}
    columns.update(agent=np.int8, carrying=np.int8)
    for k, (name, kind) in enumerate(columns.items()):
        arrays[f"primitive_{name}"] = np.array([[step[k] for step in run[2]] for run in runs], kind)
    for message, count in said.most_common():
        print(f"{count:6} {message}")
    save(out / "traces.npz", arrays)


def save(path, arrays):
    np.savez_compressed(path, **arrays)
    for name, array in arrays.items():
        print(f"{name:20} {array.dtype!s:8} {array.shape}")
    print(f"{path.name}: {path.stat().st_size:,} bytes")


# Statistics


def clauses(instr):
    """The single clauses of an instruction in the order of its text."""
    if isinstance(instr, verifier.SeqInstr):
        return clauses(instr.instr_a) + clauses(instr.instr_b)
    return [instr]


def shape(instr):
    if isinstance(instr, verifier.SeqInstr):
        return f"{KINDS[type(instr)]}({shape(instr.instr_a)},{shape(instr.instr_b)})"
    return KINDS[type(instr)]


COLORS = re.compile(r"\b(" + "|".join(COLOR_TO_IDX) + r")\b")


def measure(env, counts):
    """Adds one level to the histograms."""
    stride = env.room_size - 1
    cells = list(env.grid.grid)
    things = [(k, c) for k, c in enumerate(cells) if c is not None and c.type not in ("wall", "door")]
    carried = [] if env.carrying is None else [env.carrying]
    doors = [c for c in cells if c is not None and c.type == "door"]
    loose = [c for _, c in things] + carried
    agent = [int(c) for c in env.agent_pos]

    def add(name, value):
        counts.setdefault(name, Counter())[value] += 1

    add("objects", len(loose))
    for kind in ("key", "ball", "box"):
        add(f"objects_{kind}", sum(c.type == kind for c in loose))
    for color in COLOR_TO_IDX:
        add(f"objects_{color}", sum(c.color == color for c in loose))
        add(f"doors_{color}", sum(c.color == color for c in doors))
    for thing in loose:
        counts.setdefault("object_pairs", Counter())[f"{thing.color} {thing.type}"] += 1
        if thing.contains is not None:
            counts.setdefault("box_contents", Counter())[f"{thing.contains.color} {thing.contains.type}"] += 1
    for k, _ in things:
        room = f"{k % env.width // stride},{k // env.width // stride}"
        counts.setdefault("object_rooms", Counter())[room] += 1
    add("doors", len(doors))
    add("doors_open", sum(d.is_open for d in doors))
    add("doors_closed", sum(not d.is_open and not d.is_locked for d in doors))
    add("doors_locked", sum(not d.is_open and d.is_locked for d in doors))
    for k, c in enumerate(cells):
        if c is not None and c.type == "door":
            counts.setdefault("door_cells", Counter())[f"{k % env.width},{k // env.width}"] += 1
    add("agent_room", f"{agent[0] // stride},{agent[1] // stride}")
    add("agent_offset", f"{agent[0] % stride},{agent[1] % stride}")
    add("agent_heading", int(env.agent_dir))
    add("carrying", "nothing" if env.carrying is None else f"{env.carrying.color} {env.carrying.type}")
    add("free_cells", sum(c is None for c in cells))
    add("max_steps", int(env.max_steps))
    add("shape", shape(env.instrs))
    add("mission_form", COLORS.sub("{color}", env.mission))
    add("mission_colors", ",".join(COLORS.findall(env.mission)) if len(COLORS.findall(env.mission)) < 2 else "several")
    clause = clauses(env.instrs)[0]
    desc = clause.desc_move if isinstance(clause, verifier.PutNextInstr) else clause.desc
    add("tracked", len(desc.obj_set))
    distances = [abs(x - agent[0]) + abs(y - agent[1]) for x, y in desc.obj_poss]
    add("nearest", int(min(distances)))
    x, y = min(desc.obj_poss, key=lambda p: (abs(p[0] - agent[0]) + abs(p[1] - agent[1]), p))
    add("nearest_same_room", bool(env.room_from_pos(*agent).pos_inside(int(x), int(y))))


def sort_key(entry):
    value = entry[0]
    return (isinstance(value, str), value)


def pack(counter, top=200):
    if len(counter) <= top:
        return {str(k): int(v) for k, v in sorted(counter.items(), key=sort_key)}
    common = counter.most_common(top)
    packed = {str(k): int(v) for k, v in sorted(common, key=sort_key)}
    packed["other"] = int(sum(counter.values()) - sum(v for _, v in common))
    return packed


class Endless(Exception):
    """A reset that does not end: in level 35 a room can be so full that the agent has no valid place in it."""


RESET_SECONDS = 5


def end_reset(*_):
    raise Endless


def count_levels(module, level, first_seed, seeds, limit_s):
    """Histograms over the layouts of one level.

    Every histogram maps a value to its number of levels, except `object_pairs`, `object_rooms`, `box_contents` and
    `door_cells`, which count objects. Objects include one in the agent's hands (not in `object_rooms`), not what a box
    holds. A room is "column,row" from the cell's coordinates divided by room_size - 1; `agent_offset` is the rest.
    `free_cells` are cells without anything, the agent's included. `tracked`, `nearest` and `nearest_same_room` are
    about the first clause in the order of the text (its moved object): number of tracked objects, Manhattan distance of
    the agent to the nearest position, whether that lies in the square of the agent's room. `rejected` counts layouts
    discarded by sampling rules, `stuck` those given up after too many tries, both in the first reset. A histogram of
    more than 200 values keeps the commonest and adds up the rest as `other`.

    Seeds whose reset does not end are listed as `endless`, and left out.

    A level that remembers something across discarded layouts is reset a second time, as the server does.
    """
    env = gymnasium.make(module.all_levels[level]).unwrapped
    counts, rejected, stuck, changed, endless = {}, Counter(), Counter(), 0, []
    signal.signal(signal.SIGALRM, end_reset)
    start, done = time.monotonic(), 0
    for seed in range(first_seed, first_seed + seeds):
        if hasattr(env, "locked_room"):
            env.locked_room = None
        DISCARDS.take()
        try:
            signal.alarm(RESET_SECONDS)
            env.reset(seed=seed)
        except Endless:
            endless.append(seed)
            continue
        finally:
            signal.alarm(0)
        sampled, given_up = DISCARDS.take()
        rejected[sampled] += 1
        stuck[given_up] += 1
        if hasattr(env, "locked_room") and sampled + given_up:
            before = snapshot(env)
            env.reset(seed=seed)
            changed += not same(before, snapshot(env))
        measure(env, counts)
        done += 1
        if done == 2000 and time.monotonic() - start > limit_s * 2000 / seeds:
            break
    result = {"name": module.all_levels[level], "seeds": done, "changed_by_second_reset": changed, "endless": endless}
    result["rejected"], result["stuck"] = pack(rejected), pack(stuck)
    result.update({name: pack(counter) for name, counter in counts.items()})
    print(f"level {level}: {done} seeds in {time.monotonic() - start:.0f} s", flush=True)
    return result


def export_distributions(module, out, first_seed=100_000, seeds=10_000, limit_s=180.0):
    levels = {level: count_levels(module, level, first_seed, seeds, limit_s) for level in range(1, LEVELS + 1)}
    data = {"minigrid": minigrid.__version__, "first_seed": first_seed, "levels": levels}
    path = out / "distributions.json"
    path.write_text(json.dumps(data, indent=None, separators=(",", ":")) + "\n")
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("levels", "traces", "distributions"))
    parser.add_argument("--wrapper", type=Path, required=True, help="environment.py of AgentGym's BabyAI server")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "fixtures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    module = load_wrapper(options.wrapper)
    {"levels": export_levels, "traces": export_traces, "distributions": export_distributions}[options.what](
        module, options.out
    )


if __name__ == "__main__":
    main()
