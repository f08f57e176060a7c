import importlib.util

import jax
import pytest
from sweeps import CONFIG, EMBED, HEADS, KV_HEADS, LAYERS, MACHINE, MLP

from agentrl_jax.parallel.peaks import PEAKS, chip_name
from agentrl_jax.parallel.topology import GIB, described_devices
from agentrl_jax.rollout.engine_config import cache_length
from agentrl_jax.studies.costs import measure
from agentrl_jax.studies.phases import DECODE, SCORE, UPDATE, PhaseBuilder
from agentrl_jax.studies.sweep import Sweeper

MATRICES = 2 * EMBED * EMBED + 2 * EMBED * EMBED * KV_HEADS // HEADS + 3 * EMBED * MLP


@pytest.fixture(scope="module")
def costs():
    return Sweeper(CONFIG, jax.devices()[:2]).costs


def test_a_compiled_sweep_confirms_its_best_candidate():
    sweeper = Sweeper(CONFIG, jax.devices()[:4])
    found = sweeper.rank(GIB, MACHINE, compiled=1)
    assert sweeper.costs.compiled > 0
    assert found.compiled_runs == 1
    assert found.candidates[0].exact
    assert [one.seconds for one in found.candidates] == sorted(one.seconds for one in found.candidates)


@pytest.mark.parametrize(("name", "rows"), [(UPDATE, 3), (DECODE, 24)])
def test_costs_of_a_deeper_decoder_follow_from_two_shallow_ones(name, rows, costs):
    phase, extrapolated = PhaseBuilder(costs.run, jax.devices()[:1]).phase(name, rows), costs.cost(name, rows)
    measured = measure(phase, 1)
    assert extrapolated.flops == pytest.approx(measured.flops, rel=0.02)
    assert extrapolated.accessed == pytest.approx(measured.accessed, rel=0.1)
    if name == DECODE:
        assert extrapolated.arguments == pytest.approx(measured.arguments, rel=0.02)


def test_operations_are_those_of_the_matrices(costs):
    """Two for each number of a matrix and token, and those of attention; elementwise operations come on top."""
    run = costs.run
    length, vocab = run.batch.tokens.shape[1], run.model.decoder.vocab_size
    at_least = 2 * MATRICES * LAYERS
    of_cache = 4 * EMBED * LAYERS * cache_length(run.batched_env, run.engine)
    assert 1.0 < costs.cost(DECODE, 16).flops / (16 * (at_least + of_cache + 2 * EMBED * vocab)) < 1.5
    assert 1.0 < costs.cost(SCORE, 2).flops / (2 * length * at_least) < 2.0
    assert 2.5 < costs.cost(UPDATE, 2).flops / costs.cost(SCORE, 2).flops < 4.5


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed")
def test_a_sweep_for_described_tpus():
    config = CONFIG.replace(model=CONFIG.model.replace(precision="mixed", remat="full"))
    devices, memory = described_devices("v5e:2x2")
    sweeper = Sweeper(config, devices, "qwen2.5-0.5b")
    peaks = PEAKS[chip_name(devices[0])]
    found = sweeper.rank(memory, peaks, compiled=0)
    assert any(one.fits for one in found.candidates)
    decoder = sweeper.run.model.decoder
    layer = 2 * (2 * decoder.embed_dim * (decoder.embed_dim + decoder.num_kv_heads * decoder.head_dim))
    layer += 2 * 3 * decoder.embed_dim * decoder.mlp_width
    matrices = layer * decoder.num_layers + 2 * decoder.embed_dim * decoder.vocab_size
    for one in found.candidates:
        assert all(phase.compute > 0 and phase.memory > 0 for phase in one.phases if phase.name != "reshard")
        # Few rows: a step reads all matrices, whose parts the devices of a replica share, and little else.
        decode_step = next(x for x in one.phases if x.name == DECODE)
        assert decode_step.limit == "memory"
        read = decode_step.memory / decode_step.calls * peaks.bandwidth * one.mesh["tensor"]
        assert 1.0 < read / matrices < 1.3
    (exact,) = (one for one in sweeper.rank(memory, peaks, compiled=1).candidates if one.exact)
    (estimate,) = (one for one in found.candidates if one.settings == exact.settings)
    assert 0.7 < estimate.rollout_peak / exact.rollout_peak < 1.5
    assert 0.7 < estimate.update_peak / exact.update_peak < 1.5
