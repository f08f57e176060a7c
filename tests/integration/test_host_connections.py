"""How processes are connected: launchers, agreement, lost processes, and what is refused."""

import json
import os
import signal
import socket

import pytest
import tiny_run
from processes import GLOO, LOST, free_address, two_processes

from agentrl_jax.parallel import clusters


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tiny_run.write_config(tmp_path_factory.mktemp("hosts"))


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
