import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from sweeps import CONFIG

from agentrl_jax.config import decode
from agentrl_jax.models import decoder
from agentrl_jax.models.published import PUBLISHED
from agentrl_jax.parallel import hlo
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.topology import GIB, described_devices
from agentrl_jax.rollout.prefill import empty_cache
from agentrl_jax.setup import build_inputs
from agentrl_jax.studies.abstract_run import AbstractRun
from agentrl_jax.studies.phases import DECODE, PhaseBuilder
from agentrl_jax.studies.plan import TOKEN_LOOP, make_plan
from agentrl_jax.studies.plan_report import as_json, as_table
from agentrl_jax.studies.sweep import Sweeper


def test_a_plan_on_the_devices_that_are_here():
    run = """
    tasks: [{env: Bandit, groups: 4}]
    prompt: {max_turns: 1, max_response_tokens: 8}
    rollout: {group_size: 2}
    model: {layers: 2, embed_dim: 16, heads: 4, kv_heads: 2, mlp_width: 32}
    mesh: {fsdp: 2, tensor: 2}
    """
    plan = make_plan(decode(yaml.safe_load(run)), described_devices("local")[0][:4])
    assert plan.mesh == {"data": 1, "fsdp": 2, "sequence": 1, "tensor": 2}
    assert plan.rows == 4
    # Two f32 moments per parameter; norms and heads are small.
    assert plan.optimizer == pytest.approx(2 * plan.update_parameters, rel=0.01)
    assert plan.update_parameters < plan.rollout_parameters
    # 2 layers, keys and values of one of two heads of four numbers of four bytes. The prefix is shared; each of 4 rows
    # has a response and one position more, each of 2 groups a first observation, and its length.
    positions, rest = divmod(plan.cache - 2 * 4, 2 * 2 * 4 * 4)
    assert rest == 0
    read, rest = divmod(positions - 4 * (8 + 1), 2)
    assert rest == 0
    assert 0.5 * plan.context < read + 8 < plan.context
    assert plan.peaks["rollout"] > plan.update_parameters + plan.optimizer + plan.cache
    # Held-out episodes are more than those of a rollout, and are played without groups that share an observation.
    assert list(plan.programs) == ["rollout", "update", "evaluation"]
    assert plan.programs["evaluation"].temporaries > 2 * plan.programs["rollout"].temporaries
    assert plan.playing_peak == plan.peaks["evaluation"]
    between = (plan.peaks["rollout"] + plan.peaks["evaluation"]) // 2
    assert "DOES NOT FIT" in str(as_table(plan, between).renderables[0].caption)
    data = json.loads(json.dumps(as_json(plan, None), allow_nan=False))
    assert data["update"]["operations"]
    assert data["evaluation_peak"] == plan.peaks["evaluation"]
    operations = plan.programs["rollout"].operations
    gathered = [one for one in operations if one.kind == "all-gather" and one.depth == TOKEN_LOOP]
    assert max((one.size for one in gathered), default=0) < plan.rollout_parameters / 4


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed")
def test_qwen_on_described_tpus():
    run = """
    tasks: [{env: SimpleSokoban, groups: 64}]
    prompt: {style: ragen, think: true, max_turns: 5, max_response_tokens: 64}
    rollout: {group_size: 16}
    model: {precision: mixed, remat: full, critic: shared}
    mesh: {fsdp: 2, tensor: 2}
    algo: {minibatches: 4}
    """
    config, (devices, memory) = decode(yaml.safe_load(run)), described_devices("v5e:4x4")
    plan = make_plan(config, devices, "qwen2.5-0.5b")
    params = jax.eval_shape(lambda key: decoder.init_params(key, PUBLISHED["qwen2.5-0.5b"]), jax.random.key(0))
    assert plan.parameters == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert memory == 16 * GIB
    # The state, both layouts of the parameters, cache and temporaries.
    assert max(plan.peaks.values()) < memory
    in_token_loop = [one for one in plan.programs["rollout"].operations if one.depth >= TOKEN_LOOP]
    gathered = sum(one.size for one in in_token_loop if one.kind == "all-gather")
    assert gathered < 0.01 * plan.rollout_parameters
    # Keys or values of openings, with prefixes, and of blocks, in their dtype and in f32: one head of 64 numbers of
    # bfloat16 on each device. The compiler keeps responses of some layers in on-chip memory and must write them back.
    run = AbstractRun(config.replace(devices=16), make_mesh(devices, fsdp=2, tensor=2), "qwen2.5-0.5b")
    cache = jax.eval_shape(
        lambda: empty_cache(run.model.decoder, run.batched_env, run.programs.suited(run.engine), plan.rows)
    )
    prefix = run.batched_env.prefix.shape[1]
    kept = {x.size * 2 // x.shape[1] for x in jax.tree.leaves(cache.blocks)}
    kept |= {x.shape[0] * (prefix + x.shape[2]) * x.shape[3] * 2 for x in jax.tree.leaves(cache.opening.layers)}
    assert len(kept) > 1
    assert not (kept | {2 * size for size in kept}) & {one.size for one in in_token_loop if one.kind == "copy"}
    assert not [one for one in plan.programs["rollout"].operations if one.kind in hlo.HOST]


def test_phases_run():
    """With arrays instead of shapes, a decode step continues an episode."""
    run = Sweeper(CONFIG, jax.devices()[:2]).costs.run
    builder = PhaseBuilder(run, jax.devices()[:1])
    phase = builder.phase(DECODE, 4)
    engine_of, shapes = builder.engine(4)
    params, prepared = (jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), x) for x in (shapes[0], phase.arguments[0]))
    key, ids = jax.random.key(0), build_inputs.evaluation_ids(np.arange(4), task=0)
    settings = build_inputs.rollout_settings(CONFIG, run.batched_env, 4, 1.0)

    @jax.jit
    def start(params):
        engine = engine_of(params, key, ids, settings)
        return engine.prefixes, engine.start()

    prefixes, state = start(params)
    after = jax.jit(phase.program)(prepared, prefixes, key, ids, settings, state)
    np.testing.assert_array_equal(after.position, state.position + 1)
    assert int(after.decode_steps) == 1
