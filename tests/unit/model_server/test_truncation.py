"""Truncated distributions are those of a NumPy reference, and what is sampled follows them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.model_server.truncation import truncate
from agentrl_jax.rollout.sampling import sample

VOCAB = 50

RULES = [  # temperature, top_k, top_p
    *((1.0, 0, 1.0), (1.0, 4, 1.0), (0.7, 0, 0.6), (2.0, 9, 0.5), (1.0, 1, 1.0), (1.0, 0, 0.0), (1.0, VOCAB, 1.0)),
    *((1.0, 2**31 - 1, 0.999), (0.0, 3, 0.3), (1e-42, 3, 0.3)),  # logits over the last temperature are infinite
]


@pytest.fixture(scope="module")
def logits():
    return np.random.default_rng(0).normal(0.0, 2.0, (len(RULES), VOCAB)).astype(np.float32)


@pytest.fixture(scope="module")
def truncated(logits):
    return np.asarray(jax.jit(truncate)(logits, *_columns(RULES)))


def _columns(rules):
    temperature, top_k, top_p = zip(*rules, strict=True)
    return jnp.array(temperature, jnp.float32), jnp.array(top_k, jnp.int32), jnp.array(top_p, jnp.float32)


def reference(logits, temperature, top_k, top_p):
    """Probabilities in float64, by sorting tokens and adding them one by one."""
    scaled = logits.astype(np.float64) / (temperature or 1.0)
    order = np.argsort(-scaled, kind="stable")[: top_k or None]
    probs = np.exp(scaled[order] - scaled[order[0]])
    probs /= probs.sum()
    number = 1
    while number < len(order) and probs[:number].sum() < top_p:
        number += 1
    found = np.zeros(len(logits))
    found[order[:number]] = probs[:number] / probs[:number].sum()
    return found


def test_the_distribution_is_that_of_the_reference_and_logits_that_are_kept_are_not_changed(logits, truncated):
    kept = truncated > -np.inf
    for row, (temperature, top_k, top_p) in enumerate(RULES[:-1]):
        expected = reference(logits[row], temperature, top_k, top_p)
        assert (kept[row] == (expected > 0)).all(), RULES[row]
        found = jax.nn.softmax(truncated[row] / (temperature or 1.0))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert (truncated[kept] == logits[kept]).all()
    assert kept[-1, np.argmax(logits[-1])]


def test_without_a_rule_nothing_is_sorted(logits):
    """The sort stands in a branch of the program, and what the other one gives is bit for bit the input."""
    rules = [(1.0, 0, 1.0), (0.0, 3, 0.5)] * (len(RULES) // 2)
    assert (np.asarray(jax.jit(truncate)(logits, *_columns(rules))) == logits).all()
    program = jax.make_jaxpr(truncate)(logits, *_columns(RULES))
    assert "sort" not in {equation.primitive.name for equation in program.eqns}
    assert any("sort" in str(branch) for eqn in program.eqns for branch in eqn.params.get("branches", ()))


def test_tokens_as_likely_as_the_last_one_are_kept():
    logits = jnp.array([[1.0, 3.0, 1.0, 1.0, 0.0], [0.0] * 5])
    rules = jnp.ones(2), jnp.array([2, 0]), jnp.array([1.0, 0.5])
    kept = np.asarray(truncate(logits, *rules)) > -np.inf
    assert kept.tolist() == [[True, True, True, True, False], [True] * 5]


def test_what_is_sampled_follows_the_distribution():
    """20,000 samples of one row; a frequency has a standard deviation of at most 0.0036."""
    number, rule = 20_000, (1.5, 12, 0.8)
    logits = np.random.default_rng(1).normal(0.0, 2.0, VOCAB).astype(np.float32)
    likely = truncate(logits[None], *_columns([rule]))
    keys = jax.random.split(jax.random.key(0), number)
    shape = (number, VOCAB)
    tokens, _ = jax.jit(sample)(keys, jnp.broadcast_to(likely[0], shape), jnp.full(number, rule[0]))
    found = np.bincount(tokens, minlength=VOCAB) / number
    expected = reference(logits, *rule)
    assert (found[expected == 0] == 0).all()
    assert np.abs(found - expected).max() < 0.018
