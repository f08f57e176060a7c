"""Records the levels of all items."""

import gymnasium
import numpy as np
from original import DISCARDS, LEVELS, Server, as_bytes, item_indices, same, snapshot
from record_traces import save

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
