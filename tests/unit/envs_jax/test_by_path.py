"""Compiled environments by their import path."""

import jax
import jax.numpy as jnp
import pytest

from agentrl_jax.cli.main import _names_own_code
from agentrl_jax.config import decode
from agentrl_jax.environments.loading import COMPILED
from envs_jax import by_path, registry
from envs_jax.errors import BadValue

LADDER = "compiled:toy_agent:Ladder"


def test_configurations_and_the_registry_name_it_alike():
    assert COMPILED == by_path.PREFIX


def test_a_class_is_made_with_options_and_scalar_parameters():
    env, params = registry.make(LADDER, steps=7, max_steps_in_episode=3)
    assert (type(env).__name__, env.steps, int(params.max_steps_in_episode)) == ("Ladder", 7, 3)
    assert registry.spec(LADDER).description.startswith("Climb to a rung")
    assert LADDER not in registry.registered(), "the list is of names"
    assert jax.eval_shape(env.reset_env, jax.random.key(0), params)[1].height.shape == ()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("compiled:no_such_module:Ladder", "No module named"),
        ("compiled:toy_agent:Nothing", "has no attribute"),
        ("compiled:toy_agent:TURNS", "expected a TextEnvironment"),
        ("compiled:toy_agent", "expected compiled:package.module:Class"),
        ("compiled:os;x:Ladder", "expected compiled:package.module:Class"),
        ("compiled:broken_lock:Ladder", "."),
    ],
)
def test_what_cannot_be_used_is_refused(name, why):
    with pytest.raises(BadValue, match=why) as refused:
        registry.spec(name)
    assert refused.value.value == name


def test_it_is_a_compiled_task_also_beside_services():
    tasks = [{"env": LADDER, "groups": 1}, {"env": "my:Class", "groups": 1}, {"env": "Bandit", "groups": 1}]
    kinds = [kind.title for kind in decode({"tasks": tasks}).kinds]
    assert kinds == ["compiled environments", "Python environments", "compiled environments"]
    kinds = [kind.title for kind in decode({"tasks": tasks, "env": {"url": "local"}}).kinds]
    assert kinds == ["compiled environments", "Python environments", "services"]
    assert decode({"tasks": tasks}).tasks[0].label == "Ladder"


def test_a_command_that_names_it_looks_into_the_working_directory():
    assert _names_own_code(["play", LADDER])
    assert _names_own_code(["eval", "run", f"--env={LADDER}"])
    assert not _names_own_code(["view", "run"])


def test_lights_out_is_solved_by_the_presses_that_made_it():
    env, params = registry.make("compiled:envs_jax.lights_out:LightsOut", presses=1)

    @jax.jit
    def play(key):
        _, state = env.reset_env(key, params)
        presses = jnp.arange(9)
        after = jax.vmap(lambda press: env.step_env(key, state, press, params))(presses)
        last = jax.tree.map(lambda x: x[jnp.argmax(after[2])], after[1])
        return env.describe(state, params), after[2], last, env.step_env(key, last, 0, params)[1].lights

    shown, rewards, last, again = play(jax.random.key(0))
    assert {env.pieces[piece] for piece in shown.tolist()} == {"#", ".", "\n"}
    assert sorted(rewards.tolist()) == [0.0] * 8 + [1.0], "one press made it"
    assert bool(env.success(last, params))
    assert bool(last.terminated)
    assert not again.any(), "a state that is done does not change"
