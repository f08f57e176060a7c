"""What a round of AgentEvol keeps. A whole run is in tests/nightly."""

import types

import jax
import jax.numpy as jnp
import numpy as np
from made_up import TRAJECTORY
from refusing import refusal

from agentrl_jax.config import decode
from agentrl_jax.config.stages import EvolveStage
from agentrl_jax.offline.rows import Row, TokenRows
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.train import evolve
from agentrl_jax.train.evolve import Evolve, first_successes, successes, token_rows
from agentrl_jax.train.explored import Explored, ExploredFiles


def test_the_first_successes_of_each_level_are_kept():
    success = np.array([[0, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]], bool)
    played = [types.SimpleNamespace(success=row) for row in success]
    assert first_successes(played, 1).tolist() == [[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert first_successes(played, 2).tolist() == [[0, 1, 1, 0], [1, 1, 0, 0], [1, 0, 1, 0]]
    assert first_successes(played, 9).tolist() == success.tolist()


def test_rows_have_the_sampled_tokens_and_no_padding(monkeypatch):
    rows = pack_trajectories(TRAJECTORY, FULL)
    found = token_rows(rows)
    useful = np.flatnonzero(np.asarray(rows.response_mask).any(axis=1))
    assert found.lengths.tolist() == np.asarray(rows.length)[useful].tolist()
    assert found.counts.tolist() == np.asarray(rows.response_mask).sum(axis=1)[useful].tolist()
    for number, row in enumerate(useful):
        here = slice(found.starts[number], found.starts[number + 1])
        position = np.asarray(rows.position[row])[np.asarray(rows.response_mask[row])]
        assert np.flatnonzero(found.trained[here]).tolist() == position.tolist()
        assert found.tokens[here].tolist() == np.asarray(rows.tokens[row])[: here.stop - here.start].tolist()
    monkeypatch.setattr(
        evolve.start, "imitated_rows", lambda config, trajectory, turns: pack_trajectories(trajectory, FULL)
    )
    trajectory = jax.tree.map(np.asarray, TRAJECTORY)
    kept = np.zeros(len(trajectory.num_turns), bool)
    assert [len(part) for part in successes(None, trajectory, kept)] == [0, 0]
    kept[useful[:2]] = True
    some, levels = successes(None, trajectory, kept)
    assert some.tokens.tolist() == found.tokens[: found.starts[2]].tolist()
    assert len(levels) == 2
    twice = some + found
    assert len(twice) == 2 + len(found)
    assert twice.lengths.tolist() == [*some.lengths.tolist(), *found.lengths.tolist()]


def test_rounds_are_kept_in_files(tmp_path):
    made = ExploredFiles(tmp_path, 2)
    assert made.read(1, must_exist=False) is None
    assert refusal(made.read, 1, must_exist=True).key.endswith("2-1.npz")
    found = Explored(
        TokenRows.of([Row([1, 2, 3], [False, True, True]), Row([4, 5], [False, True])]), ["ab", "cd"], 0.25
    )
    made.write(1, found)
    assert ExploredFiles(tmp_path, 3).read(1, must_exist=False) is None  # another stage of the run
    again = made.read(1, must_exist=True)
    assert (again.levels, again.success, again.rows.starts.tolist()) == (["ab", "cd"], 0.25, [0, 3, 5])
    assert again.rows.trained.tolist() == found.rows.trained.tolist()
    content = made.path(1).read_bytes()
    for damaged in (content[:40], b"", content[:-30]):
        made.path(1).write_bytes(damaged)
        assert refusal(made.read, 1, must_exist=False).key.endswith("2-1.npz")
    np.savez(made.path(1), tokens=np.zeros(3), trained=np.zeros(2), starts=np.array([0, 3]), levels="a", success=0.0)
    assert refusal(made.read, 1, must_exist=True).key.endswith("2-1.npz")


def test_every_round_has_its_rows_and_rates():
    config = EvolveStage(steps=60, rounds=2, lr=1.0, warmup=0.5)
    made = Evolve.__new__(Evolve)
    made.config, made.first_row = config, 3
    rows = {step: made.row(types.SimpleNamespace(step=jnp.int32(step))) for step in (0, 25, 50, 60, 85, 120, 180)}
    assert rows == {0: 3, 25: 4, 50: 5, 60: 6, 85: 7, 120: 9, 180: 12}
    assert (config.total, config.chunks) == (180, 9)
    assert [config.rate(step) for step in (0, 29, 30, 45)] == [1 / 30, 1.0, 1.0, 0.5]
    run = decode({"stages": [{"kind": "evolve", "steps": 60, "rounds": 2}], "imitation": {"levels": 4}})
    assert (run.rows_before_rl, run.stages[0].lr, run.train.iterations) == (9, 3e-4, 0)
