"""The devices of a run as a mesh with the axes `data`, `fsdp`, `sequence` and `tensor`."""

from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh

DATA, FSDP, SEQUENCE, TENSOR = "data", "fsdp", "sequence", "tensor"
MESH_AXES = (DATA, FSDP, SEQUENCE, TENSOR)


def make_mesh(devices: int | Sequence[jax.Device] = 0, *, fsdp: int = 1, sequence: int = 1, tensor: int = 1) -> Mesh:
    """A mesh with the axes (data, fsdp, sequence, tensor); `data` is the number of devices divided by the others.

    `devices` are given, or so many of this host are taken; 0: all. While learning, parameters, optimizer state and rows
    are sharded over `fsdp` devices; the positions of a row over `sequence` devices; each matrix over `tensor` devices.

    Raises:
        ValueError: there are too few devices, or fsdp x sequence x tensor does not divide their number.
    """
    if isinstance(devices, int):
        present = jax.devices()
        if devices > len(present):
            raise ValueError(
                f"devices is {devices}, but this host has {len(present)}; set devices to at most that or 0"
            )
        devices = present[: devices or None]
    if len(devices) % (fsdp * sequence * tensor):
        raise ValueError(
            f"fsdp x sequence x tensor is {fsdp} x {sequence} x {tensor}, which does not divide the {len(devices)} "
            "devices; use a divisor"
        )
    shape = (len(devices) // (fsdp * sequence * tensor), fsdp, sequence, tensor)
    return jax.make_mesh(shape, MESH_AXES, devices=devices, axis_types=(AxisType.Auto,) * len(shape))
