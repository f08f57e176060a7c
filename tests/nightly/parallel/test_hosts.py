"""Runs of several processes, each with its own devices, as on several hosts: they are those of one process."""

import json
import signal
from pathlib import Path

import pytest
import tiny_run
from processes import LOST, Hosts, until


def has_learned(run: Path) -> bool:
    file = run / "metrics.jsonl"
    return file.exists() and '"stage": "rl"' in file.read_text()


def ended(count, file, run, *words, devices=1):
    codes, texts = Hosts(count, file, run, *words, devices=devices).end()
    assert codes == [0] * count, texts
    return texts


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tiny_run.write_config(tmp_path_factory.mktemp("hosts"))


def test_every_host_has_servers_for_its_episodes(tmp_path):
    file = tmp_path / "served.yaml"
    file.write_text(tiny_run.MAZE.replace("url: local", "url: ''"))
    ended(1, str(file), tmp_path / "one", devices=2)
    ended(2, str(file), tmp_path / "two")
    for read in (tiny_run.metrics, tiny_run.summary):
        assert read(tmp_path / "one") == read(tmp_path / "two")
    assert {"service-maze.log", "service-maze-1.log"} <= {path.name for path in (tmp_path / "two").iterdir()}


def test_a_run_goes_on_with_another_number_of_processes_and_another_mesh(file, tmp_path):
    """2 processes, then 1, then 4 on another mesh: what a single process on 4 devices gives, up to rounding."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    ended(1, file, whole, devices=4)
    for count, iterations, words in ((2, 1, ()), (1, 2, ()), (4, 4, ("--mesh.fsdp", "2", "--mesh.tensor", "2"))):
        ended(count, file, run, "--train.iterations", str(iterations), *words)
    found, expected = ([row for row in tiny_run.metrics(x) if row["stage"] == "rl"] for x in (run, whole))
    assert [row["iteration"] for row in found] == [1, 2, 3, 4]
    # Only rounding depends on the devices; learning amplifies it.
    for mine, other in zip(found, expected):
        for name in ("train/success", "train/return", "train/response_tokens"):
            assert mine[name] == pytest.approx(other[name], rel=1e-6)
        assert mine["actor/entropy"] == pytest.approx(other["actor/entropy"], rel=0.02)
    last = json.loads((run / "config.history.jsonl").read_text().splitlines()[-1])
    assert {"mesh.fsdp", "mesh.tensor", "train.iterations"} <= last["changed"].keys()
    assert tiny_run.summary(run)["devices"] == 4


def ends_as_lost(index, codes, texts, lost):
    err = texts[index][1]
    assert codes[index] == 1, texts
    assert err.count("agentrl: ") == 1, err
    last = err.splitlines()[-1]
    assert last.startswith(f"agentrl: process {index} of {len(codes)}: {lost}"), err
    assert last.endswith("; give it on all hosts"), err


@pytest.fixture
def endless(file, tmp_path):
    """Two processes that have learned for an iteration, and would do so for ever."""
    words = ("--train.iterations", "100000", "--train.checkpoint_every", "100000")
    hosts = Hosts(2, file, tmp_path / "run", *words)
    until(lambda: has_learned(tmp_path / "run"), hosts)
    return hosts


def test_a_frozen_process_0_ends_the_others(endless):
    endless.processes[0].send_signal(signal.SIGSTOP)
    try:
        endless.processes[1].wait(timeout=90)
    finally:
        endless.processes[0].kill()
    codes, texts = endless.end(60)
    ends_as_lost(1, codes, texts, LOST[1])  # its port still accepts connections


@pytest.mark.parametrize("killed", [0, 1])
def test_when_a_process_is_killed_all_end_and_the_same_command_goes_on(file, tmp_path, killed):
    hosts = Hosts(2, file, tmp_path / "run", "--train.iterations", "4")
    until(lambda: has_learned(tmp_path / "run"), hosts)
    hosts.processes[killed].kill()
    codes, texts = hosts.end(60)
    assert codes[killed] == -signal.SIGKILL
    ends_as_lost(1 - killed, codes, texts, LOST[killed])
    (out, err), other = ended(2, file, tmp_path / "run", "--train.iterations", "4")
    assert ("going on from the checkpoint of step" in out, "after RL" in out) == (True, True)
    assert (err, other) == ("", ("", ""))
    ended(1, file, tmp_path / "one", "--train.iterations", "4", devices=2)
    tiny_run.assert_same_end(tmp_path / "run", tmp_path / "one")
    assert (tmp_path / "run" / "levels.jsonl").read_bytes() == (tmp_path / "one" / "levels.jsonl").read_bytes()


def test_a_signal_to_one_process_saves_and_ends_all(endless, tmp_path):
    endless.processes[1].terminate()
    codes, texts = endless.end(60)
    assert codes == [143, 143], texts
    step = tiny_run.metrics(tmp_path / "run")[-1]["step"]
    sentence = f"agentrl: stopped by SIGTERM; the checkpoint of step {step} is kept; the same command goes on from it\n"
    assert [text[1] for text in texts] == [sentence] * 2


def test_hosts_that_do_not_share_the_folder_are_told(file, tmp_path):
    codes, texts = Hosts(2, file, [tmp_path / "run", tmp_path / "other"]).end()
    assert codes == [2, 2], texts
    assert all("process 1 does not see the folder of process 0" in text[1] for text in texts)
