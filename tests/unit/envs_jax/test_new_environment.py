"""The environment of the guide in the docs, and that `check_env` refuses it if anything about it is wrong."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces
from paths import ROOT

from envs_jax import EnvParams, Registry
from envs_jax.budget import Budget
from envs_jax.environment import hash_integers
from envs_jax.testing import check_env

PATH = ROOT / "experiments" / "custom_environment.py"
SPEC = importlib.util.spec_from_file_location("custom_environment", PATH)
example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)
Corridor = example.Corridor


def check(env, params=None):
    check_env(env, params or env.default_params, key=jax.random.key(3), num_steps=4)


class Short(Corridor):
    """The corridor, starting one cell before the door: episodes end both ways in four steps, which compile fast."""

    def reset_env(self, key, params):
        place = jnp.int32(example.DOOR - 1)
        return place, example.CorridorState(time=jnp.int32(0), terminated=jnp.bool_(False), place=place)


def attributes(**values):
    return type("Changed", (Short,), values)


def stepped(change):
    """A corridor whose `step_env` result is changed by `change(key, old_state, result)`."""
    return attributes(step_env=lambda self, k, s, a, params: change(k, s, Short.step_env(self, k, s, a, params)))


def described(change):
    return attributes(describe=lambda self, state, params: change(Short.describe(self, state, params)))


def with_info(**values):
    return stepped(lambda k, s, r: (*r[:4], {**r[4], **values}))


@jax.custom_batching.custom_vmap
def differs_when_batched(x):
    return x


@differs_when_batched.def_vmap
def _(size, batched, x):
    return x + 1, batched[0]


class ReusesKeyInReset(Short):
    def reset_env(self, key, params):
        place = jax.random.randint(key, (), 0, 3) + jax.random.bernoulli(key)
        return place, super().reset_env(key, params)[1].replace(place=place)


class StartsElsewhere(Short):
    def sample_level(self, key, params):
        return jnp.zeros((1, example.DOOR + 1), jnp.int8)

    def reset_to_level(self, level, params):
        return self.reset_env(None, params)[0], self.reset_env(None, params)[1].replace(place=jnp.int32(0))


class ForgetsImages(Short):
    """Says that the mirror image of a level is the same, and hashes both differently."""

    def sample_level(self, key, params):
        return jnp.zeros((1, example.DOOR), jnp.int8).at[0, -1].set(1)

    def reset_to_level(self, level, params):
        place, state = Short.reset_env(self, None, params)
        return place, state.replace(place=jnp.argmax(level[0]).astype(jnp.int32))

    def level_images(self, level):
        return [level, level[:, ::-1]]


class BiasedActions(spaces.Discrete):
    def sample(self, key):
        return super().sample(key) * 0


BROKEN = {
    "names that differ": attributes(actions=("Left", "left")),
    "none of them empty": attributes(actions=()),
    "tuple of non-empty strings": attributes(pieces=("", "P", "D", "door")),
    "no observation names an action": attributes(lists_actions=False),
    "expected pairs": attributes(legend=("P", "D")),
    "weakly typed": stepped(lambda k, s, r: (*r[:2], 1.0 * r[3], *r[3:])),
    "expected the same twice": stepped(lambda k, s, r: (r[0], r[1].replace(place=r[1].place.astype(jnp.int8)), *r[2:])),
    r"reward is int32\[\]": stepped(lambda k, s, r: (*r[:2], jnp.int32(0), *r[3:])),
    "expected 'action_is_effective'": stepped(lambda k, s, r: (*r[:4], {"success": r[4]["success"]})),
    "expected a scalar": with_info(extra=jnp.zeros(2)),
    r"describe\(state\) is float32": described(lambda ids: ids.astype(jnp.float32)),
    "one row of piece ids": described(lambda ids: ids[None]),
    "level_hash.* expected uint32": attributes(level_hash=lambda self, state, params: jnp.float32(0.5)),
    "level_images of a level have 2": ForgetsImages,
    "state.time runs": stepped(lambda k, s, r: (r[0], r[1].replace(time=s.time), *r[2:])),
    "step_env's terminated is": stepped(lambda k, s, r: (*r[:3], ~r[3], r[4])),
    "is_terminated.state. is": attributes(is_terminated=lambda self, s, p: s.time > 1, is_done=Short.is_done),
    "info..success.. is": with_info(success=jnp.bool_(False)),
    "changes after the episode is truncated": stepped(
        lambda k, s, r: (r[0], r[1].replace(place=r[1].place - ((s.time >= 3) & ~s.terminated)), *r[2:])
    ),
    "terminated state pays 1.0": stepped(lambda k, s, r: (*r[:2], r[3].astype(jnp.float32), *r[3:])),
    "is_done says False of a": attributes(is_done=lambda self, state, params: state.place > 99),
    "for 2 action names": attributes(action_space=lambda self, params: spaces.Discrete(3)),
    r"never samples \[1\]": attributes(action_space=lambda self, params: BiasedActions(2)),
    "observation outside": attributes(observation_space=lambda self, params: spaces.Discrete(3)),
    "observation is int32": attributes(observation_space=lambda self, params: spaces.Box(0, 9, (), jnp.int8)),
    "describe gives ids from": described(lambda ids: ids + 9),
    "says nothing": described(lambda ids: jnp.full_like(ids, -1)),
    "expected the joined pieces": attributes(render=lambda self, state, params: "?"),
    "state_hash changes with state.time": attributes(
        state_hash=lambda self, state, params: hash_integers(jnp.stack([state.place, state.time]))
    ),
    "reset_env uses a key twice": ReusesKeyInReset,
    "step_env uses a key twice": stepped(
        lambda k, s, r: (*r[:4], {**r[4], "x": jax.random.uniform(k) + jax.random.normal(k)})
    ),
    "reset_to_level on sample_level's level": StartsElsewhere,
    "step, not batched": stepped(lambda k, s, r: (differs_when_batched(r[0]) - 1, *r[1:])),
    "step_env without jit": stepped(
        lambda k, s, r: (*r[:2], r[2] + (0.0 if isinstance(r[2], jax.core.Tracer) else 1.0), *r[3:])
    ),
}


def test_the_example_is_a_proper_environment_and_reads_as_the_readme_says():
    env, params = Corridor(), Corridor().default_params
    check_env(env, params, key=jax.random.key(0))
    check(Short())
    _, state = Short().reset_env(jax.random.key(0), params)
    assert env.render(state, params) == ".......PD"
    _, state, reward, terminated, _ = env.step_env(jax.random.key(1), state, jnp.int32(1), params)
    assert env.render(state, params) == "You are at the door."
    assert (float(reward), bool(terminated)) == (1.0, True)
    registry = Registry({})  # without an oracle there are no baselines
    registry.register("Corridor", lambda: (Corridor(), Corridor().default_params), description="a corridor")
    assert registry.make("Corridor", max_steps_in_episode=5)[1].max_steps_in_episode == 5
    assert all(np.isnan(registry.baselines("Corridor", jax.random.key(0), 3, Budget.one_per_turn(10))))


@pytest.mark.parametrize("message", BROKEN)
def test_check_env_refuses_a_broken_environment(message):
    with pytest.raises(AssertionError, match=message):
        check(BROKEN[message]())


def test_check_env_refuses_parameters_that_are_no_arrays_and_too_few_steps():
    with pytest.raises(AssertionError, match=r"params.max_steps_in_episode is 20"):
        check(Short(), EnvParams(max_steps_in_episode=20))
    with pytest.raises(ValueError, match="num_steps is 1"):
        check_env(Short(), Short().default_params, key=jax.random.key(0), num_steps=1)
