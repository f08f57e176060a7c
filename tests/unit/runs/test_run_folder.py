import errno
import json
import os
import subprocess
import sys
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
from refusing import refusal

from agentrl_jax.config import Config, TaskConfig
from agentrl_jax.config.defaults import with_defaults
from agentrl_jax.config.migrations import FORMAT
from agentrl_jax.config.optim import Linear
from agentrl_jax.runs.checkpoint import Checkpoints
from agentrl_jax.runs.run_folder import RunFolder, read_config

ROW = {"step": 1, "stage": "imitation"}


@pytest.fixture
def config(tmp_path):
    return with_defaults(Config(run_dir=str(tmp_path / "run"), tasks=(TaskConfig(env="X", groups=4),)))


def test_a_new_folder_holds_the_configuration_and_is_recognized(config, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml.tmp").write_text("seed")  # its making was killed
    with RunFolder(config) as folder:
        assert folder.metrics() == []
        folder.log({**ROW, "text": "a\u2028b\x85c"})  # these do not end a line
        assert folder.truncate(1) == []
    assert read_config(config.run_dir) == config
    os.rename(config.run_dir, tmp_path / "moved")
    with RunFolder(config.replace(run_dir=str(tmp_path / "moved"))) as folder:
        assert folder.metrics() == [{**ROW, "text": "a\u2028b\x85c"}]
        folder.truncate(-1)  # before the first checkpoint
        assert folder.metrics() == []


def test_loggers_get_each_row_once_it_is_written_and_where_rows_are_void(config):
    logger = mock.Mock()
    for _ in range(2):
        with RunFolder(config, loggers=[logger]) as folder:
            folder.truncate(-1)
            logger.log.side_effect = lambda row, folder=folder: folder.metrics()[-1] == row or pytest.fail(row)
            folder.log({**ROW, "loss": float("nan"), "lr": np.float32(0.5)})
    row = mock.call.log({**ROW, "loss": None, "lr": 0.5})
    first, second = (mock.call.go_on(-1, void=void) for void in (False, True))
    assert logger.mock_calls == [first, row, mock.call.close(), second, row, mock.call.close()]
    assert os.path.exists(f"{config.run_dir}/tensorboard")
    RunFolder(train(config, loggers=())).close()  # may change
    with RunFolder(train(config, loggers=()), f"{config.run_dir}-other") as folder:
        folder.log(ROW)
    assert not os.path.exists(f"{config.run_dir}-other/tensorboard")


def test_another_configuration_is_refused_with_the_keys_that_differ(config):
    with RunFolder(config) as folder:
        folder.log(ROW)
    other = config.replace(seed=5, tasks=(*config.tasks, TaskConfig(env="Y", groups=1)))
    shown = 'seed (0 there, 5 now), tasks.1.env (absent there, "Y" now)'
    assert str(refusal(RunFolder, other).value).startswith(shown)
    RunFolder(config).close()  # the refusal released the lock


def train(config, **changes):
    return config.replace(train=config.train.replace(**changes))


def test_a_run_may_go_on_for_longer_and_its_configuration_keeps_a_history(config, tmp_path):
    with RunFolder(config) as folder:
        for step in (1, 2, 3):
            folder.log({"step": step, "stage": "rl", "iteration": step})
        with Checkpoints(folder.checkpoints, keep=1) as checkpoints:
            checkpoints.save(1, {"x": np.zeros(1)})
    assert "3 iterations have been done" in str(refusal(RunFolder, train(config, iterations=2)))
    RunFolder(train(config, iterations=3)).close()
    longer = train(config, iterations=400, validate_every=0)
    RunFolder(longer).close()
    assert read_config(config.run_dir) == longer
    RunFolder(longer).close()
    last = train(longer, keep=5).replace(rollout=longer.rollout.replace(slots=4))
    RunFolder(last).close()
    history = [json.loads(line) for line in (tmp_path / "run" / "config.history.jsonl").read_text().splitlines()]
    assert [row["changed"] for row in history] == [
        {"train.iterations": ["200", "3"]},
        {"train.iterations": ["3", "400"], "train.validate_every": ["10", "0"]},
        {"rollout.slots": ["0", "4"], "train.keep": ["2", "5"]},
    ]
    assert {(row["step"], row["format"]) for row in history} == {(1, FORMAT)}


def test_what_would_change_what_was_done_is_refused_with_the_reason(config):
    linear = config.replace(optim=config.optim.replace(schedule=Linear()))
    with RunFolder(linear) as folder:
        folder.log({"step": 1, "stage": "rl", "iteration": 7})
        assert "no complete checkpoint" in str(refusal(folder.truncate, -1))
        assert len(folder.metrics()) == 1
    for change, reason in (
        (train(linear, iterations=400), "optim.schedule"),
        (train(linear, keep=3, validation_temperature=1.0), "train.validation_temperature decides"),
        (train(linear, validation_episodes=2), "train.validation_episodes decides"),
        (linear.replace(seed=5), "seed decides"),
    ):
        assert reason in str(refusal(RunFolder, change))
        assert read_config(config.run_dir) == linear
    RunFolder(train(linear, keep=3)).close()


def test_a_run_that_has_left_nothing_gives_its_folder_up(config, tmp_path):
    other = config.replace(seed=5)
    for taken in (config, other, config):
        RunFolder(taken).close()
        assert read_config(config.run_dir) == taken
        (tmp_path / "run" / "checkpoints").mkdir(exist_ok=True)  # as left by a run that did not fit in memory
    (tmp_path / "run" / "checkpoints" / "3").mkdir()
    assert "another configuration" in str(refusal(RunFolder, other))


def test_what_is_no_run_is_refused(config, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for place in (run, tmp_path / "absent"):
        assert refusal(read_config, place).key == str(place)
    (run / "thesis.txt").write_text("x")
    assert refusal(RunFolder, config).value == "thesis.txt"
    assert [entry.name for entry in run.iterdir()] == ["thesis.txt"]
    assert refusal(RunFolder, config.replace(run_dir="")).key == "run_dir"
    for place in (str(run / "thesis.txt"), "/proc/new"):  # not even root can create a folder there
        assert refusal(RunFolder, config, place).key == place


def test_a_run_that_only_its_own_version_can_continue_stays_as_that_version_reads_it(config, tmp_path):
    RunFolder(config).close()
    (tmp_path / "run" / "checkpoints" / "4" / "meta").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "4" / "meta" / "metadata").write_text('{"step": 4}')
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    error = refusal(RunFolder, config.replace(train=config.train.replace(iterations=9)))
    assert error.key == str(tmp_path / "run" / "checkpoints" / "4")
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before
    assert not (tmp_path / "run" / "config.history.jsonl").exists()


def test_rows_and_the_summary_keep_their_values_bit_for_bit(config, tmp_path):
    value = np.float32(0.1)
    row = {**ROW, "a": value, "b": jnp.float32(1 / 3), "c": np.int64(3), "d": True, "e": [1, 2.5], "f": None}
    with RunFolder(config) as folder:
        folder.log(row)
        folder.log({**ROW, "step": 2, "a": float("nan"), "b": jnp.float32(jnp.inf)})
        first, second = folder.metrics()
        for wrong in (
            {"loss": 1.0},
            {"step": 1},
            {"step": 1, "stage": "rl"},
            {"step": 1, "stage": "other"},
            {"step": True, "stage": "rl"},
        ):
            with pytest.raises(ValueError, match=r"a row of metrics\.jsonl"):
                folder.log(wrong)
        folder.write_summary({"success": {"random": 1.0}})
        folder.write_summary({"success": {"random": np.float32(0.5)}, "bad": float("nan"), "n": np.arange(2)})
    assert first == row | {"a": float(value), "b": float(np.float32(1 / 3)), "c": 3}
    assert second == {**ROW, "step": 2, "a": None, "b": None}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary == {"success": {"random": 0.5}, "bad": None, "n": [0, 1]}


@pytest.mark.parametrize("line", [b'{"st', b'{"step": 3}', b"[1]", b"", b'{"step": 1, "stage": "im\xff"}'])
def test_a_line_that_is_no_row_and_a_rollout_that_cannot_be_read_cost_no_other_and_are_kept(config, tmp_path, line):
    with RunFolder(config) as folder:
        for step in (1, 2):
            folder.log({"step": step, "stage": "imitation", "loss": step / 7, "text": "a"})
            folder.log_trajectories([{"step": step, "response": "Up √"}, {"step": step, "response": "Down"}])
    file = tmp_path / "run" / "metrics.jsonl"
    first, second = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(damaged := first + line + b"\n" + second + b'{"torn')
    with RunFolder(config) as folder:
        assert [row["step"] for row in folder.metrics()] == [1, 2]
        (folder.path / "rollouts").mkdir()
        (folder.path / "rollouts" / "000001.npz").write_bytes(b"PK")
        said = "".join(folder.truncate(2))
        assert ("line 2 is no row" in said, "renamed to 000001.npz.damaged" in said) == (True, True)
        assert folder.truncate(2) == []
    assert (tmp_path / "run" / "rollouts" / "000001.npz.damaged").read_bytes() == b"PK"
    assert file.read_bytes() == first + second
    assert (tmp_path / "run" / "metrics.jsonl.before-1").read_bytes() == damaged


def test_levels_of_a_step_that_is_repeated_after_a_kill_are_recorded_once(config):
    for _ in range(2):
        with RunFolder(config) as folder:
            folder.log_levels_once(3, "test", ["b", "a"])
    with RunFolder(config) as folder:
        folder.log_levels_once(3, "test", ["c"])
        assert [row["levels"] for row in folder.levels()] == [["a", "b"], ["c"]]


LOCKING = """
import fcntl, sys
fcntl.flock(file := open(sys.argv[1], "a"), fcntl.LOCK_EX | fcntl.LOCK_NB)
input(print("locked", flush=True))
"""
"""Takes the lock of a file, if it can; the run folder's own process would import for seconds."""


def test_one_process_at_a_time_and_a_killed_one_lets_go(config, tmp_path, monkeypatch):
    words = [sys.executable, "-S", "-c", LOCKING, str(tmp_path / "run" / ".lock")]
    with monkeypatch.context() as patched:
        patched.setattr("fcntl.flock", mock.Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
        assert "cannot be locked (No locks available)" in str(refusal(RunFolder, config))
    with RunFolder(config):
        assert "another process" in str(refusal(RunFolder, config))
        assert subprocess.run(words, capture_output=True, input=b"\n").returncode == 1
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        assert "another process" in str(refusal(RunFolder, config))
        other.kill()
        other.wait()
    RunFolder(config).close()
