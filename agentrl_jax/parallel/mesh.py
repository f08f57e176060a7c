"""The devices of a run as a mesh with the axes `data`, `fsdp` and `tensor`."""

from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"
MESH_AXES = (DATA, FSDP, TENSOR)


def make_mesh(devices: int | Sequence[jax.Device] = 0, *, fsdp: int = 1, tensor: int = 1) -> Mesh:
    """A mesh (data, fsdp, tensor); what `fsdp` and `tensor` leave over is `data`.

    Args:
        devices: how many of this host's devices, the first ones; 0 takes all. Or the devices themselves.
        fsdp: devices that share parameters, optimizer state and rows while learning.
        tensor: devices that share each matrix.

    Raises:
        ValueError: there are fewer devices, or fsdp x tensor does not divide them.
    """
    if isinstance(devices, int):
        there = jax.devices()
        count = devices or len(there)
        if count > len(there):
            raise ValueError(f"devices is {count}, but this host has {len(there)}; set devices to at most that or 0")
        devices = there[:count]
    if len(devices) % (fsdp * tensor):
        raise ValueError(
            f"fsdp x tensor is {fsdp} x {tensor}, which does not divide the {len(devices)} devices; use a divisor"
        )
    shape = (len(devices) // (fsdp * tensor), fsdp, tensor)
    return jax.make_mesh(shape, MESH_AXES, devices=devices, axis_types=(AxisType.Auto,) * 3)
