"""What a chip can do at most: operations, memory traffic and traffic to its neighbors, each per second."""

import dataclasses

import jax

from agentrl_jax.parallel.topology import HBM, TopologyError

_GB = 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peak rates of one chip."""

    flops: float
    """Floating-point operations a second of dense products of bfloat16 numbers."""
    bandwidth: float
    """Bytes a second that it reads and writes in its memory."""
    link: float
    """Bytes a second that it sends while a ring of chips computes a collective: on a TPU over the two links of one
    dimension of the torus, on a GPU over all of its NVLinks."""


def _tpu(*, tflops: float, bandwidth: float, interconnect: float, dimensions: int) -> Peaks:
    """From figures of a system architecture page; those in GB/s are of a chip, and of both directions for its links."""
    one_direction = interconnect / 2 / dimensions
    return Peaks(flops=tflops * 1e12, bandwidth=bandwidth * _GB, link=one_direction * _GB)


PEAKS: dict[str, Peaks] = {
    "v4": _tpu(tflops=275, bandwidth=1200, interconnect=600, dimensions=3),
    "v5e": _tpu(tflops=197, bandwidth=819, interconnect=400, dimensions=2),
    "v5p": _tpu(tflops=459, bandwidth=2765, interconnect=1200, dimensions=3),
    "v6e": _tpu(tflops=918, bandwidth=1638, interconnect=800, dimensions=2),
    "A100": Peaks(flops=312e12, bandwidth=2039 * _GB, link=300 * _GB),
    "H100": Peaks(flops=989e12, bandwidth=3350 * _GB, link=450 * _GB),
    "H200": Peaks(flops=989e12, bandwidth=4800 * _GB, link=450 * _GB),
}
"""Peak rates by the name of a chip; the memory of TPUs is in `topology.HBM`.

TPUs: Cloud TPU documentation, "System architecture" of each version (docs.cloud.google.com/tpu/docs/v4, v5e, v5p and
v6e), read in November 2026. The page of v4 does not state the bandwidth of its links: 6 links of 50 GB/s in each
direction are from memory of the paper (Jouppi et al. 2023, arXiv 2304.01433) and not verified. GPUs are the SXM boards
with 80 GB (A100, H100) and 141 GB (H200), without sparsity, as in the vendor's data sheets; only copies of the data
sheets by third parties could be read.
"""

_KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
}
"""Names of TPUs by JAX's `device_kind`."""


def chip_name(device: jax.Device) -> str:
    """The name of a device in `PEAKS`.

    Raises:
        TopologyError: it has no entry there.
    """
    kind = device.device_kind
    # A PCIe board has the same name as its SXM board but lower rates.
    gpus = (name for name in PEAKS if name not in HBM and name in kind and "PCIe" not in kind)
    name = _KINDS.get(kind) or next(gpus, None)
    if name is None:
        raise TopologyError(
            f"the peak rates of device kind {kind!r} are not known; expected one of {', '.join(PEAKS)}: give a "
            "described topology such as v5e:4x4, or add the device to agentrl_jax/parallel/peaks.py",
            key="device kind",
            value=kind,
        )
    return name
