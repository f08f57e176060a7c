import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import toy_agent
from refusing import refusal

import envs_jax
from agentrl_jax.algos.optimizers import optimizer
from agentrl_jax.config.optim import AdamW
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN
from agentrl_jax.rollout.engine_config import cache_length
from agentrl_jax.rollout.envs.level_splits import LevelSplits, TaskLevels
from agentrl_jax.setup import build, memory
from agentrl_jax.setup import jit_once as kept
from envs_jax.content import content_key
from envs_jax.splits import Split


def plus(x, more=0):
    return x + more


def test_keys_and_environments_are_equal_for_equal_content():
    for one, same, *others in (
        (np.arange(3, dtype=np.int32), jnp.arange(3), np.arange(3), np.arange(3.0)),
        (np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((3, 2))),
        (jax.random.key(1), jax.random.key(1), jax.random.key(2)),
        (1, 1, 1.0, True),
        ((1, (2,)), (1, (2,)), [1, (2,)]),
        (functools.partial(plus, more=1), functools.partial(plus, more=1), functools.partial(plus, more=2)),
        (optimizer(AdamW(b2=0.99)), optimizer(AdamW(b2=0.99)), optimizer(AdamW(b2=0.98))),
    ):
        assert content_key(one) == content_key(same)
        assert content_key(one) not in list(map(content_key, others))
    assert content_key(optax.sgd(1.0)) != content_key(optax.sgd(1.0))  # functions are equal only to themselves
    for tag, other, options in (
        ("SimpleSokoban", "SimpleSokoban", {"observation": "coord"}),
        ("FrozenLake", "FrozenLake", {"height": 5}),
        ("Bandit", "BanditRev", {}),
        ("BabyAI-GoToRedBall", "BabyAI-GoToRedBall", {"objects_shown": 3}),
    ):
        first, second = envs_jax.make(tag)[0], envs_jax.make(tag)[0]
        assert (first, hash(first)) == (second, hash(second))
        assert first not in (envs_jax.make(other, **options)[0], tag)


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


def test_positions_hold_the_final_observation_of_a_critic_and_test_levels_cannot_be_trained_on():
    env = types.SimpleNamespace(prefix=np.zeros((1, 10)), observation_tokens=5)
    for context, context_tokens, more in ((FULL, 0, 5), (FULL, 24, 5), (SINGLE_TURN, 0, 0)):
        engine = toy_agent.engine_config(context=context, context_tokens=context_tokens)
        longest = cache_length(env, engine)

        def check(positions, bootstrap, engine=engine):
            model = types.SimpleNamespace(max_positions=positions)
            build.check_positions(model, env, engine, bootstrap=bootstrap)

        check(longest, False)
        check(longest + more, True)
        assert f"{longest} tokens, but" in str(refusal(check, longest - 1, False))
        said = "final observation of 5" if more else f"{longest} tokens, but"
        assert said in str(refusal(check, longest + more - 1, True))
    tasks, kinds = [types.SimpleNamespace(label="mine", levels="panel.txt")], [types.SimpleNamespace(on_host=False)]
    config = types.SimpleNamespace(tasks=tasks, kinds=kinds)
    test, fixed = np.full(4, Split.TEST), np.array([True, True, True, False])
    build.check_trainable(config, LevelSplits((TaskLevels("too few", test, fixed),)))
    build.check_trainable(config, LevelSplits((TaskLevels("all are drawn", some_fixed=True),)))
    error = refusal(build.check_trainable, config, LevelSplits((TaskLevels("too few", test[:3], fixed[:3]),)))
    assert "mine has no level to train on: all levels of panel.txt" in str(error)


def test_a_program_that_does_not_fit_in_what_is_free_is_not_executed(monkeypatch):
    assert 0 < memory.free_bytes() * jax.local_device_count() <= memory.psutil.virtual_memory().total
    # Unless what is free is not known, or it is a part of another program.
    seen = []

    def one_megabyte(x):
        jax.debug.callback(lambda: seen.append(1))
        return jnp.zeros((250_000,)) + x

    notes = []
    program, other, third = (memory.Measured("update", jax.jit(one_megabyte), notes.append) for _ in range(3))
    monkeypatch.setattr(memory, "free_bytes", lambda: 500_000)
    assert re.search(r"update needs .* lower algo\.minibatches", str(refusal(program, 1.0)))
    jax.effects_barrier()
    assert not seen
    for free, run in ((1_500_000, program), (None, other), (0, jax.jit(third))):
        monkeypatch.setattr(memory, "free_bytes", lambda free=free: free)
        run(1.0)
    jax.effects_barrier()
    assert len(seen) == 3
    said = len(notes)
    program(1.0)
    assert len(notes) == said > 0
