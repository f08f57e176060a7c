"""Cycles of a decoding step for a described TPU: the layouts of accelerators stay as much faster as the docs say."""

import dataclasses
import importlib.util

import pytest
from benchmark_scripts import script

from agentrl_jax.models.published import PUBLISHED
from agentrl_jax.parallel.topology import described_devices

BEFORE = {"qwen2.5-0.5b": 501_816, "qwen2.5-7b": 3_239_575}
"""With one dense buffer per layer, before the cache was cut into segments."""


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed")
@pytest.mark.parametrize("layout", ["halves", "groups"])
@pytest.mark.parametrize(("name", "times"), [("qwen2.5-0.5b", 1.8), ("qwen2.5-7b", 1.15)])
def test_a_step_takes_fewer_cycles_than_with_the_dense_cache(name, times, layout):
    shape = dataclasses.replace(PUBLISHED[name], num_layers=2, windows=(), vocab_size=128, dtype="bfloat16")
    cycles, *_ = script("decode_step").measure(shape, layout, 64, 16, described_devices("v5e:2x2")[0][0])
    assert cycles * times <= BEFORE[name]
