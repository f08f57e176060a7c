"""Detection of the processes that a cluster's launcher has started: SLURM, Open MPI, Kubernetes, TPU VMs.

JAX knows the variables and services of each. What it does not see is checked here: a step of fewer tasks than the job,
where it would wait for the others, and a host with one task, to which it would give only one of the host's GPUs.
"""

import os
import re
from collections.abc import Sequence

# Public is only `jax.distributed.initialize`, which ends with a segmentation fault if the port that it finds is in use.
from jax._src import clusters

from agentrl_jax.config import HostsConfig
from agentrl_jax.errors import MAX_FOREIGN, UserError, shortened

_OMPI_LOCAL = "OMPI_COMM_WORLD_LOCAL_SIZE"
"""Variable of Open MPI, which counts there even inside a job of SLURM."""
_ADVICE = "start the run with srun, mpirun or on a TPU slice, or give an address with hosts.count and hosts.index"


def detect(seconds: int) -> tuple[HostsConfig, Sequence[int] | None]:
    """Returns the processes of the cluster, and which accelerators of its host this one uses; None: all of them.

    Waits at most about `seconds` for the name of process 0 to be known.

    Raises:
        UserError: there is no cluster, its values cannot be used, or more processes are expected than were started.
    """
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    try:
        found = clusters.ClusterEnv.auto_detect_unset_distributed_params(address, None, None, None, None, seconds)
    except Exception as error:  # the packages of some clusters have errors of any type
        reason = shortened(f"{type(error).__name__}: {error}", MAX_FOREIGN)
        raise UserError(
            f"hosts.coordinator is auto: the cluster cannot be read ({reason}); {_ADVICE}",
            key="hosts.coordinator",
            value="auto",
        ) from error
    address, count, index, devices = found
    if address is None or count is None or index is None:
        raise UserError(
            f"hosts.coordinator is auto, but no cluster is detected; {_ADVICE}", key="hosts.coordinator", value="auto"
        )
    if not re.fullmatch(r".+:[0-9]{1,5}", address):
        raise UserError(
            f"hosts.coordinator is auto, and the address of process 0 is {shortened(address)}, expected HOST:PORT; see "
            "JAX_COORDINATOR_ADDRESS and JAX_COORDINATOR_PORT",
            key="hosts.coordinator",
            value="auto",
        )
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS")
    if tasks is not None and _OMPI_LOCAL not in os.environ and tasks != str(count):
        raise UserError(
            f"hosts.coordinator is auto, but SLURM_NTASKS is {count} and this step has {tasks} of these tasks; start "
            "the run with `srun`, or leave hosts.coordinator out for a run of one process",
            key="hosts.coordinator",
            value="auto",
        )
    alone = _is_alone_on_its_host() or "JAX_LOCAL_DEVICE_IDS" in os.environ  # JAX reads that variable if given none
    return HostsConfig(coordinator=address, count=count, index=index), None if alone else devices


def _is_alone_on_its_host() -> bool:
    if _OMPI_LOCAL in os.environ:
        return os.environ[_OMPI_LOCAL] == "1"
    return re.fullmatch(r"1(\(x\d+\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")) is not None
