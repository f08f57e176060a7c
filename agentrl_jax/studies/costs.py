"""What one call of a phase costs a device, for any depth and number of rows, from a few compiled programs."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from agentrl_jax.models import block_attention
from agentrl_jax.models.decoder import Remat
from agentrl_jax.models.row_attention import refusal
from agentrl_jax.models.shape import Attention
from agentrl_jax.parallel import hlo
from agentrl_jax.parallel.hlo_traffic import memory_bytes
from agentrl_jax.studies.abstract_run import AbstractRun
from agentrl_jax.studies.phases import DECODE, OPTIMIZER, PREFILL, SCORE, UPDATE, Phase, PhaseBuilder

DEPTHS = (2, 4)
"""Layers of the programs that are compiled. One layer alone is compiled differently."""
LARGEST = {PREFILL: 16, DECODE: 256, SCORE: 4, UPDATE: 2, OPTIMIZER: 1}
"""Most rows of these programs; an optimizer's step has none."""

KERNEL_PASSES = {SCORE: 1.0, UPDATE: 4.5}
"""Attention of a whole row in forward passes: the backward pass of a kernel repeats the forward pass and takes 2.5
times as many products (Dao 2023)."""


class Cost(NamedTuple):
    """Of one call on one device; bytes, but `flops`."""

    flops: float
    accessed: float
    """Read from the device's large memory and written to it, see `parallel.hlo_traffic`."""
    sent: float
    """Sent to other devices of `tensor` by collectives that are computed as rings."""
    arguments: float
    """Inputs and outputs; memory shared by both counts once."""
    temporaries: float


class CostModel:
    """Compiles the phases with few layers and rows, and extrapolates.

    Every further layer of a stack of equal layers costs the same, and so does every further row: exactly for operations
    and collectives, nearly for bytes and temporaries, because the compiler decides what stays in on-chip memory, and
    decides otherwise for more rows. So a number of rows up to `LARGEST` is compiled if it is a power of two, or lies on
    the line between two that are; a larger one lies on the line through the two largest. Layers with different windows
    count as if they had none.
    """

    def __init__(self, run: AbstractRun, devices: list[jax.Device], report: Callable[[str], None]):
        self.run, self.devices, self.report = run, devices, report
        self.compiled = 0
        """Number of programs compiled so far."""
        self._builders: dict[tuple[int, int, Remat], PhaseBuilder] = {}
        self._at_rows: dict[tuple[str, int, int, Remat], np.ndarray] = {}

    def cost(self, name: str, rows: float, *, tensor: int = 1, remat: Remat | None = None) -> Cost:
        """The cost of the phase `name` for `rows` rows on `tensor` devices; 0 rows leave what no row adds to."""
        remat = self.run.model.remat if remat is None or name != UPDATE else remat
        points = compiled_rows(rows, LARGEST[name])
        values = [self._at_depth(name, n, tensor, remat) for n in points]
        if len(points) == 1:
            return Cost(*values[0].tolist())
        value = _line(points, values, rows)
        # Part of a row costs at least its share of one.
        return Cost(*np.maximum(value, values[0] * min(rows / points[0], 1.0)).tolist())

    def _at_depth(self, name: str, rows: int, tensor: int, remat: Remat) -> np.ndarray:
        """Cost at the run's own depth, from that of two shallow decoders."""
        key = name, rows, tensor, remat
        if key not in self._at_rows:
            shallow = [self._measured(name, rows, tensor, depth, remat) for depth in DEPTHS]
            cost = Cost(*np.maximum(_line(DEPTHS, shallow, self.run.model.decoder.num_layers), 0.0).tolist())
            if name == UPDATE:
                cost = cost._replace(temporaries=self._update_temporaries(rows, tensor, remat))
            self._at_rows[key] = np.array(cost)
        return self._at_rows[key]

    def _update_temporaries(self, rows: int, tensor: int, remat: Remat) -> float:
        """Those of the update at full depth with its loops, which compile as fast for any depth.

        Written out, the logits of all chunks of tokens would be in memory at once.
        """
        self.report(f"compiling {UPDATE} with its loops: {rows} rows, tensor {tensor}")
        self.compiled += 1
        phase = PhaseBuilder(self.run, self.devices[:tensor], remat=remat).phase(UPDATE, rows)
        memory: Any = phase.lower().compile().memory_analysis()
        return memory.temp_size_in_bytes

    def _measured(self, name: str, rows: int, tensor: int, depth: int, remat: Remat) -> np.ndarray:
        key = depth, tensor, remat
        if key not in self._builders:
            self._builders[key] = PhaseBuilder(self.run, self.devices[:tensor], layers=depth, remat=remat)
        self.report(f"compiling {name}: {depth} layers, {rows} rows, tensor {tensor}")
        self.compiled += 1
        builder = self._builders[key]
        cost = measure(builder.phase(name, rows), tensor)
        kernels = kernel_flops(builder, name, rows) / tensor
        return np.array(cost._replace(flops=cost.flops + kernels))


def compiled_rows(rows: float, largest: int) -> tuple[int, ...]:
    """The number of rows itself if it is compiled, otherwise the two that a line is drawn through."""
    if largest == 1:
        return (1,)
    below = min(2 ** int(math.log2(max(rows, 1))), largest)
    if rows == below:
        return (below,)
    first = min(below, largest // 2)
    return first, 2 * first


def _line(at: Sequence[float], values: Sequence[np.ndarray], x: float) -> np.ndarray:
    """The line through two points, which never falls."""
    (first, second), (low, high) = at, values
    return low + np.maximum(high - low, 0.0) * (x - first) / (second - first)


def measure(phase: Phase, devices: int) -> Cost:
    """What the compiled phase costs; a kernel that the compiler does not know counts no operations."""
    compiled: Any = phase.lower(unroll=True).compile()
    counted, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
    text = compiled.as_text()
    collectives = hlo.operations(text, hlo.COLLECTIVES) if devices > 1 else []
    return Cost(
        flops=float(counted.get("flops", 0.0)),
        accessed=float(memory_bytes(text)),
        sent=sum(sent_bytes(one, devices) for one in collectives),
        arguments=memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
    )


def sent_bytes(collective: hlo.Operation, devices: int) -> float:
    """Bytes that each of so many devices sends if the collective is computed as a ring."""
    share = (devices - 1) / devices
    factor = {"all-reduce": 2 * share, "reduce-scatter": devices - 1, "collective-permute": 1.0}
    return factor.get(collective.kind, share) * collective.size


def kernel_flops(builder: PhaseBuilder, name: str, rows: int) -> float:
    """Operations of attention over whole rows where a kernel computes it, which the compiler does not count."""
    shape, length, algo = builder.model.decoder, builder.batch.tokens.shape[1], builder.config.algo
    platform = builder.mesh.devices.flat[0].platform
    suited: Attention = "splash" if platform == "tpu" else "cudnn"
    served = not refusal(suited, dtype=shape.dtype, head_dim=shape.head_dim, platform=platform)
    kernel = shape.attention in ("splash", "cudnn") or (shape.attention == "auto" and served)
    if name not in KERNEL_PASSES or not kernel or length <= block_attention.BLOCK:
        return 0.0
    passes = KERNEL_PASSES[name]
    if name == UPDATE:
        # A separate critic is a second decoder, and an exact divergence needs the reference's logits.
        passes *= 2 if builder.model.critic == "separate" else 1
        passes += KERNEL_PASSES[SCORE] if algo.kl.estimator == "full" else 0.0
    # Two products of each pair of a query and a key that is not after it.
    pairs = rows * shape.num_heads * length**2 / 2
    return passes * shape.num_layers * pairs * 4 * shape.head_dim


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    below = [n for n in itertools.takewhile(lambda n: n * n <= number, itertools.count(1)) if number % n == 0]
    return sorted({*below, *(number // n for n in below)})
