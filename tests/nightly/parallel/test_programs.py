"""The programs of a run on many meshes, and of other models and settings, give the same results as on one device."""

import chex
import jax
import jax.numpy as jnp
import made_up
import numpy as np
import pytest
from jax.sharding import PartitionSpec as Spec
from made_up import BASE, EPISODES, KEY, ONES, TRAJECTORY
from mesh_programs import (
    NO_GATHER,
    SHAPE,
    assert_same_update,
    check_imitation,
    check_recorded,
    check_rollout,
    check_update,
    drawn_state,
    step_on,
)

from agentrl_jax.config.algo import FixedKl
from agentrl_jax.learner import state as states
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.setup.programs import Programs

WHOLE = ((8, 2, 2), (2, 2, 1), (2, 1, 2), (4, 4, 1), (8, 1, 2), (8, 2, 4))
SHARED = (("adapters", 8, 2, 2), ("adapters", 4, 4, 1), ("frozen", 8, 2, 2), ("frozen", 4, 1, 2))


@pytest.mark.parametrize(("name", "devices", "fsdp", "tensor"), [*(("whole", *mesh) for mesh in WHOLE), *SHARED])
def test_an_update_is_that_of_one_device(name, devices, fsdp, tensor):
    changes = {"group_size": 2} if devices // tensor > made_up.GROUPS else {}
    check_update(name, devices, fsdp, tensor, **changes)


@pytest.mark.parametrize(
    ("name", "devices", "fsdp", "sequence", "tensor"),
    [("whole", 8, 2, 2, 2), ("whole", 4, 1, 4, 1), ("adapters", 8, 2, 4, 1), ("frozen", 4, 1, 2, 2)],
)
def test_devices_share_the_positions_of_rows(name, devices, fsdp, sequence, tensor):
    check_update(name, devices, fsdp, tensor, sequence, grad_accum_steps=2, length_buckets=2)


def test_recorded_tokens_are_those_of_the_batch():
    check_recorded(4, 2, 2)


@pytest.mark.parametrize("mesh", [(1, 1, 1), (4, 2, 2)], ids=str)
def test_optimizer_state_on_the_host_changes_nothing(mesh):
    """With more than one step a batch, so that the loop carries it."""
    tx = states.optimizer(0.9, 0.999, 0.01)
    after = []
    for offload in (False, True):
        programs = Programs(make_mesh(mesh[0], fsdp=mesh[1], tensor=mesh[2]), offload=offload)
        program = programs.update(NO_GATHER, BASE.replace(minibatches=2), tx)
        state = drawn_state(NO_GATHER, tx)
        state = jax.device_put(jax.tree.map(jnp.copy, state), programs.placement(state, SHAPE))
        after.append(program(state, TRAJECTORY, ONES, KEY, made_up.settings())[0])
    device, host = after
    chex.assert_trees_all_equal(device, jax.device_put(host, jax.tree.map(lambda x: x.sharding, device)))
    kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(host.opt_state)}
    assert kinds == {"pinned_host"}
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(host.params)} == {"device"}


def test_the_whole_divergence_is_that_of_one_device():
    """Two policies that are both sharded, and all-gathered one after the other."""
    changes = {"kl": FixedKl(estimator="full")}
    one, spread = (step_on(*mesh, NO_GATHER, **changes) for mesh in ((1, 1, 1), (8, 2, 2)))
    assert_same_update(one, spread)
    assert float(one[1]["actor/kl"]) > 1e-4


def test_devices_cut_their_parts_alike():
    """Each device has rows of other lengths, and needs the parameter shards of the other devices."""
    one, spread = (step_on(*mesh, NO_GATHER, grad_accum_steps=2, length_buckets=3) for mesh in ((1, 1, 1), (4, 4, 1)))
    assert_same_update(one, spread)


@pytest.mark.parametrize(("devices", "fsdp", "tensor"), [(8, 2, 2), (4, 4, 1)])
def test_a_device_with_nothing_to_learn_from_takes_part(devices, fsdp, tensor):
    """All episodes but one have no responses; that one needs the parameter shards of the other devices."""
    lengths = jnp.where(jnp.arange(EPISODES)[:, None] == 0, TRAJECTORY.response.length, 0)
    trajectory = TRAJECTORY.replace(response=TRAJECTORY.response.replace(length=lengths))
    one, spread = (step_on(*mesh, NO_GATHER, trajectory=trajectory) for mesh in ((1, 1, 1), (devices, fsdp, tensor)))
    assert 0 < one[1]["update/trained_tokens"] <= made_up.SAID * made_up.TURNS
    assert_same_update(one, spread)


def test_minibatches_parts_and_adam_on_a_mesh():
    options = {"minibatches": 2, "grad_accum_steps": 1, "epochs": 2}
    tx = states.optimizer(0.9, 0.99, 0.01)
    _, known, one = step_on(1, 1, 1, NO_GATHER, tx, **options)
    _, metrics, after = step_on(4, 2, 2, NO_GATHER, tx, **options)
    up, known_up = (np.asarray(state.params["policy"]["layers"]["up"]) for state in (after, one))
    np.testing.assert_allclose(up, known_up, atol=1e-3)
    np.testing.assert_allclose(metrics["grad_norm"], known["grad_norm"], rtol=1e-4)
    moments = after.opt_state["policy"][0].mu["layers"]["up"]
    assert moments.sharding.spec == Spec(None, "fsdp", "tensor")


@pytest.mark.parametrize(("devices", "fsdp", "tensor"), [(8, 2, 2), (2, 2, 1)])
def test_imitation_is_that_of_one_device(devices, fsdp, tensor):
    check_imitation(devices, fsdp, tensor, batch=8)


@pytest.mark.parametrize(
    ("devices", "fsdp", "tensor", "rollout", "replicas"),
    [
        (2, 1, 2, "rows", 1),
        (8, 2, 2, "rows", 4),
        (8, 2, 2, "wide", 2),
        (4, 2, 2, "wide", 1),
    ],
)
def test_a_rollout_is_that_of_one_device(devices, fsdp, tensor, rollout, replicas):
    check_rollout(devices, fsdp, tensor, rollout, replicas)
