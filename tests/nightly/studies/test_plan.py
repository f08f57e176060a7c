"""Programs of a published model, compiled for an abstract TPU."""

import importlib.util

import jax
import pytest

from agentrl_jax.config import decode
from agentrl_jax.models import decoder
from agentrl_jax.models.published import PUBLISHED
from agentrl_jax.parallel import hlo
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.topology import GIB, described_devices
from agentrl_jax.rollout.prefill import empty_cache
from agentrl_jax.studies.abstract_run import AbstractRun
from agentrl_jax.studies.plan import TOKEN_LOOP, make_plan


def number_of_parameters(name):
    shapes = jax.eval_shape(lambda key: decoder.init_params(key, PUBLISHED[name]), jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed")
def test_qwen_on_described_tpus():
    """The programs of Qwen2.5-0.5B, compiled for 16 chips of v5e."""
    config = decode(
        {
            "tasks": [{"env": "SimpleSokoban", "groups": 64}],
            "prompt": {"style": "ragen", "think": True, "max_turns": 5, "max_response_tokens": 64},
            "rollout": {"group_size": 16},
            "model": {"precision": "mixed", "remat": "full", "critic": "shared"},
            "mesh": {"fsdp": 2, "tensor": 2},
            "algo": {"minibatches": 4},
        }
    )
    devices, memory = described_devices("v5e:4x4")
    plan = make_plan(config, devices, "qwen2.5-0.5b")
    assert plan.parameters == number_of_parameters("qwen2.5-0.5b")
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
