"""Recorded episodes as columns of the page.

Shapes: `R` episodes, `U` turns that were played in all of them together, `N` sampled tokens in all turns together.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl_jax.errors import BadValue
from agentrl_jax.runs.rollout_records import RolloutRecord
from agentrl_jax.viewer.columns import Precision, pack, quantize, smallest
from agentrl_jax.viewer.pieces import Pieces

QUANTIZED = {
    "logprob": Precision(levels=1024, scale=1e-2, share=0.006, most=100),
    "entropy": Precision(levels=1024, scale=1e-3, share=0.006, most=100),
    "advantage": Precision(levels=256, scale=1e-1, share=0.04, most=100),
    "gap": Precision(levels=256, scale=1e-4, share=0.06, most=20),
}
"""How exactly a block stores the numbers of tokens; the page says so."""

Scenes = Sequence[Sequence[dict[str, Any]]]
"""The scenes of every episode, as `scenes.run_scenes` returns them."""


def summary_columns(record: RolloutRecord) -> dict[str, np.ndarray]:
    """What lists and filters need to know about each episode, as arrays of length R."""
    played = np.arange(record.reward.shape[1]) < record.num_turns[:, None]
    first = np.where(record.num_turns[:, None] > 0, record.state_hash[:, 0], 0)
    count = len(record.task)
    return {
        "iteration": np.full(count, record.header.iteration, np.int32),
        "row": np.arange(count, dtype=np.int32),
        "task": record.task,
        "group": record.group,
        "member": record.member,
        "level_high": first[:, 0].astype(np.uint32),
        "level_low": first[:, 1].astype(np.uint32),
        "return": record.returns,
        "success": record.success.any(axis=1),
        "failed": record.failed.any(axis=1),
        "overflow": record.overflow,
        "truncation": record.truncation.astype(np.uint8),
        "turns": record.num_turns,
        "format_errors": np.where(played, record.format_error, 0).sum(axis=1, dtype=np.int32),
        "tokens": np.where(played, record.length, 0).sum(axis=1, dtype=np.int32),
    }


def pack_episodes(record: RolloutRecord, pieces: Pieces, scenes: Scenes | None) -> bytes:
    """Packs the tokens, numbers and scenes of one iteration; empty `scenes` of an episode mean that it has none."""
    turns = np.arange(record.reward.shape[1]) < record.num_turns[:, None]
    sampled = (np.arange(record.tokens.shape[2]) < record.length[..., None]) & turns[..., None]
    seen = (np.arange(record.observation.shape[2]) < record.observation_length[..., None]) & turns[..., None]
    final = np.arange(record.final_observation.shape[1]) < record.final_observation_length[:, None]
    prompts, prompt = _distinct([row[:n] for row, n in zip(record.prompt, record.prompt_length)])
    done = record.actions[turns]
    columns = {
        "turns": smallest(record.num_turns),
        "prompt": smallest(prompt),
        "prompt_length": smallest(np.asarray([len(p) for p in prompts], np.int64)),
        "prompt_tokens": smallest(pieces.numbers(np.concatenate([*prompts, np.zeros(0, np.int32)]))),
        "observation_length": smallest(record.observation_length[turns]),
        "observation_tokens": smallest(pieces.numbers(record.observation[seen])),
        "final_length": smallest(record.final_observation_length),
        "final_tokens": smallest(pieces.numbers(record.final_observation[final])),
        "length": smallest(record.length[turns]),
        "tokens": smallest(pieces.numbers(record.tokens[sampled])),
        "trained": record.trained[sampled],
        "action_count": smallest((done >= 0).sum(axis=1)),
        "actions": smallest(done[done >= 0]),
        "reward": record.reward[turns],
        "valid": record.valid[turns],
        "format_error": smallest(np.maximum(record.format_error[turns], 0)),
        "attempt": smallest(np.maximum(record.attempt[turns], 0)),
    }
    gap = record.learner_logprob - record.logprob
    if record.header.temperature == 0:  # the learner's are then those of another temperature
        gap = np.full_like(gap, np.nan)
    numbers = {
        "logprob": record.logprob,
        "entropy": record.entropy,
        "advantage": record.advantage,
        "gap": gap,
    }
    for name, values in numbers.items():
        columns[f"{name}_table"], columns[name] = quantize(values[sampled].astype(np.float32), QUANTIZED[name])
    header: dict[str, Any] = {"iteration": record.header.iteration}
    if scenes is not None:
        if len(scenes) != len(record.task):
            raise BadValue(
                f"scenes of {len(scenes)} episodes, expected those of {len(record.task)}",
                key="scenes",
                value=len(scenes),
            )
        header["scenes"], scene_columns = pack_scenes(scenes)
        columns |= scene_columns
    return pack(header, columns)


def _distinct(rows: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """The distinct rows, and for each row the index of the one it equals."""
    known: dict[bytes, int] = {}
    index = np.asarray([known.setdefault(row.tobytes(), len(known)) for row in rows], np.int64)
    return [np.frombuffer(row, np.int32) for row in known], index


def pack_scenes(scenes: Scenes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Scenes as a header with the distinct texts, actions, lists, images and sprite stacks, and columns of numbers.

    A scene without a grid has width and height 0, and one without an image the image 0. Scenes follow each other in the
    order of the episodes.
    """
    texts: dict[str, int] = {}
    actions: dict[str | None, int] = {None: 0}
    stacks: dict[tuple[str, ...], int] = {(): 0}
    lists: dict[str, int] = {}
    images: dict[str, int] = {"": 0}
    sets: dict[tuple[int, ...], int] = {(): 0}
    rows: list[tuple[int, ...]] = []
    cells: list[int] = []
    for scene in (scene for episode in scenes for scene in episode):
        grid = scene["cells"] if scene["kind"] == "grid" else []
        width = len(grid[0]) if grid else 0
        if any(len(row) != width for row in grid):
            raise BadValue(
                f"the rows of a scene have {sorted({len(row) for row in grid})} cells, expected one width", key="scene"
            )
        cells.extend(stacks.setdefault(tuple(cell), len(stacks)) for row in grid for cell in row)
        text = texts.setdefault("\n".join(scene.get("text", ())), len(texts))
        action = actions.setdefault(scene["action"], len(actions))
        found = tuple(lists.setdefault(json.dumps(part), len(lists)) for part in scene.get("lists", ()))
        image = images.setdefault(scene.get("image", ""), len(images))
        rows.append((int(scene["turn"]), action, width, len(grid), text, sets.setdefault(found, len(sets)), image))
    names = ("scene_turn", "scene_action", "scene_width", "scene_height", "scene_text", "scene_lists", "scene_image")
    table = np.asarray(rows, np.int64).reshape(-1, len(names))
    columns = {name: smallest(table[:, i]) for i, name in enumerate(names)}
    columns["scene_count"] = smallest(np.asarray([len(episode) for episode in scenes], np.int64))
    columns["scene_cells"] = smallest(np.asarray(cells, np.int64))
    header = {"texts": list(texts), "actions": list(actions), "stacks": [list(stack) for stack in stacks]}
    header |= {
        "images": list(images),
        "lists": [json.loads(part) for part in lists],
        "list_sets": [list(found) for found in sets],
    }
    return header, columns
