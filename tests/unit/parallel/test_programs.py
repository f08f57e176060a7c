"""The programs of a run on meshes `data` x `fsdp` x `sequence` x `tensor` give the same results as on one device."""

import optax
import pytest
from made_up import BASE, EPISODES, TRAJECTORY
from mesh_programs import NO_GATHER, SHAPE, check_recorded

from agentrl_jax.config.mismatch import Replay
from agentrl_jax.errors import BadValue
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.mesh import MESH_AXES, make_mesh
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.setup.programs import Programs

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
