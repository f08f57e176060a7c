"""Cycles of one decoding step by the layout of its cache, compiled ahead of time for a TPU that need not be present.

    python benchmarks/decode_step.py
    python benchmarks/decode_step.py --models qwen2.5-7b --layouts halves --rows 128
    python benchmarks/decode_step.py --layouts groups --quantization none weights weights_and_cache

Two layers without embedding and LM head, bfloat16, all positions filled: a prefix of 260 tokens and five turns of 122
observed and 64 sampled tokens. Layouts of a row's context:

* dense: each row stores all positions in one buffer, and its response in another;
* turns: the prefix is shared by all rows, and a row has a block for each turn, skipped if no row has reached it;
* halves: the prefix is shared by all rows, and a row has two blocks, which are always read;
* groups: as halves, but a group shares its first observation, and a copy of the prefix before it.

The cycles are the compiler's estimates, added up over the instructions of the program; transfers to on-chip memory that
it starts in advance have none, so the bytes between the chip and its large memory are printed too, and those of all
inputs. `--quantization` is `rollout.quantization`. Needs `libtpu`; a program compiles in about half a minute.
"""

import argparse
import dataclasses
import itertools
import re
import time

import jax
import jax.numpy as jnp
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

from agentrl_jax.models import cached_decoder, decoder
from agentrl_jax.models.kv_cache import KVCache, Opening, SharedPrefix, init_cache, shared_prefix
from agentrl_jax.models.published import PUBLISHED
from agentrl_jax.models.quantized import INTEGERS
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.parallel.hlo_traffic import memory_bytes
from agentrl_jax.parallel.topology import described_devices

PREFIX, READ, SAID, TURNS = 260, 122, 64, 5
LAYOUTS = ("dense", "turns", "halves", "groups")


def context(layout: str, shape: DecoderConfig, rows: int, group_size: int) -> tuple[KVCache, SharedPrefix | None]:
    """The empty cache of so many rows, and the prefix that they share."""
    own = TURNS * READ + (TURNS - 1) * SAID
    if layout == "dense":
        return init_cache(shape, rows, PREFIX + own, response=SAID, block=PREFIX + own), None
    alone = init_cache(shape, 1, PREFIX, block=PREFIX)
    prefix = shared_prefix(alone, jnp.full(1, PREFIX, jnp.int32), jnp.zeros(rows, jnp.int32))
    if layout == "turns":
        return init_cache(shape, rows, own, response=SAID, block=READ + SAID), prefix
    opening = None
    if layout == "groups":
        own -= READ
        first = init_cache(shape, rows // group_size, READ, block=READ).blocks
        length = jnp.full(rows // group_size, READ, jnp.int32)
        opening = Opening(tuple(pair for (pair,) in first), length).with_prefix(prefix)
    cache = init_cache(shape, rows, own, response=SAID, block=-(-own // 2))
    return cache.replace(opening=opening, skips=False), prefix


def measure(shape: DecoderConfig, layout: str, rows: int, group_size: int, device: jax.Device) -> tuple[int, int, int]:
    """Estimated cycles of a step, the bytes that it moves, and those of its inputs."""

    def step(params, cache, prefix, token, position, length, active):
        hidden, cache = cached_decoder.decode_with_cache(
            params, shape, cache, token, position, length, active, prefix, lockstep=True
        )
        return cache, hidden

    def inputs():
        params = cached_decoder.prepare_for_decode(decoder.init_params(jax.random.key(0), shape), shape)
        number = jnp.zeros(rows, jnp.int32)
        return params, *context(layout, shape, rows, group_size), number, number, number, jnp.ones(rows, bool)

    # The memory layout of the cache is left to the compiler, as that of a loop's state is.
    place = SingleDeviceSharding(device)
    shapes = jax.eval_shape(inputs)
    chosen = jax.tree.map(lambda _: Format(Layout.AUTO, place), shapes)
    options = {"in_shardings": chosen, "out_shardings": (chosen[1], None)}
    compiled = jax.jit(step, donate_argnums=1, **options).lower(*shapes).compile()
    text = compiled.as_text()
    cycles = re.findall(r'"estimated_cycles":"(\d+)"', text)
    return sum(map(int, cycles)), memory_bytes(text), compiled.memory_analysis().argument_size_in_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description="Cycles of one decoding step by the layout of its cache.")
    parser.add_argument("--models", choices=list(PUBLISHED), nargs="+", default=["qwen2.5-0.5b", "qwen2.5-7b"])
    parser.add_argument("--layouts", choices=LAYOUTS, nargs="+", default=list(LAYOUTS))
    parser.add_argument("--quantization", choices=list(INTEGERS), nargs="+", default=["none"])
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=16)
    options = parser.parse_args()
    if options.group_size < 2 or options.rows % options.group_size:
        parser.error(f"--rows {options.rows}; expected a multiple of --group-size {options.group_size}, at least 2")
    device = described_devices(options.topology)[0][0]
    print(f"{options.rows} rows in groups of {options.group_size}, a chip of {options.topology}")
    for name in options.models:
        shape = dataclasses.replace(PUBLISHED[name], num_layers=2, windows=(), vocab_size=128, dtype="bfloat16")
        for layout, quantization in itertools.product(options.layouts, options.quantization):
            began = time.monotonic()
            integers = dataclasses.replace(shape, **dict.fromkeys(INTEGERS[quantization], "int8"))
            cycles, moved, held = measure(integers, layout, options.rows, options.group_size, device)
            seconds = time.monotonic() - began
            print(
                f"{name:14s} {layout:7s} {quantization:18s}{cycles:10,d} cycles {moved / 2**20:8,.0f} MiB moved "
                f"{held / 2**20:8,.0f} MiB held ({seconds:.0f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
