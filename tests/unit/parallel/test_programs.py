"""The programs of a run on meshes `data` x `fsdp` x `sequence` x `tensor` give the same results as on one device."""

import contextlib
import dataclasses
import functools
import random
import re

import changed_settings
import chex
import jax
import jax.numpy as jnp
import made_up
import mesh_programs
import numpy as np
import optax
import pytest
from changed_settings import Setting, every_setting, put, read
from jax.sharding import PartitionSpec as Spec
from made_up import BASE, EPISODES, KEY, ONES, PLAIN, TRAJECTORY
from mesh_programs import NO_GATHER, SHAPE, assert_same_update, check_recorded, drawn_state, programs_on, step_on
from scripted_run import first_inputs

from agentrl_jax.algos.optimizers import optimizer
from agentrl_jax.config.algo import FixedKl
from agentrl_jax.config.mismatch import Replay
from agentrl_jax.config.optim import Adafactor, AdamW, Muon
from agentrl_jax.errors import BadValue, UserError, refusals
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.mesh import MESH_AXES, make_mesh
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.setup import build_model, start
from agentrl_jax.setup.parts import RunParts
from agentrl_jax.setup.programs import Programs
from agentrl_jax.train.horizon import Horizon
from agentrl_jax.train.iteration import IterationPrograms, iterate

ONE_DECODER = ActorCritic(decoder=SHAPE, critic="shared")


def test_no_device_holds_the_rows_of_all_devices_and_recorded_tokens_are_those_of_the_batch():
    text, length = check_recorded(4, 2, 1, ONE_DECODER), pack_trajectories(TRAJECTORY, FULL).tokens.shape[1]
    assert f"[{EPISODES // 4},{length}]" in text
    assert f"[{EPISODES},{length}]" not in text


def test_devices_that_do_not_fit_and_a_replay_of_sharded_matrices_are_refused():
    for key, value, mesh in (("fsdp", 3, {"devices": 8, "fsdp": 3}), ("devices", 99, {"devices": 99})):
        with pytest.raises(BadValue) as refused:
            make_mesh(**mesh)
        assert (refused.value.key, refused.value.value) == (key, value)
    assert dict(make_mesh(8, fsdp=2, tensor=2).shape) == dict(zip(MESH_AXES, (2, 2, 1, 2)))
    programs = Programs(make_mesh(2, tensor=2))
    with pytest.raises(BadValue) as refused:
        programs.update(NO_GATHER, BASE.replace(mismatch=Replay()), optax.sgd(1.0))
    assert (refused.value.key, refused.value.value) == ("mismatch", "replay")


WHOLE = ((8, 2, 2), (2, 2, 1), (2, 1, 2), (4, 4, 1), (8, 1, 2), (8, 2, 4))
SHARED = (("adapters", 8, 2, 2), ("adapters", 4, 4, 1), ("frozen", 8, 2, 2), ("frozen", 4, 1, 2), ("odd", 4, 2, 2))


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "devices", "fsdp", "tensor"), [*(("whole", *mesh) for mesh in WHOLE), *SHARED])
def test_an_update_is_that_of_one_device(name, devices, fsdp, tensor):
    changes = {"group_size": 2} if devices // tensor > made_up.GROUPS else {}
    mesh_programs.check_update(name, devices, fsdp, tensor, **changes)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "mesh", [("whole", 8, 2, 2, 2), ("whole", 4, 1, 1, 4), ("adapters", 8, 2, 1, 4), ("frozen", 4, 1, 2, 2)], ids=str
)
def test_devices_share_the_positions_of_rows(mesh):
    mesh_programs.check_update(*mesh, grad_accum_steps=2, length_buckets=2)


@pytest.mark.nightly
def test_recorded_tokens_and_imitation_are_those_of_one_device():
    mesh_programs.check_recorded(4, 2, 2)
    mesh_programs.check_imitation(8, 2, 2, batch=8)
    # With bins, whose number in a step no number of devices has to divide.
    mesh_programs.check_imitation(2, 2, 1, batch=5)


@pytest.mark.nightly
@pytest.mark.parametrize("mesh", [(1, 1, 1), (4, 2, 2)], ids=str)
def test_optimizer_state_on_the_host_changes_nothing(mesh):
    """With more than one step a batch, so that the loop carries it."""
    tx = optimizer(AdamW(b2=0.999, weight_decay=0.01))
    after = []
    for offload in (False, True):
        programs = Programs(make_mesh(mesh[0], fsdp=mesh[1], tensor=mesh[2]), offload=offload)
        program = programs.update(NO_GATHER, BASE.replace(minibatches=2), tx)
        state = drawn_state(NO_GATHER, tx)
        state = jax.device_put(jax.tree.map(jnp.copy, state), programs.placement(state, SHAPE))
        after.append(program(state, TRAJECTORY, ONES, KEY, made_up.settings())[0])
    device, host = after
    chex.assert_trees_all_equal(device, jax.device_put(host, jax.tree.map(lambda x: x.sharding, device)))
    for tree, kind in ((host.opt_state, "pinned_host"), (host.params, "device")):
        assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree)} == {kind}


@pytest.mark.nightly
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("tensor", [1, 2])
def test_no_device_has_the_whole_embedding_or_output_matrix(tensor, tied):
    shape = dataclasses.replace(SHAPE, vocab_size=4096, tied_embeddings=tied)
    model = ActorCritic(decoder=shape, critic="none")
    programs, program = programs_on(4, 4 // tensor, tensor, model, PLAIN, 1, **made_up.GRPO)
    state = drawn_state(model)
    state = jax.device_put(state, programs.placement(state, shape))
    text = program.lower(state, TRAJECTORY, ONES, KEY, made_up.settings()).compile().as_text()
    shapes = {*re.findall(r"f32\[([\d,]+)\]", text)}
    assert any("4096" not in x and np.prod([*map(int, x.split(","))]) == 4096 * 16 // 4 for x in shapes)
    assert not shapes & {"4096,16", "16,4096"}


@pytest.mark.nightly
def test_the_whole_divergence_is_that_of_one_device():
    """Two policies that are both sharded, and all-gathered one after the other."""
    changes = {"kl": FixedKl(estimator="full")}
    one, spread = (step_on(*mesh, NO_GATHER, **changes) for mesh in ((1, 1, 1), (8, 2, 2)))
    assert_same_update(one, spread)
    assert float(one[1]["actor/kl"]) > 1e-4


@pytest.mark.nightly
def test_a_device_with_nothing_to_learn_from_takes_part():
    """All episodes but one have no responses; that one needs the parameter shards of the other devices."""
    lengths = jnp.where(jnp.arange(EPISODES)[:, None] == 0, TRAJECTORY.response.length, 0)
    trajectory = TRAJECTORY.replace(response=TRAJECTORY.response.replace(length=lengths))
    one, spread = (step_on(*mesh, NO_GATHER, trajectory=trajectory) for mesh in ((1, 1, 1), (4, 4, 1)))
    assert 0 < one[1]["update/trained_tokens"] <= made_up.SAID * made_up.TURNS
    assert_same_update(one, spread)


@pytest.mark.nightly
def test_minibatches_parts_and_adam_on_a_mesh():
    options = {"minibatches": 2, "grad_accum_steps": 1, "epochs": 2}
    tx = optimizer(AdamW(b2=0.99, weight_decay=0.01))
    _, known, one = step_on(1, 1, 1, NO_GATHER, tx, **options)
    _, metrics, after = step_on(4, 2, 2, NO_GATHER, tx, **options)
    up, known_up = (np.asarray(state.params["policy"]["layers"]["up"]) for state in (after, one))
    np.testing.assert_allclose(up, known_up, atol=1e-3)
    np.testing.assert_allclose(metrics["grad_norm"], known["grad_norm"], rtol=1e-4)
    moments = after.opt_state["policy"][0].mu["layers"]["up"]
    assert moments.sharding.spec == Spec(None, "fsdp", "tensor")


@pytest.mark.nightly
@pytest.mark.parametrize(("section", "tensor"), [(Muon(), 2), (Muon(), 1), (Adafactor(min_dim=4), 1)], ids=str)
def test_optimizers_that_see_whole_matrices_on_a_mesh(section, tensor):
    tx, options = optimizer(section.of_program()), {"minibatches": 2, "grad_accum_steps": 1}
    (one, known, _), (spread, metrics, _) = (
        step_on(*mesh, NO_GATHER, tx, **options) for mesh in ((1, 1, 1), (2, 1, tensor))
    )
    for name in ("up", "query", "output"):
        wanted = one["policy"]["layers"][name]
        np.testing.assert_allclose(spread["policy"]["layers"][name], wanted, atol=1e-3 * np.abs(wanted).max() + 1e-6)
    np.testing.assert_allclose(metrics["grad_norm"], known["grad_norm"], rtol=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "mesh", [(2, 1, 2, "rows", 1), (8, 2, 2, "rows", 4), (8, 2, 2, "wide", 2), (4, 2, 2, "wide", 1)], ids=str
)
def test_a_rollout_is_that_of_one_device(mesh):
    mesh_programs.check_rollout(*mesh)


MESHES = ({"devices": 4, "mesh.fsdp": 2}, {"devices": 2, "mesh.sequence": 2}, {"devices": 2, "mesh.tensor": 2})
GROUPS = {"tasks": [{**task, "groups": 4} for task in changed_settings.BASE["tasks"]], "train.trajectories_every": 0}
CORRECTIONS = [Setting("algo.mismatch.kind", kind) for kind in ("replay", "tis")]
SAMPLE = 6
"""Settings of a case, beside corrections of log-probabilities."""


def trace(config):
    """Traces rollout and update of the first iteration; returns the shapes of the state before and after it."""
    parts = RunParts(config, lambda: pytest.fail("no server is started"))
    programs = parts.programs
    horizon = Horizon(config.algo.horizon, config.prompt.max_turns)
    placement = functools.partial(programs.placement, shape=parts.model.decoder)
    state = jax.eval_shape(build_model.initial_state(config, parts.model, None, placement), jax.random.key(0))
    begin = functools.partial(start.begin_learning, tx=parts.tx, kept=build_model.kept_by(config))
    state, raw = jax.eval_shape(begin, state), programs.compiled
    chosen = IterationPrograms(raw["rollout"], raw["update"], raw.get("baseline"), config.rollout.group_size)
    inputs = first_inputs(parts, horizon, 0)
    return state, jax.eval_shape(lambda state: iterate(state, inputs, chosen)[0], state)


def shapes(state):
    return jax.tree.map(lambda x: (x.shape, x.dtype), state)


@pytest.mark.nightly
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_an_iteration_can_be_traced_or_is_refused(mesh, packing):
    words, traced = {"algo.packing": packing, "algo.grad_accum_steps": 2, **GROUPS, **mesh}, 0
    for setting in [*CORRECTIONS, *random.Random(str(mesh)).sample(every_setting(), SAMPLE)]:
        changes = words | setting.needs | {setting.name: setting.value}
        with contextlib.suppress(UserError), refusals():
            before, after = trace(read(put(changed_settings.BASE, changes)))
            assert shapes(after) == shapes(before), setting
            traced += 1
        jax.clear_caches()
    assert traced > SAMPLE / 2
