import contextlib
import dataclasses
import functools
from types import SimpleNamespace

import pytest
from refusing import refusal

from agentrl_jax.algos import collapse
from agentrl_jax.config import TrainConfig, decode
from agentrl_jax.config.defaults import with_defaults
from agentrl_jax.runs.config_history import ConfigHistory, read_history, record_changes
from agentrl_jax.runs.run_folder import write_config
from agentrl_jax.runs.totals import Totals
from agentrl_jax.train import replay_rollout
from agentrl_jax.train.collapse_monitor import CollapseMonitor
from agentrl_jax.train.progress import RunProgress
from agentrl_jax.train.reinforcement import Reinforcement
from agentrl_jax.train.roll_back import RollBacks, kept_checkpoints

SIGN = collapse.Alarm("long", "rollout/horizon", "turns", "above", 1.5, 2, True, "turns are long", "made up")


def test_as_many_checkpoints_are_kept_as_reach_behind_an_alarm(monkeypatch):
    slow = dataclasses.replace(SIGN, metric="validation/success", patience=5)
    monkeypatch.setattr("agentrl_jax.train.roll_back.ALARMS", (SIGN, slow))
    config = TrainConfig(checkpoint_every=10, validate_every=10, keep=2)
    assert kept_checkpoints(config) == 2
    assert kept_checkpoints(config.replace(on_collapse="roll_back")) == 6


class Kept(contextlib.nullcontext):
    """Checkpoints by step, with the roll-backs before each."""

    def __init__(self, known):
        super().__init__(self)
        self.known, self.delete, self.wait = known, known.pop, lambda: None
        self.steps = self.regular_steps = lambda: sorted(known)
        self.latest_step = lambda: max(known, default=None)
        self.meta = lambda step: {"roll_backs": known[step]}


@pytest.mark.parametrize(("known", "left"), [({2: 0, 4: 0, 5: 0}, {2: 0}), ({2: 0, 5: 1}, {2: 0, 5: 1}), ({4: 0}, {})])
def test_checkpoints_that_a_roll_back_discarded_are_deleted(tmp_path, known, left):
    """Also by a process that starts after a kill between the record and the deletion."""
    RollBacks(tmp_path / "made").add({"step": 2})
    found = RollBacks(tmp_path / "made")
    kept = Kept(dict(known))
    assert found.newest_step(kept) == max(left, default=None)
    assert kept.known == left
    (tmp_path / "made" / "2.json").write_text("{")
    assert "cannot be read" in str(refusal(RollBacks, tmp_path / "made"))


@pytest.fixture
def progress(tmp_path, monkeypatch):
    """The progress of a run in iteration 5, with an alarm since iteration 4, after one chunk of imitation."""
    monkeypatch.setattr(collapse, "ALARMS", (SIGN,))
    rows = [{"step": i + 1, "stage": "rl", "iteration": i, "rollout/horizon": 1 + (i > 3)} for i in range(1, 6)]
    progress, saved, monitor = object.__new__(RunProgress), [], CollapseMonitor(True, [], print)
    for row in rows:
        monitor.see(dict(row))
    assert monitor.stopped_by == "long"
    parts = SimpleNamespace(config=SimpleNamespace(train=TrainConfig()))
    progress.__dict__ |= {"parts": parts, "folder": SimpleNamespace(metrics=lambda: rows), "monitor": monitor}
    progress.__dict__ |= {"view": SimpleNamespace(note=print), "totals": Totals(), "roll_backs": RollBacks(tmp_path)}
    progress.__dict__ |= {"_seconds_before": 0.0, "_started": 0.0, "restore": lambda frozen: "restored"}
    progress.__dict__ |= {"saved": saved, "save": lambda step, state, score=None: saved.append(step)}
    return progress


STATE = SimpleNamespace(step=5, frozen_params=None)


def test_a_run_goes_back_before_the_first_bad_iteration(progress):
    """The checkpoint of iteration 4 was saved after the collapse began. Without one before, it saves and ends."""
    for number, known in enumerate(({}, {0: 0, 5: 0}), 1):
        progress.checkpoints = Kept(known)
        assert progress.roll_back(STATE, 1) is STATE
        assert (progress.roll_backs.count, progress.saved) == (0, [6] * number)
    progress.saved.clear()
    progress.checkpoints = Kept({1: 0, 3: 0, 5: 0})
    assert progress.roll_back(STATE, 1) == "restored"
    (record,) = progress.roll_backs.records
    assert [record[name] for name in ("alarm", "iteration", "began", "step")] == ["long", 5, 4, 3]
    assert [row["iteration"] for row in record["rows"]] == [3, 4, 5]
    assert progress.saved == []


def test_rates_are_lowered_by_every_roll_back():
    stage = object.__new__(Reinforcement)
    stage.config = decode({"train": {"roll_back_factor": 0.25, "iterations": 6}, "optim": {"schedule": "linear"}})
    stage.first_row, history = 0, ConfigHistory(stage.config)
    for count, factor in enumerate((0.5, 0.125, 0.03125)):
        stage.progress = SimpleNamespace(roll_backs=SimpleNamespace(count=count), history=history)
        assert stage._rate_factor(3) == factor


@pytest.mark.parametrize(
    ("known", "roll_backs", "start"),
    [
        *(({40: 0, 50: 0, 60: 1, 110: 1}, 1, 60), ({40: 0, 50: 0}, 1, 50), ({40: 0, 50: 0, 60: 1}, 0, 50)),
        *(({40: 0}, 1, None), ({60: 1}, 0, 0)),
    ],
)
def test_a_replay_begins_where_the_run_went_on(tmp_path, monkeypatch, known, roll_backs, start):
    """After roll-back 1, to step 50, the iterations from another checkpoint on were never played."""
    monkeypatch.setattr(replay_rollout, "Checkpoints", lambda saved, keep: Kept(known))
    scratch, back = tmp_path / "scratch", tmp_path / "roll_backs" / "1.json"
    files = [back, *(tmp_path / "checkpoints" / str(step) / "file" for step in known), scratch / "none"]
    for file in files:
        file.parent.mkdir(parents=True)
    for file, text in ((back, '{"step": 50}'), *((x, "") for x in files[1:-1])):
        file.write_text(text)
    place = replay_rollout._Place(iteration=101, step=101, roll_backs=roll_backs)
    copy = functools.partial(replay_rollout._copy_before, tmp_path, str(tmp_path / "checkpoints"), scratch, place)
    if start is None:
        assert "after roll-back 1" in str(refusal(copy))
        assert not list(scratch.iterdir())
    elif not start:
        assert copy() is None
    else:
        assert copy() == start
        assert (scratch / "checkpoints" / str(start) / "file").exists()
        assert (scratch / "roll_backs").exists() == bool(roll_backs)


def test_a_replay_has_the_settings_of_its_iteration(tmp_path, monkeypatch):
    run, rate = tmp_path / "run", "optim.lr"
    run.mkdir()
    config = with_defaults(decode({"devices": 2, "optim": {"lr": 0.5}}))
    write_config(run, config)
    record_changes(run, 5, ["devices", rate], with_defaults(decode({"optim": {"lr": 0.1}})), config)
    monkeypatch.setattr(replay_rollout, "Checkpoints", lambda saved, keep: Kept({3: 0}))
    (run / "checkpoints" / "3").mkdir(parents=True)
    for step, devices, lr, changed in ((5, 1, 0.1, False), (6, 2, 0.5, True)):
        scratch = tmp_path / str(step)
        scratch.mkdir()
        place = replay_rollout._Place(iteration=step, step=step, roll_backs=0)
        found, start = replay_rollout._begin(run, str(run), scratch, place)
        assert (found.devices, found.optim.lr, found.run_dir) == (devices, lr, str(scratch))
        assert ("devices" in start, "step 3" in start) == (changed, True)
        # On the way, rates are those of each step.
        history = ConfigHistory(found, read_history(scratch))
        assert [history.at(number).optim.lr for number in (5, 6)] == [0.1, 0.5]
