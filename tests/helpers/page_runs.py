"""Folders of runs with rollouts that are drawn at random, of any size, without training; and what a page holds."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from agentrl_jax.config import decode, save_resolved
from agentrl_jax.runs.rollout_records import Header, RolloutRecord, write_record
from agentrl_jax.text.tokenizer import load_small
from agentrl_jax.viewer.columns import unpack

CONFIG = {
    "tasks": [{"env": "FrozenLake", "groups": 2}],
    "prompt": {"max_turns": 4, "max_actions_per_turn": 2, "max_actions": 10, "max_response_tokens": 12},
    "rollout": {"group_size": 4},
    "algo": {"preset": "starpo"},
}
TOKENIZER = load_small()
ACTIONS = ("Left", "Down", "Right", "Up")


def padded(rows, width: int, dtype=np.int32) -> np.ndarray:
    out = np.zeros((len(rows), width), dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def make_record(iteration, *, groups=2, group_size=4, turns=4, response=12, seed=0, observation="", full=False):
    """A record of one task with responses of random tokens; groups share their first state.

    A full one has all turns and tokens, those of the whole vocabulary by Zipf's law, and an advantage of each token.
    """
    draw = np.random.default_rng([seed, iteration])
    count = groups * group_size
    prompt = TOKENIZER.encode("You are on a frozen lake. Reach G and do not fall into a hole.\n")
    seen = [TOKENIZER.encode(observation or f"SFFF\nFHFH\nFFFH\nHFFG\nTurn {t + 1}\n") for t in range(turns)]
    said = TOKENIZER.encode("<think>I go right and then down to the goal</think><answer>Right || Down</answer>")
    words = np.arange(TOKENIZER.vocab_size) if full else said
    zipf = 1 / (1 + np.arange(len(words)))
    num_turns = draw.integers(turns if full else 1, turns + 1, count).astype(np.int32)
    played = np.arange(turns) < num_turns[:, None]
    shortest = response if full else max(1, response - 4)
    length = np.where(played, draw.integers(shortest, response + 1, (count, turns)), 0).astype(np.int32)
    tokens = draw.choice(words, (count, turns, response), p=zipf / zipf.sum() if full else None).astype(np.int32)
    sampled = np.arange(response) < length[..., None]
    logprob = np.where(sampled, -draw.exponential(0.7, tokens.shape), 0).astype(np.float32)
    success = np.zeros((count, turns), bool)
    success[np.arange(count), num_turns - 1] = draw.random(count) < 0.5
    actions = np.where(played[..., None], draw.integers(-1, 4, (count, turns, 2)), -1).astype(np.int32)
    width = max(len(row) for row in seen)
    each = tokens.shape if full else (count, turns, 1)
    sizes = {"group_size": group_size, "episodes": 2 * count, "horizon": turns}
    header = Header(iteration + 3, iteration, roll_backs=0, tasks=("FrozenLake",), temperature=1.0, **sizes)
    first = draw.integers(1, 2**32, (groups, 2), dtype=np.uint32)
    hashes = draw.integers(1, 2**32, (count, turns, 2), dtype=np.uint32)
    hashes[:, 0] = np.repeat(first, group_size, 0)
    return RolloutRecord(
        header=header,
        task=np.zeros(count, np.int32),
        group=np.repeat(np.arange(groups, dtype=np.int32), group_size),
        member=np.tile(np.arange(group_size, dtype=np.int32), groups),
        level=np.full(count, -1, np.int32),
        prompt=padded([prompt] * count, len(prompt)),
        prompt_length=np.full(count, len(prompt), np.int32),
        observation=np.broadcast_to(padded(seen, width), (count, turns, width)).copy(),
        observation_length=np.where(played, [len(row) for row in seen], 0).astype(np.int32),
        lead=np.zeros((count, turns), np.int32),
        tokens=np.where(sampled, tokens, 0).astype(np.int32),
        length=length,
        logprob=logprob,
        learner_logprob=np.where(sampled, logprob + draw.normal(0, 1e-3, tokens.shape), np.nan).astype(np.float32),
        entropy=np.where(sampled, draw.gamma(1.0, 0.6, tokens.shape), np.nan).astype(np.float32),
        advantage=np.where(sampled, draw.normal(0, 1, each), 0).astype(np.float32),
        trained=sampled & (np.arange(count) % 4 > 0)[:, None, None],
        actions=actions,
        reward=np.where(success, 1.0, np.where(played, -0.1, 0)).astype(np.float32),
        valid=played & (actions >= 0).any(-1),
        format_error=(played & (draw.random(played.shape) < 0.2)).astype(np.int32),
        state_hash=hashes,
        terminated=success,
        success=success,
        failed=np.zeros((count, turns), bool),
        num_turns=num_turns,
        truncation=np.where(success.any(1) | (num_turns < turns), 0, 1).astype(np.int32),
        overflow=np.zeros(count, bool),
        final_observation=np.zeros((count, width), np.int32),
        final_observation_length=np.zeros(count, np.int32),
        attempt=np.zeros((count, turns), np.int32),
    )


def write_run(folder: Path, records: list[RolloutRecord], *, iterations=40, config=None, finished=True) -> Path:
    folder.mkdir()
    save_resolved(decode(CONFIG | (config or {}), source="made run"), folder / "config.yaml")
    for record in records:
        write_record(folder, record)
    draw = np.random.default_rng(5)
    rows = []
    for i in range(1, iterations + 1):
        rate = 0.15 + 0.75 * (1 - np.exp(-i / 15)) + draw.normal(0, 0.02)
        row = {"step": i + 3, "stage": "rl", "iteration": i, "train/success": rate, "train/return": 1.2 * rate - 0.3}
        row |= {"actor/entropy": 1.4 * np.exp(-i / 25), "train/response_tokens": 10 + draw.normal(0, 0.5)}
        if i % 10 == 0:
            row["validation/success"] = rate - 0.03
        if i > iterations - 8:
            row["alarm/entropy_lost"] = 1.0
        rows.append(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        lines = {"random": (0.12, 0.08, 0.17), "optimal": (0.98, 0.95, 1.0)}
        success = {name: dict(zip(("mean", "low", "high"), line)) for name, line in lines.items()}
        (folder / "summary.json").write_text(json.dumps({"success": success, "optimal_is": "exact"}))
    return folder


def write_long_run(folder: Path) -> Path:
    return write_run(folder, [make_record(i, groups=25, response=500, full=True) for i in range(1, 11)])


def write_checkpoints(run, roll_backs):
    """Writes complete checkpoints, given as the number of roll-backs before each step, without their states."""
    for step, number in roll_backs.items():
        folder = run / "checkpoints" / str(step)
        (folder / "meta").mkdir(parents=True)
        (folder / "meta" / "metadata").write_text(json.dumps({"step": step, "roll_backs": number}))
        (folder / "digests.json").write_text("{}")


LOG_EPISODES = 24
HOSTILE_LOG = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202egnp.exe"


def write_log(file: Path) -> Path:
    """Writes a log as RAGEN's evaluation does: every third episode is solved, unsolved, or without an outcome.

    Episode i has 1 + i % 4 turns and the reward i, or none. The first response of the first one is hostile.
    """
    system = {"role": "system", "content": "You solve Sokoban. Push every box onto a target."}
    with open(file, "w") as stream:
        for i in range(LOG_EPISODES):
            messages = [system]
            for turn in range(1 + i % 4):
                text = HOSTILE_LOG if i == turn == 0 else f"<answer>Down {turn} of {i}</answer>"
                messages.append({"role": "user", "content": f"Turn {turn + 1}\n#_P_#"})
                messages.append({"role": "assistant", "content": text})
            messages.append({"role": "user", "content": "Reward: 0.0"})
            metadata = {"env_id": i, "group_id": i // 4, "note": f"<b>{i}</b>"}
            if i % 3 < 2:
                metadata |= {"total_reward": float(i), "CoordSokoban/success": 1.0 - i % 3}
            stream.write(json.dumps({"custom_id": f"traj_{i}", "messages": messages, "metadata": metadata}) + "\n")
    return file


_OWN_SHAPES = ("wall", "box", "key", "door", "cross", "dot", "ball")
SPRITES = {name: {"shape": name, "color": "peru", "label": name} for name in _OWN_SHAPES} | {
    "ice": {"shape": "square", "color": "#cfe8f5", "label": "ice"},
    "hole": {"shape": "circle", "color": "#1f3a5f", "label": "hole"},
    "goal": {"shape": "diamond", "color": "green", "label": "goal"},
    "agent": {"shape": "triangle", "turn": 0, "color": "crimson", "label": "agent"},
    "letter": {"shape": "letter", "color": "gray", "label": "A letter"},
    "unseen": {"shape": "square", "color": "#00000055", "label": "not seen"},
}
"""Every shape once."""


class DrawnBoards:
    """In place of `agentrl_jax.viewer.scenes`: boards that follow the actions of a record, with every shape on them."""

    SPRITES = SPRITES
    last_text = "reward so far 0"

    def run_scenes(self, run, config, record, note=None):
        episodes = []
        for row in range(len(record.task) - 1):
            at = [1, 1]
            scenes = [self._scene(0, None, at)]
            for turn in range(record.num_turns[row]):
                for action in record.actions[row, turn]:
                    if action >= 0:
                        step = ((-1, 0), (0, 1), (1, 0), (0, -1))[action]
                        at = [min(6, max(1, p + d)) for p, d in zip(at, step)]
                        scenes.append(self._scene(turn, ACTIONS[action], at))
            episodes.append(scenes)
        return [*episodes, []]

    def _scene(self, turn, action, at):
        cells = [[["wall"] if {x, y} & {0, 7} else ["ice"] for x in range(8)] for y in range(8)]
        for i, name in enumerate(("hole", "goal", "box", "key", "door", "cross", "dot", "ball", "letter")):
            cells[1 + (5 * i) % 6][1 + (2 * i + i // 3) % 6].append(name)
        cells[at[1]][at[0]].append("agent")
        cells[6][6].append("unseen")
        text = [f"carrying nothing, turn {turn + 1}", self.last_text]
        size = {"kind": "grid", "width": 8, "height": 8}
        return {"turn": turn, "action": action, **size, "cells": cells, "text": text}


class Scripts(HTMLParser):
    """The script elements of a page as a browser's parser finds them, and the tags outside of them."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.tags, self.policy = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append([dict(attrs), ""])
        if tag == "meta" and dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"]

    def handle_endtag(self, tag):
        self.tags.append(f"/{tag}")

    def handle_data(self, data):
        if self.tags[-1:] == ["script"]:
            self.scripts[-1][1] += data


def decode_page(page: str):
    """Returns the index of a page and its blocks, as header and columns."""
    parts = {attrs["id"]: base64.b64decode(text) for attrs, text in Scripts(page).scripts if "id" in attrs}
    blocks = [unpack(parts[f"block-{i}"]) for i in range(len(parts) - 1)]
    return json.loads(gzip.decompress(parts["index"])), blocks


def episodes_of(columns, *names):
    """The rows of such columns of a block of scenes, apart for each episode."""
    rows = iter(zip(*(columns[name] for name in names), strict=True))
    return [[next(rows) for _ in range(count)] for count in columns["scene_count"]]


def assert_inert(page: str):
    found = Scripts(page)
    data = [body for attrs, body in found.scripts if "id" in attrs]
    assert {"img", "b"}.isdisjoint(found.tags)
    assert all(re.fullmatch(r"[A-Za-z0-9+/=]+", body) for body in data)
    assert len(found.scripts) == len(data) + 1


def rewrite_lines(file: Path, change):
    """Rewrites a file of JSON lines; `change` gets the rows, and changes them or returns others."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    changed = change(rows)
    file.write_text("".join(json.dumps(row) + "\n" for row in (rows if changed is None else changed)))
