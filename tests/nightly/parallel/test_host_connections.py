import signal

import pytest
from processes import GLOO, LOST, SLURM, free_address, two_processes

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
    assert codes == ([0, 0] if tasks == 2 else [1, 1]), texts
    for index, (out, err) in enumerate(texts):
        last = GLOO.sub("", out) if tasks == 2 else err.splitlines()[-1]
        lost = f"agentrl: process {index} of 3: no connection with the others at localhost:{port} ("
        assert last.startswith(f"{index} [True, False]\n" if tasks == 2 else lost)


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
