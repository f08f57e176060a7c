"""Programs are made once for equal parts, and again for parts that differ."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import envs_jax
from agentrl_jax.learner.state import optimizer
from agentrl_jax.setup import jit_once as kept
from envs_jax.content import content_key


def plus(x, more=0):
    return x + more


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (np.arange(3), jnp.arange(3), False),
        (np.arange(3, dtype=np.int32), jnp.arange(3), True),
        (np.arange(3.0), np.arange(3), False),
        (np.zeros((2, 3)), np.zeros((3, 2)), False),
        (jax.random.key(1), jax.random.key(1), True),
        (jax.random.key(1), jax.random.key(2), False),
        (1, 1.0, False),
        (1, True, False),
        ((1, (2,)), (1, (2,)), True),
        ([1], (1,), False),
        (functools.partial(plus, more=1), functools.partial(plus, more=1), True),
        (functools.partial(plus, more=1), functools.partial(plus, more=2), False),
        (optimizer(0.9, 0.99, 0.1), optimizer(0.9, 0.99, 0.1), True),
        (optimizer(0.9, 0.99, 0.1), optimizer(0.9, 0.98, 0.1), False),
        (optax.sgd(1.0), optax.sgd(1.0), False),  # functions are equal only to themselves
    ],
)
def test_keys_are_equal_for_equal_content(one, other, equal):
    assert (content_key(one) == content_key(other)) is equal


OTHERS = {"SimpleSokoban": {"observation": "coord"}, "FrozenLake": {"height": 5}, "Bandit": None}


@pytest.mark.parametrize(("tag", "other"), [*OTHERS.items(), ("BabyAI-GoToRedBall", {"objects_shown": 3})])
def test_environments_are_equal_by_what_they_were_made_of(tag, other):
    first, second = envs_jax.make(tag)[0], envs_jax.make(tag)[0]
    assert first == second
    assert hash(first) == hash(second)
    different = envs_jax.make("BanditRev")[0] if other is None else envs_jax.make(tag, **other)[0]
    assert first != different
    assert first != tag


def test_a_program_is_made_once_and_the_least_recently_used_goes_first(monkeypatch):
    monkeypatch.setattr(kept, "_kept", type(kept._kept)())
    monkeypatch.setattr(kept, "KEPT", 2)

    def made(*parts):
        return kept.jit_once(functools.partial(plus, more=parts[0]), parts)

    one, two = made(1), made(2)
    assert made(1) is one
    assert (int(one(1)), int(two(1))) == (2, 3)
    three = made(3)  # drops 2, which was used before 1
    assert made(1) is one
    assert made(3) is three
    assert made(2) is not two
    assert kept.jit_once(plus, None) is not kept.jit_once(plus, None)
    assert kept.jit_once(plus, ({1},)) is not kept.jit_once(plus, ({1},))  # a set has no key
