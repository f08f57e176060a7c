"""Optimizers: one and two steps by hand, and which parameters get what."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentrl_jax.algos.optimizers import ADAMW, MUON, muon_labels, optimizer
from agentrl_jax.config.optim import Adafactor, AdamW, Lion, Muon, ParameterGroup, Sgd
from agentrl_jax.errors import BadValue

SHAPES = {"embedding": (5, 4), "layers": {"query": (2, 4, 6), "attention_norm": (2, 4)}, "final_norm": (4,)}


def drawn(seed):
    draw = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.float32(draw.normal(size=shape)), SHAPES, is_leaf=lambda x: isinstance(x, tuple)
    )


PARAMS, FIRST, SECOND = drawn(0), drawn(1), drawn(2)


def steps(section, *grads):
    """The updates of each gradient in turn."""
    tx = optimizer(section.of_program())
    state, found = tx.init(PARAMS), []
    for each in grads:
        updates, state = tx.update(each, state, PARAMS)
        found.append(updates)
    return found


def assert_close(a, b, rtol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6), a, b)


def test_adamw_without_groups_is_that_of_optax_with_its_state():
    tx = optax.adamw(1.0, b1=0.8, b2=0.9, weight_decay=0.1)
    ours = optimizer(AdamW(b1=0.8, b2=0.9, weight_decay=0.1, decay="all").of_program())
    assert jax.tree.structure(ours.init(PARAMS)) == jax.tree.structure(tx.init(PARAMS))
    theirs, mine = tx.update(FIRST, tx.init(PARAMS), PARAMS), ours.update(FIRST, ours.init(PARAMS), PARAMS)
    assert jax.tree.all(jax.tree.map(np.array_equal, mine, theirs))


def test_a_step_of_lion_is_a_sign_and_keeps_the_slower_momentum():
    one, two = steps(Lion(b1=0.9, b2=0.5, weight_decay=0.0), FIRST, SECOND)
    assert_close(one, jax.tree.map(lambda g: -jnp.sign(g), FIRST))
    momentum = jax.tree.map(lambda g: 0.5 * g, FIRST)  # that of b2
    assert_close(two, jax.tree.map(lambda m, g: -jnp.sign(0.9 * m + 0.1 * g), momentum, SECOND))


def test_gradient_descent_adds_momentum_and_decay():
    one, two = steps(Sgd(momentum=0.5, weight_decay=0.1, decay="all"), FIRST, SECOND)
    assert_close(one, jax.tree.map(lambda g, p: -g - 0.1 * p, FIRST, PARAMS))
    assert_close(two, jax.tree.map(lambda a, b, p: -(0.5 * a + b) - 0.1 * p, FIRST, SECOND, PARAMS))
    assert not jax.tree.leaves(optimizer(Sgd(momentum=0.0).of_program()).init(PARAMS))


def test_muon_gets_the_matrices_of_layers_and_adamw_all_else():
    labels = muon_labels(PARAMS)
    assert labels["layers"] == {"query": MUON, "attention_norm": ADAMW}
    assert {labels["embedding"], labels["final_norm"]} == {ADAMW}
    adapters = {"layers": {"query": {"a": jnp.zeros((2, 4, 3)), "b": jnp.zeros((2, 3, 6))}}}
    assert set(jax.tree.leaves(muon_labels(adapters))) == {MUON}
    (found,), (adam,) = (steps(kind(weight_decay=0.0), FIRST) for kind in (Muon, AdamW))
    assert_close(found["embedding"], adam["embedding"])
    assert_close(found["layers"]["attention_norm"], adam["layers"]["attention_norm"])


def test_muon_orthogonalizes_each_layer_alone():
    (found,) = steps(Muon(weight_decay=0.0, ns_steps=9), FIRST)
    for layer in range(2):
        step = np.asarray(found["layers"]["query"][layer], np.float64)
        u, _, v = np.linalg.svd(np.asarray(FIRST["layers"]["query"][layer], np.float64), full_matrices=False)
        size = 0.2 * 6**0.5  # of the larger side
        np.testing.assert_allclose(np.linalg.svd(step)[1] / size, 1.0, atol=0.35)  # as far as Newton-Schulz brings it
        assert np.sum(-step * (u @ v)) / (np.linalg.norm(step) * np.linalg.norm(u @ v)) > 0.98
    other = FIRST | {"layers": FIRST["layers"] | {"query": FIRST["layers"]["query"].at[1].mul(7.0)}}
    (again,) = steps(Muon(weight_decay=0.0, ns_steps=9), other)
    assert np.array_equal(again["layers"]["query"][0], found["layers"]["query"][0])


@pytest.mark.parametrize("min_dim", [1, 128])
def test_adafactor_sees_each_layer_alone(min_dim):
    section = Adafactor(weight_decay=0.0, min_dim=min_dim, clip_rms=0.5)
    found = steps(section, FIRST, SECOND)
    for layer in range(2):
        direction = optax.chain(
            optax.scale_by_factored_rms(decay_rate=0.8, min_dim_size_to_factor=min_dim), optax.clip_by_block_rms(0.5)
        )
        param = PARAMS["layers"]["query"][layer]
        state = direction.init(param)
        for number, grads in enumerate((FIRST, SECOND)):
            step, state = direction.update(grads["layers"]["query"][layer], state, param)
            assert_close(found[number]["layers"]["query"][layer], -step)


def test_the_first_group_that_matches_gives_rate_decay_and_freezing():
    groups = (
        ParameterGroup(match="final_norm", lr_factor=0.0),
        ParameterGroup(match="layers/*", lr_factor=0.5, weight_decay=0.3),
        ParameterGroup(match="*", weight_decay=0.2),
    )
    section = Sgd(momentum=0.0, weight_decay=0.1, groups=groups)
    (found,) = steps(section, FIRST)
    assert not np.any(found["final_norm"])
    assert_close(found["layers"], jax.tree.map(lambda g, p: -0.5 * (g + 0.3 * p), FIRST["layers"], PARAMS["layers"]))
    assert_close(found["embedding"], -FIRST["embedding"] - 0.2 * PARAMS["embedding"])
    trained = optimizer(section.of_program()).trained(FIRST)
    assert not np.any(trained["final_norm"])
    assert np.array_equal(trained["embedding"], FIRST["embedding"])


def test_a_group_that_matches_nothing_is_refused():
    section = AdamW(groups=(ParameterGroup(match="layers/key", lr_factor=2.0),))
    critic = {"layers": {"key": jnp.zeros((2, 4, 4))}, "head": jnp.zeros(4)}
    optimizer(section.of_program()).check([PARAMS, critic])
    with pytest.raises(BadValue) as error:
        optimizer(section.of_program()).check([PARAMS])
    assert (error.value.key, error.value.value) == ("optim.groups.0.match", "layers/key")
