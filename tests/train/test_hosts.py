"""Runs of several processes, each with its own devices, as on several hosts: they are those of one process."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import test_service_run
import tiny_run

from agentrl_jax.parallel import clusters

DEVICES = ("--devices", "0")
GLOO = re.compile(r"^\[Gloo\].*\n", re.MULTILINE)
"""What the library of the collectives prints when processes are connected."""
LOST = ("process 0 has ended, or cannot be reached", "another process has ended, or cannot be reached")
"""What is said when process 0, or another one, is lost."""


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


class Hosts:
    """The processes of `agentrl train`, with `devices` CPU devices each."""

    def __init__(self, count, file, run, *words, devices=1):
        address = free_address()
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)}
        runs = run if isinstance(run, list) else [run] * count
        self.processes = []
        for index in range(count):
            command = [sys.executable, "-m", "agentrl_jax", "train", file, "--run_dir", str(runs[index]), *DEVICES]
            if count > 1:
                command += ["--hosts.coordinator", address, "--hosts.count", str(count), "--hosts.index", str(index)]
            process = subprocess.Popen(
                [*command, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            self.processes.append(process)

    def end(self, seconds=300):
        """Waits; returns exit codes, and standard output and error of each process."""
        deadline = time.monotonic() + seconds
        texts = []
        for process in self.processes:
            try:
                texts.append(process.communicate(timeout=max(deadline - time.monotonic(), 1)))
            except subprocess.TimeoutExpired:
                for each in self.processes:
                    each.kill()
                raise
        codes = [process.returncode for process in self.processes]
        return codes, [tuple(GLOO.sub("", text) for text in of_process) for of_process in texts]


def until(condition, hosts, seconds=200):
    deadline = time.monotonic() + seconds
    while not condition():
        assert all(process.poll() is None for process in hosts.processes), hosts.end(1)
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rl_rows(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_text().count('"stage": "rl"') if file.exists() else 0


def same(run, other):
    assert tiny_run.metrics(run) == tiny_run.metrics(other)
    assert (run / "levels.jsonl").read_bytes() == (other / "levels.jsonl").read_bytes()
    assert tiny_run.recorded(run) == tiny_run.recorded(other)
    step = tiny_run.checkpoints(run)[-1]
    assert tiny_run.checkpoint(run, step) == tiny_run.checkpoint(other, step)
    assert tiny_run.summary(run) == tiny_run.summary(other)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tiny_run.write_config(tmp_path_factory.mktemp("hosts"))


PLAYED = ("train/success", "train/return", "train/response_tokens")


AGREEMENT = """
import json, sys
from agentrl_jax.config import HostsConfig
from agentrl_jax.parallel import hosts
index = int(sys.argv[2])
hosts.start(HostsConfig(coordinator=sys.argv[1], count=2, index=index))
import jax, numpy as np
from agentrl_jax.errors import UserError
from agentrl_jax.parallel.mesh import make_mesh
from jax.sharding import NamedSharding, PartitionSpec
mesh = make_mesh()
def refuse():
    raise UserError(f"refused by {index}")
try:
    refused = hosts.from_writer(refuse)
except UserError as error:
    refused = str(error)
try:
    make_mesh(1)
except ValueError as error:
    few = str(error)
rows = jax.make_array_from_callback((4,), NamedSharding(mesh, PartitionSpec("data")), lambda at: np.arange(4)[at])
print(json.dumps([
    mesh.size, hosts.is_writer(), hosts.gather({"index": index, "text": "é" * 100 * index}), hosts.agree(index == 1),
    hosts.agree(False), hosts.from_writer(lambda: [index, None, 0.5]), refused, few,
    hosts.fetch({"rows": rows * 2, "own": np.int32(index)})["rows"].tolist(), hosts.same(np.ones(3)), hosts.same(index),
]))
hosts.stop()
"""


def two_processes(script, *words, variables=lambda index: {}):
    """Runs a script with the address, the process's number and the words; returns exit codes and texts."""
    command = [sys.executable, "-c", script, free_address()]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    processes = [
        subprocess.Popen(
            [*command, str(index), *words],
            env=environment | variables(index),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    texts = [process.communicate(timeout=200) for process in processes]
    return [process.returncode for process in processes], texts


def test_two_processes_agree():
    codes, texts = two_processes(AGREEMENT)
    assert codes == [0, 0], texts
    first, second = (json.loads(GLOO.sub("", out)) for out, _ in texts)
    known = [{"index": 0, "text": ""}, {"index": 1, "text": "é" * 100}]
    few = "devices is 1, but the 2 hosts have 2; set devices to 2 or 0"
    told = [known, True, False, [0, None, 0.5], "refused by 0", few, [0, 2, 4, 6], True, False]
    assert first == [2, True, *told]
    assert second == [2, False, *told]


SAVING = """
import os, sys, time
from agentrl_jax.config import HostsConfig
from agentrl_jax.parallel import hosts
index, folder = int(sys.argv[2]), sys.argv[3]
hosts.start(HostsConfig(coordinator=sys.argv[1], count=2, index=index))
import jax, numpy as np
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.runs.checkpoint import Checkpoints, complete_steps
from jax.sharding import NamedSharding, PartitionSpec
whole = NamedSharding(make_mesh(), PartitionSpec())
state = {"a": jax.make_array_from_callback((3,), whole, lambda at: np.arange(3.0)[at])}
rename = os.rename
def slowly(path, target, **options):
    if str(target).endswith(".removed"):
        time.sleep(1)
    rename(path, target, **options)
os.rename = slowly
seen = []
with Checkpoints(folder, keep=1) as checkpoints:
    reload = checkpoints._manager.reload
    checkpoints._manager.reload = lambda: (seen.append(complete_steps(folder)), reload())
    for step in (1, 2, 3):
        checkpoints.save(step, state, wait=False)
print(seen)
hosts.stop()
"""


def test_no_process_lists_checkpoints_while_another_one_removes_them(tmp_path):
    codes, texts = two_processes(SAVING, str(tmp_path / "checkpoints"))
    assert codes == [0, 0], texts
    assert [GLOO.sub("", out) for out, _ in texts] == ["[[], [1], [2]]\n"] * 2


SLURM = {
    "SLURM_JOB_ID": "4099",
    "SLURM_STEP_NODELIST": "n[1-2],m3",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "8192.0;tcp://10.0.0.1,10.1.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


@pytest.fixture
def launched(monkeypatch):
    """Sets the variables of a launcher, and those only."""

    def launch(variables):
        for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_", "JAX_COORDINATOR_"))]:
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return launch


@pytest.mark.parametrize(
    ("variables", "processes", "devices"),
    [
        (SLURM, ("n1:61443", 2, 1), None),  # the only task of its host has all devices of the host
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_LOCALID": "1"}, ("n1:61443", 2, 1), [1]),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2", "JAX_LOCAL_DEVICE_IDS": "0,1"}, ("n1:61443", 2, 1), None),
        (SLURM | {"JAX_COORDINATOR_PORT": "7"}, ("n1:7", 2, 1), None),
        (OPEN_MPI, ("10.0.0.1:61442", 4, 3), [1]),
        (SLURM | OPEN_MPI, ("10.0.0.1:61442", 4, 3), [1]),  # mpirun in a job of SLURM
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, ("10.0.0.1:61442", 4, 3), None),
    ],
)
def test_auto_takes_the_processes_of_the_launcher(launched, variables, processes, devices):
    launched(variables)
    found, of_process = clusters.detect(1)
    assert ((found.coordinator, found.count, found.index), of_process) == (processes, devices)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "no cluster is detected"),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, "SLURM_NTASKS is 2 and this step has 1 of these tasks"),
        (SLURM | {"JAX_COORDINATOR_PORT": "first"}, "the address of process 0 is n1:first, expected HOST:PORT"),
        (SLURM | {"SLURM_NTASKS": "two"}, "the cluster cannot be read (ValueError: invalid literal"),
    ],
)
def test_auto_is_refused_where_it_would_wait_in_vain(file, launched, variables, message):
    """The second are the variables of an interactive step of SLURM, in a job of two tasks."""
    launched(variables)
    code, _, err = tiny_run.command("train", file, "--hosts.coordinator", "auto")
    assert (code, err.count("\n")) == (2, 1)
    assert "hosts.coordinator is auto" in err
    assert message in err


def test_a_port_in_use_is_refused(file):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        given = ("--hosts.coordinator", f"127.0.0.1:{port}", "--hosts.count", "2", "--hosts.index", "0")
        code, _, err = tiny_run.command("train", file, *given)
    assert (code, err.count("\n")) == (2, 1)
    assert f"process 0 cannot listen on port {port} (Address already in use)" in err


WAITING = """
import sys
from agentrl_jax.config import HostsConfig
from agentrl_jax.parallel import hosts
hosts.CONNECT_SECONDS = int(sys.argv[3])
print(hosts.start(HostsConfig(coordinator="auto")).index, hosts.gather(hosts.is_writer()))
hosts.stop()
"""


@pytest.mark.parametrize("tasks", [2, 3])
def test_processes_of_slurm(tasks):
    """With three tasks, one of them never starts."""
    port = free_address().rpartition(":")[2]

    def variables(index):
        own = {"SLURM_STEP_NODELIST": "localhost", "SLURM_PROCID": str(index), "JAX_COORDINATOR_PORT": port}
        return SLURM | own | {"SLURM_NTASKS": str(tasks), "SLURM_STEP_NUM_TASKS": str(tasks)}

    codes, texts = two_processes(WAITING, "30" if tasks == 2 else "2", variables=variables)
    if tasks == 2:
        assert codes == [0, 0], texts
        assert [GLOO.sub("", out) for out, _ in texts] == ["0 [True, False]\n", "1 [True, False]\n"]
        return
    assert codes == [1, 1], texts
    for index, (_, err) in enumerate(texts):
        last = err.splitlines()[-1]
        assert last.startswith(f"agentrl: process {index} of 3: no connection with the others at localhost:{port} (")


LOSING = """
import os, sys, time
from agentrl_jax.config import HostsConfig
from agentrl_jax.errors import UserError
from agentrl_jax.parallel import hosts
how, config = sys.argv[3], HostsConfig(coordinator=sys.argv[1], count=2, index=int(sys.argv[2]))
hosts.start(config)
with hosts.ending_together(config, lambda: "step 3 is kept"):
    if how in ("killed", "noticed"):
        hosts.agree(True)  # both have started
    if hosts.is_writer():
        if how in ("killed", "noticed"):
            os.kill(os.getpid(), 9)
        if how == "refused":
            raise UserError("refused")
        if how == "full":
            raise OSError(28, "No space left on device", "metrics.jsonl")
        time.sleep(1)
    elif how == "noticed":
        try:
            hosts.agree(True)
        except Exception as error:
            raise UserError("the checkpoint of step 3 cannot be used") from error
    elif how != "ends":
        time.sleep(100)  # in no collective, so that only JAX notices
print("done")
"""


@pytest.mark.parametrize(
    ("how", "code"),
    [("killed", -signal.SIGKILL), ("noticed", -signal.SIGKILL), ("refused", 2), ("full", 2), ("ends", 0)],
)
def test_a_process_that_loses_process_0_ends_with_a_sentence(how, code):
    codes, texts = two_processes(LOSING, how)
    assert codes == [code, 1 if code else 0], texts
    (_, first), (out, err) = texts
    if how == "ends":
        assert (GLOO.sub("", out), first, err) == ("done\n", "", "")
        return
    full = "metrics.jsonl: the disk is full; nothing is lost: make room; step 3 is kept; give it on all hosts"
    shown = {"refused": "refused", "full": full}.get(how)
    assert first == (f"agentrl: process 0 of 2: {shown}\n" if shown else "")
    assert err.count("agentrl: ") == 1
    last = err.splitlines()[-1]
    assert last.startswith(f"agentrl: process 1 of 2: {LOST[0]} (")
    if how != "refused":  # it may come before the devices of process 1 have started
        assert ("Gloo" if how == "noticed" else "if not, see the error above") in last
    assert last.endswith("; step 3 is kept; give it on all hosts")


@pytest.mark.slow
def test_two_processes_are_one_with_two_devices(file, tmp_path):
    codes, texts = Hosts(1, file, tmp_path / "one", devices=2).end()
    assert codes == [0], texts
    codes, texts = Hosts(2, file, tmp_path / "two").end()
    assert codes == [0, 0], texts
    assert "after RL" in texts[0][0]
    assert (texts[1][0], texts[0][1], texts[1][1]) == ("", "", "")
    same(tmp_path / "two", tmp_path / "one")
    assert json.loads((tmp_path / "two" / "summary.json").read_text())["devices"] == 2


@pytest.mark.slow
def test_four_processes_are_one_with_four_devices_up_to_rounding(file, tmp_path):
    """Sums between processes are added in another order, which learning amplifies."""
    codes, texts = Hosts(1, file, tmp_path / "one", devices=4).end()
    assert codes == [0], texts
    codes, texts = Hosts(4, file, tmp_path / "four").end()
    assert codes == [0] * 4, texts
    four, one = tmp_path / "four", tmp_path / "one"
    assert (four / "levels.jsonl").read_bytes() == (one / "levels.jsonl").read_bytes()
    for mine, other in zip(tiny_run.metrics(four), tiny_run.metrics(one), strict=True):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            if not name.startswith("rollout/logprob_"):  # which measure rounding
                expected = other[name] if isinstance(value, str) else pytest.approx(other[name], rel=5e-3, abs=1e-5)
                assert value == expected, name


@pytest.mark.slow
@pytest.mark.parametrize("url", ["local", ""], ids=["in the process", "behind servers"])
def test_every_host_has_services_for_its_episodes(tmp_path, url):
    file = tmp_path / "served.yaml"
    file.write_text(test_service_run.CONFIG.replace("url: local", f"url: '{url}'"))
    codes, texts = Hosts(1, str(file), tmp_path / "one", devices=2).end()
    assert codes == [0], texts
    codes, texts = Hosts(2, str(file), tmp_path / "two").end()
    assert codes == [0, 0], texts
    one, two = (test_service_run.rows(tmp_path / name) for name in ("one", "two"))
    assert one == two
    assert tiny_run.summary(tmp_path / "one") == tiny_run.summary(tmp_path / "two")
    if not url:
        assert (tmp_path / "two" / "service-maze.log").exists()
        assert (tmp_path / "two" / "service-maze-1.log").exists()


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes_and_another_mesh(file, tmp_path):
    """2 processes, then 1, then 4 on another mesh: what a single process on 4 devices gives, up to rounding."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    codes, texts = Hosts(1, file, whole, devices=4).end()
    assert codes == [0], texts
    for count, devices, iterations, words in (
        (2, 1, 1, ()),
        (1, 1, 2, ()),
        (4, 1, 4, ("--mesh.fsdp", "2", "--mesh.tensor", "2")),
    ):
        codes, texts = Hosts(count, file, run, "--train.iterations", str(iterations), *words, devices=devices).end()
        assert codes == [0] * count, texts
    found, expected = ([row for row in tiny_run.metrics(x) if row["stage"] == "rl"] for x in (run, whole))
    assert [row["iteration"] for row in found] == [1, 2, 3, 4]
    # Only rounding depends on the devices; learning amplifies it.
    for mine, other in zip(found, expected):
        for name in PLAYED:
            assert mine[name] == pytest.approx(other[name], rel=1e-6)
        assert mine["actor/entropy"] == pytest.approx(other["actor/entropy"], rel=0.02)
    history = [json.loads(line) for line in (run / "config.history.jsonl").read_text().splitlines()]
    assert {"mesh.fsdp", "mesh.tensor", "train.iterations"} <= set(history[-1]["changed"])
    assert json.loads((run / "summary.json").read_text())["devices"] == 4


def ends_as_lost(index, codes, texts, lost):
    """One sentence, the last line, whatever JAX has printed before."""
    err = texts[index][1]
    assert codes[index] == 1, texts
    assert err.count("agentrl: ") == 1, err
    last = err.splitlines()[-1]
    assert last.startswith(f"agentrl: process {index} of {len(codes)}: {lost}"), err
    assert last.endswith("; give it on all hosts"), err


@pytest.mark.slow
@pytest.mark.parametrize(("there", "seconds"), [("config.yaml", 0.5), ("config.yaml", 5), ("metrics.jsonl", 0)])
def test_process_0_may_be_killed_early(file, tmp_path, there, seconds):
    """Before imitation, while programs are compiled, and in it."""
    hosts = Hosts(2, file, tmp_path / "run", "--imitation.steps", "100000")
    until((tmp_path / "run" / there).exists, hosts)
    time.sleep(seconds)
    hosts.processes[0].kill()
    codes, texts = hosts.end(60)
    ends_as_lost(1, codes, texts, LOST[0])


@pytest.mark.slow
def test_a_frozen_process_0_ends_the_others(file, tmp_path):
    hosts = Hosts(2, file, tmp_path / "run", "--train.iterations", "100000")
    until(lambda: rl_rows(tmp_path / "run") >= 1, hosts)
    hosts.processes[0].send_signal(signal.SIGSTOP)
    try:
        hosts.processes[1].wait(timeout=90)
    finally:
        hosts.processes[0].kill()
    codes, texts = hosts.end(60)
    ends_as_lost(1, codes, texts, LOST[1])  # its port still accepts connections


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_when_a_process_is_killed_all_end_and_the_same_command_goes_on(file, tmp_path, killed):
    hosts = Hosts(2, file, tmp_path / "run", "--train.iterations", "4")
    until(lambda: rl_rows(tmp_path / "run") >= 1, hosts)
    hosts.processes[killed].kill()
    codes, texts = hosts.end(60)
    assert codes[killed] == -signal.SIGKILL
    ends_as_lost(1 - killed, codes, texts, LOST[killed])
    codes, texts = Hosts(2, file, tmp_path / "run", "--train.iterations", "4").end()
    assert codes == [0, 0], texts
    assert "going on from the checkpoint of step" in texts[0][0]
    codes, texts = Hosts(1, file, tmp_path / "one", "--train.iterations", "4", devices=2).end()
    assert codes == [0], texts
    same(tmp_path / "run", tmp_path / "one")


@pytest.mark.slow
def test_a_signal_to_one_process_saves_and_ends_all(file, tmp_path):
    hosts = Hosts(2, file, tmp_path / "run", "--train.iterations", "100000", "--train.checkpoint_every", "100000")
    until(lambda: rl_rows(tmp_path / "run") >= 3, hosts)
    hosts.processes[1].terminate()
    codes, texts = hosts.end(60)
    assert codes == [143, 143], texts
    step = tiny_run.metrics(tmp_path / "run")[-1]["step"]
    sentence = f"agentrl: stopped by SIGTERM; the checkpoint of step {step} is kept; the same command goes on from it\n"
    assert [text[1] for text in texts] == [sentence] * 2


def test_hosts_that_do_not_share_the_folder_are_told(file, tmp_path):
    """As if each had a file system of its own."""
    codes, texts = Hosts(2, file, [tmp_path / "run", tmp_path / "other"]).end()
    assert codes == [2, 2], texts
    assert all("process 1 does not see the folder of process 0" in text[1] for text in texts)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--hosts.count", "2"), "hosts.coordinator is empty"),
        (("--hosts.coordinator", "auto", "--hosts.index", "0"), "hosts.coordinator is auto"),
        (("--hosts.coordinator", "here", "--hosts.count", "2", "--hosts.index", "0"), "expected HOST:PORT"),
        (("--hosts.coordinator", "here:1", "--hosts.count", "2", "--hosts.index", "2"), "from 0 to count - 1"),
        (("--hosts.coordinator", "here:1", "--hosts.count", "2"), "give both"),
    ],
)
def test_hosts_that_cannot_be_are_refused(file, words, message):
    code, _, err = tiny_run.command("train", file, *words)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
