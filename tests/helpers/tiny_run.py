"""A run of two tasks that takes seconds, and functions to compare two runs."""

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agentrl_jax.cli import main as cli

LEVELS = """
######
#@$. #
######

####
#@ #
#$ #
#. #
####
"""

CONFIG = """
tasks: [{env: SimpleSokoban, groups: 2, levels: LEVELS}, {env: FrozenLake, groups: 2}]
prompt: {max_turns: 2, max_actions_per_turn: 2, max_actions: 10, max_response_tokens: 6}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
rollout: {group_size: 4}
algo: {preset: starpo_s, filter: {ratio: 0.5}}
optim: {lr: 0.01}
imitation: {levels: 2, steps: 75, batch: 4, lr: 0.03}
train: {iterations: 4, checkpoint_every: 2, validate_every: 2, validation_episodes: 8, trajectories_every: 3,
  trajectories: 3}
evaluation: {episodes: 12}
"""
"""Checkpoints of steps 2 (imitation), 3 (before learning), 5 and 7; the first task's levels come from a file."""

SERVED = """
tasks: [{env: maze, groups: 2, items: "0-15", held_out: "16-24"}]
env: {url: local, observation_tokens: 160}
prompt: {style: bare, max_turns: 2, max_response_tokens: 6}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
rollout: {group_size: 2, context_tokens: 900}
algo: {preset: grpo}
train: {iterations: 0, validate_every: 0, validation_episodes: 8}
evaluation: {episodes: 2}
"""

MAZE = """
tasks: [{env: maze, groups: 2, items: 0-11, held_out: 12-20, validation: 21-24}]
prompt: {style: bare, max_turns: 3, max_response_tokens: 10}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
env: {url: local, observation_tokens: 96, deadline: 60.0}
rollout: {group_size: 2, context_tokens: 360, prefill_chunk: 32}
algo: {preset: grpo, minibatches: 2}
optim: {lr: 0.01}
imitation: {levels: 8, plans: random, steps: 25, batch: 4, lr: 0.03}
train: {iterations: 4, checkpoint_every: 2, validate_every: 2, validation_episodes: 4, trajectories_every: 2}
evaluation: {episodes: 4}
"""
"""On the items of a service."""
TIMES = ("time/", "env/wait_share")


class Finished(NamedTuple):
    file: str
    folder: Path
    output: str


def write_config(folder: Path, text: str = CONFIG) -> str:
    (folder / "levels.txt").write_text(LEVELS)
    file = folder / "tiny.yaml"
    file.write_text(text.replace("LEVELS", str(folder / "levels.txt")))
    return str(file)


def command(*words: str) -> tuple[int, str, str]:
    """Runs `agentrl` in this process; returns exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
        cli.main(words)
    return end.value.code or 0, out.getvalue(), err.getvalue()


def done(*words: str) -> str:
    code, out, err = command(*words)
    assert code == 0, err
    return out


def trained(run: Path, file: str, *words: str) -> str:
    return done("train", file, "--run_dir", str(run), *words)


def refusal(*words: str) -> str:
    code, _, err = command(*words)
    assert (code, err.count("\n")) == (2, 1), err
    assert err.startswith("agentrl: ")
    return err


def refused(run: Path, file: str, *words: str) -> str:
    return refusal("train", file, "--run_dir", str(run), *words)


def metrics(run: Path) -> list[dict]:
    """Returns the rows of metrics.jsonl without those of `TIMES`."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith(TIMES)} for row in rows]


def recorded(run: Path) -> dict[str, bytes]:
    files = {file.name: file.read_bytes() for file in (run / "rollouts").iterdir()}
    return files | {"trajectories.jsonl": (run / "trajectories.jsonl").read_bytes()}


def summary(run: Path) -> dict:
    known = json.loads((run / "summary.json").read_text())
    return {key: value for key, value in known.items() if key not in ("seconds", "programs_compiled", "programs")}


def checkpoint(run: Path, step: int) -> dict[str, tuple]:
    path = run.absolute() / "checkpoints" / str(step) / "state"
    with ocp.PyTreeCheckpointer() as reader:
        # As NumPy arrays, because the devices that wrote them need not be here.
        of_numpy = jax.tree.map(
            lambda _: ocp.RestoreArgs(restore_type=np.ndarray), reader.metadata(path).item_metadata.tree
        )
        state = reader.restore(path, restore_args=of_numpy)
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    arrays = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}


def checkpoints(run: Path) -> list[int]:
    return sorted(int(entry.name) for entry in (run / "checkpoints").iterdir() if entry.name.isdigit())


def curves(run: Path) -> dict[tuple[str, int], float]:
    """Returns what TensorBoard shows: values by tag and step, without those that a restart purges."""
    shown = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    found = [((tag, event.step), event.value) for tag in shown.Tags()["scalars"] for event in shown.Scalars(tag)]
    assert len(found) == len(dict(found))
    return dict(found)


def resumed(run: Path, again: Path, file: str, *words: str) -> str:
    """Trains on in a copy of a run without its end and its newest checkpoint; returns what is printed."""
    shutil.copytree(run, again)
    (again / "summary.json").unlink()
    shutil.rmtree(again / "checkpoints" / str(checkpoints(again)[-1]))
    return trained(again, file, *words)


def assert_same_end(run: Path, other: Path) -> None:
    assert metrics(run) == metrics(other)
    assert recorded(run) == recorded(other)
    step = checkpoints(other)[-1]
    assert checkpoint(run, step) == checkpoint(other, step)
    assert summary(run) == summary(other)


def assert_same(run: Path, other: Path) -> None:
    assert_same_end(run, other)
    assert checkpoints(run) == checkpoints(other)
    for step in checkpoints(run)[:-1]:
        assert checkpoint(run, step) == checkpoint(other, step)
    shown, expected = curves(run), curves(other)
    assert shown.keys() == expected.keys()
    for key, value in expected.items():
        assert key[0].startswith("time/") or shown[key] == value, key
