"""Records play: what the server answers, and MiniGrid's primitive actions."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
from original import (
    AWKWARD_SHARE,
    BLOCKED_SEEDS,
    BLOCKER,
    BUSY,
    EXPERT,
    GREEDY,
    LEVELS,
    PRIMITIVE_SEEDS,
    PRIMITIVES,
    ROUNDS,
    SCARCE,
    SCARCEST,
    TEXT_SEEDS,
    UNIFORM,
    Server,
    as_bytes,
    code,
    image_digest,
    item_indices,
    pose,
    text_digest,
)
from players import awkward, blocker, busy_hands, expert, greedy, pick, reason, scarce, uniform

EXPERT_PLANS = Path(__file__).parent / "fixtures" / "expert_plans.json"


def play(server, index, kind, texts, said, script=None):
    """One sequence: the columns of its steps. `script` are the actions of an expert."""
    players = (uniform, busy_hands, greedy, blocker, expert)
    rng = np.random.default_rng([index, kind])
    first = server.reset(index)
    game, plan, steps = server.game, list(script or ()), []
    odd = kind in (UNIFORM, BUSY) and (index % LEVELS + index // LEVELS) % 5 == 4 - kind
    seen = first["observation"]
    for _ in range(ROUNDS if script is None else len(script)):
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
    for index, script in json.loads(EXPERT_PLANS.read_text(encoding="utf-8")).items():
        steps.extend(play(server, int(index), EXPERT, None, said, script)[1])
        items.append(indices.tolist().index(int(index)))
        kinds.append(EXPERT)
        starts.append(len(steps))
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
