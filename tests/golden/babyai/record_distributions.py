"""Counts what MiniGrid's generator makes."""

import json
import re
import signal
import time
from collections import Counter

import gymnasium
import minigrid
from minigrid.core.constants import COLOR_TO_IDX
from minigrid.envs.babyai.core import verifier
from original import DISCARDS, KINDS, LEVELS, same, snapshot


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
