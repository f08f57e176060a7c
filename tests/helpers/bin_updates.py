"""Updates with rows and with bins, on one device or several, and what they must have in common."""

import jax
import jax.numpy as jnp
import made_up
import numpy as np
from made_up import BASE, TRAJECTORY

from agentrl_jax.learner.update import update
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.setup.programs import Programs


def learn(model=made_up.MODEL, mesh=None, trajectory=TRAJECTORY, **changes):
    state = made_up.fresh_state(model, reference="kl" in changes)
    temperature = jnp.linspace(0.5, 1.5, len(trajectory.num_turns))
    arguments = (trajectory, temperature, made_up.KEY, made_up.settings(kl_coef=0.5))
    if mesh is None:
        options = {"model": model, "config": BASE.replace(**changes), "tx": made_up.PLAIN, "shards": Shards()}
        return jax.jit(lambda *x: update(*x, **options))(state, *arguments)
    programs = Programs(make_mesh(mesh[0], fsdp=mesh[1]))
    state = jax.device_put(state, programs.placement(state, model.decoder))
    return programs.update(model, BASE.replace(**changes), made_up.PLAIN)(state, *arguments)


def same(one, other):
    made_up.assert_close(*(jax.tree.map(np.asarray, x[0].params) for x in (one, other)))
    for name, value in one[1].items():
        np.testing.assert_allclose(other[1][name], value, rtol=3e-5, atol=3e-6, err_msg=name)


SEPARATE = ActorCritic(decoder=made_up.SHAPE, critic="separate", shared_prefix_len=2)
PARTS = {"minibatches": 2, "grad_accum_steps": 4}
