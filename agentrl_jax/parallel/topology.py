"""Devices to compile for that need not be present: TPU topologies that `libtpu` can describe."""

import importlib.util
import os

import jax
from jax.experimental import topologies

from agentrl_jax.errors import BadValue

GIB = 2**30
HBM = {"v4": 32 * GIB, "v5e": 16 * GIB, "v5p": 95 * GIB, "v6e": 32 * GIB}
"""Memory of a chip in bytes (Cloud TPU documentation, "System architecture")."""


class TopologyError(BadValue):
    """The topology cannot be described here."""


def described_devices(name: str, slices: int = 1) -> tuple[list[jax.Device], int | None]:
    """Devices of a topology, and the memory of each in bytes, or None if it is not known.

    `name` is `local` for the devices of this process, or a TPU slice such as `v5e:4x4` or `v5p:4x4x8`, of which there
    are `slices`.

    Raises:
        TopologyError: the name is unknown, `slices` is not possible, or `libtpu` is not installed.
    """
    if slices < 1 or (name == "local" and slices > 1):
        raise TopologyError(
            f"slices is {slices} and the topology {name}; expected at least 1 slice, and 1 for the topology local",
            key="slices",
            value=slices,
        )
    if name == "local":
        devices = jax.devices()
        stats = devices[0].memory_stats() or {}
        return devices, stats.get("bytes_limit")
    kind = name.partition(":")[0]
    if kind not in HBM or ":" not in name:
        raise TopologyError(
            f"topology {name!r} is unknown; expected local, or one of {', '.join(HBM)} with its shape, e.g. v5e:4x4",
            key="topology",
            value=name,
        )
    if importlib.util.find_spec("libtpu") is None:
        raise TopologyError(
            f"topology {name} needs the TPU compiler, which is not installed; pip install 'libtpu==0.0.42.*' (the "
            "extra `plan`, for JAX 0.10.2), or give the topology local",
            key="topology",
            value=name,
        )
    # Otherwise the library queries the metadata server of the machine and waits for it.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    # It would refuse a second process, which matters where chips are opened only.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    # As a run sees the chips of v4: as one device each, not as one for each of the two cores.
    options = {"chip_config_name": "megacore"} if kind == "v4" else {}
    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=name, num_slices=slices, **options)
    except Exception as error:  # the plug-in may raise any type
        reason = " ".join(str(error).split())[:200]
        raise TopologyError(
            f"topology {name} is not one that libtpu describes ({reason}); e.g. v5e:4x4", key="topology", value=name
        ) from error
    return list(described.devices), HBM[kind]
