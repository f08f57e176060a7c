"""Memory of the gradient of one layer over long rows, compiled ahead of time for a TPU that need not be present.

    python benchmarks/attention.py
    python benchmarks/attention.py --lengths 16384 --forms blocks auto --remat full
    python benchmarks/attention.py --here --forms blocks cudnn --lengths 1190 4096 16384

Prints the temporaries of the program in GiB. The layer is that of a published model, with bfloat16 activations and f32
parameters; vocabulary and loss are left out. Forms: `square` has all scores of a row at once, as before there were
blocks, and is for one device a row; the others are values of `model.attention`. With `--sequence` above 1, as many
devices share the positions of the row, which have to be all of the topology (`--topology v5e:2x2 --sequence 4`). Needs
`libtpu`; compiling takes a minute or two for each number. With `--here` the program is compiled for the first device of
this machine and run: milliseconds of a gradient (the least of five).
"""

import argparse
import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as Spec
from worker import seconds

from agentrl_jax.models import attention, decoder, row_attention
from agentrl_jax.models.published import PUBLISHED
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.parallel.topology import GIB, described_devices

AXIS = "sequence"


def square(query, key, value, *, window=0, segment_ids=None, implementation="auto"):
    positions = jnp.arange(key.shape[2])[None]
    seen = attention.visible(positions, positions[:, -query.shape[1] :])
    return jax.checkpoint(attention.attend)(query, key, value, seen)


def measure(shape: DecoderConfig, length: int, form: str, remat: Any, devices: list[jax.Device], here: bool) -> str:
    """GiB on one device, and the seconds that the compiler took, or with `here` those of a run; or the error."""
    mesh = jax.make_mesh((len(devices),), (AXIS,), devices=devices, axis_types=(AxisType.Auto,))
    shape = dataclasses.replace(shape, attention="auto" if form == "square" else form)
    axis = AXIS if len(devices) > 1 else ""

    def loss(params, tokens):
        hidden = decoder.forward(params, shape, tokens, sequence_axis=axis, remat=remat)
        return jnp.sum(jnp.square(hidden.astype(jnp.float32)))

    def gradient(params, tokens):
        if axis:
            params = jax.tree.map(lambda x: jax.lax.pcast(x, (axis,), to="varying"), params)
        grads = jax.grad(loss)(params, tokens)
        return jax.tree.map(lambda x: jax.lax.psum(x, axis), grads) if axis else grads

    program = jax.shard_map(gradient, mesh=mesh, in_specs=Spec(), out_specs=Spec()) if axis else gradient
    params = jax.eval_shape(lambda: decoder.init_params(jax.random.key(0), shape))
    inputs = (params, jax.ShapeDtypeStruct((1, length), jnp.int32))
    place = NamedSharding(mesh, Spec())
    placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), inputs)
    began = time.monotonic()
    try:
        compiled = jax.jit(program).lower(*placed).compile()
        took = f"compiled in {time.monotonic() - began:.0f} s"
        if here:
            arrays = jax.jit(lambda: _random(shape, length), out_shardings=place)()
            runs = [seconds(lambda: jax.block_until_ready(compiled(*arrays))) for _ in range(6)][1:]
            took = f"{1e3 * min(runs):.1f} ms"
    except jax.errors.JaxRuntimeError as error:
        return f"refused: {str(error).splitlines()[0][:120]}"
    return f"{compiled.memory_analysis().temp_size_in_bytes / GIB:.2f} ({took})"


def _random(shape: DecoderConfig, length: int) -> tuple[Any, jax.Array]:
    keys = jax.random.split(jax.random.key(0))
    return decoder.init_params(keys[0], shape), jax.random.randint(keys[1], (1, length), 0, shape.vocab_size)


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of the gradient of one layer over long rows.")
    parser.add_argument("--model", choices=list(PUBLISHED), default="qwen2.5-7b")
    parser.add_argument("--topology", default="v5e:4x4")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1190, 4096, 8192, 16384])
    parser.add_argument("--forms", nargs="+", help="by default square (of one device), blocks and splash")
    parser.add_argument("--remat", choices=list(decoder.REMAT), default="none")
    parser.add_argument("--sequence", type=int, default=1, help="devices that share the positions of a row")
    parser.add_argument("--here", action="store_true", help="run on the first device of this machine")
    options = parser.parse_args()
    forms = options.forms or [*(["square"] if options.sequence == 1 else []), "blocks", "splash"]
    if "square" in forms and options.sequence > 1:
        parser.error("square is a form of a row on one device; leave it out, or --sequence")
    layer = dataclasses.replace(PUBLISHED[options.model], num_layers=1, windows=(), vocab_size=128, dtype="bfloat16")
    where = jax.devices()[0].device_kind if options.here else options.topology
    devices = (jax.devices() if options.here else described_devices(options.topology)[0])[: options.sequence]
    print(f"{options.model}, one layer on {where}, {options.sequence} devices a row, remat {options.remat}")
    of_blocks = row_attention.attention
    for length in options.lengths:
        for form in forms:
            row_attention.attention = square if form == "square" else of_blocks
            found = measure(layer, length, form, options.remat, devices, options.here)
            print(f"{length:7d} tokens   {form:7s} GiB {found}", flush=True)


if __name__ == "__main__":
    main()
