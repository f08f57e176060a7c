"""Rows that are packed into bins: nothing is lost, and an update equals that of the rows."""

import jax
import jax.numpy as jnp
import made_up
import numpy as np
import pytest
from made_up import BASE, GRPO, TRAJECTORY

from agentrl_jax.config.algo import FixedKl
from agentrl_jax.learner import bins
from agentrl_jax.learner.update import update
from agentrl_jax.models import actor_critic
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.setup.programs import Programs


@pytest.mark.parametrize("lengths", [[3, 9, 0, 4, 4, 10, 1], [0, 0], [10] * 4, [1] * 12, [5, 6, 5, 4, 5, 5]], ids=str)
def test_every_token_is_in_one_bin_beside_those_of_its_row(lengths):
    """First-fit decreasing, computed plainly; the fullest bins come first, and empty rows are nowhere."""
    count, size = len(lengths), 10
    draw = np.random.default_rng(0)
    tokens = draw.integers(1, 99, (count, size))
    found = bins.assign(jnp.array(lengths), size)
    rooms = []
    for length in sorted(lengths, reverse=True):
        fits = [index for index, room in enumerate(rooms) if room >= length]
        if length and not fits:
            rooms.append(size)
            fits = [len(rooms) - 1]
        if length:
            rooms[fits[0]] -= length
    used = {int(index) for index, length in zip(found.bin, lengths) if length}
    assert used == set(range(len(rooms)))
    position = jnp.maximum(jnp.array(lengths)[:, None] - 1, 1)
    mask = (jnp.array(lengths) > 1)[:, None]
    filled = bins.fill(found, jnp.array(tokens), position, mask, jnp.arange(1.0, count + 1))
    totals = np.sum(np.asarray(filled.segment) > 0, axis=1)
    assert sorted(totals, reverse=True) == totals.tolist()
    assert sorted(size - np.array(rooms)) == sorted(totals[: len(rooms)])
    for row, length in enumerate(lengths):
        where = np.asarray(filled.segment) == row + 1
        assert where.sum() == length
        np.testing.assert_array_equal(np.asarray(filled.tokens)[where], tokens[row, :length])
        assert set(np.asarray(filled.temperature)[where].tolist()) <= {row + 1.0}
        if length > 1:
            assert np.flatnonzero(np.asarray(filled.mask)[where]).tolist() == [length - 1]
            back = bins.unpack(found, filled, jnp.where(where, 7.0, 0.0), position)
            assert back[row, 0] == 7.0
            assert bins.are_in(found, filled)[row]


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


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (made_up.MODEL, {"kl": FixedKl(estimator="full")}),
        (SEPARATE, {"kl": FixedKl(estimator="k3"), "aggregation": "seq_mean_token_mean"}),
        pytest.param(made_up.MODEL, {"context": "single_turn"}, marks=pytest.mark.slow),
        pytest.param(ActorCritic(decoder=made_up.SHAPE, critic="none"), GRPO, marks=pytest.mark.slow),
    ],
    ids=["whole divergence", "separate critic", "single turns", "no critic"],
)
def test_an_update_with_bins_is_that_with_rows(model, changes):
    same(learn(model, **PARTS, **changes), learn(model, **PARTS, **changes, packing=True))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(2, 1), (4, 4)], ids=str)
def test_devices_share_the_bins(mesh):
    changes = {"minibatches": 1, "grad_accum_steps": 2, "packing": True}
    same(learn(SEPARATE, **changes), learn(SEPARATE, mesh, **changes))


def test_fewer_microbatches_are_computed(monkeypatch):
    """Short rows share bins."""
    computed, score_tokens = [], actor_critic.score_tokens

    def counted(*arguments, **options):
        jax.debug.callback(lambda: computed.append(1))
        return score_tokens(*arguments, **options)

    monkeypatch.setattr(actor_critic, "score_tokens", counted)
    short = made_up.TRAJECTORY.replace(num_turns=jnp.ones_like(TRAJECTORY.num_turns))
    counts = []
    for packing in (False, True):
        computed.clear()
        learn(trajectory=short, minibatches=1, grad_accum_steps=8, packing=packing, advantage=GRPO["advantage"])
        jax.effects_barrier()
        counts.append(len(computed))
    assert counts[0] == 8
    assert counts[1] <= 4
