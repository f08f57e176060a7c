"""The bandit: the rewards of its arms, their order of display, and all its texts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.bandit import Bandit, make_bandit
from envs_jax.environment import TextEnvironment

LOW, HIGH = 0, 1
ENV, PARAMS = make_bandit()


def play(level_keys, step_keys, actions, env=ENV):
    """One action in each of many episodes: start states and results."""

    def one(level_key, step_key, action):
        _, start = env.reset_env(level_key, env.default_params)
        return start, env.step_env(step_key, start, action, env.default_params)

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(level_keys, step_keys, actions))


def test_arms_pay_what_they_should_and_stand_in_either_order():
    keys = [jnp.tile(jax.random.split(jax.random.key(seed), 5000), 2) for seed in (0, 1)]
    start, (_, state, reward, terminated, info) = play(*keys, jnp.repeat(jnp.array([LOW, HIGH]), 5000))
    high = np.arange(10000) >= 5000
    assert (reward[~high] == np.float32(0.1)).all()
    assert set(reward[high].tolist()) == {0.0, 1.0}
    assert abs(reward[high].mean() - 0.25) < 0.02
    assert (info["success"] == high).all(), "whatever it pays"
    assert info["action_is_effective"].all()
    assert terminated.all()
    assert (state.time == 1).all()
    assert (state.reward == reward).all()
    shown = start.shown[high]
    assert (np.sort(shown, axis=1) == [LOW, HIGH]).all()
    first = shown[:, 0] == HIGH
    assert abs(first.mean() - 0.5) < 0.03
    assert abs(reward[high][first].mean() - reward[high][~first].mean()) < 0.06, "independent"


def test_the_draw_comes_from_the_step_key_and_not_from_the_level():
    one_level = jnp.broadcast_to(jax.random.key(3), (200,))
    many, high = jax.random.split(jax.random.key(4), 200), jnp.full(200, HIGH)
    start, (_, _, rewards, _, _) = play(one_level, many, high)
    assert len(np.unique(start.shown, axis=0)) == 1
    assert set(rewards.tolist()) == {0.0, 1.0}
    _, (_, _, rewards, _, _) = play(many, one_level, high)
    assert len(set(rewards.tolist())) == 1


def test_what_it_says():
    _, state = ENV.reset_env(jax.random.key(0), PARAMS)
    for order, (first, second) in (((LOW, HIGH), ("Engineer", "Teacher")), ((HIGH, LOW), ("Teacher", "Engineer"))):
        text = ENV.render(state.replace(shown=jnp.array(order, jnp.int32)), PARAMS)
        assert text.startswith(f"There are two arms to choose from: {first} and {second}. ")
        assert text.endswith(f"{first} or {second}, by its name.")
    for arm, reward, text in (
        (LOW, 0.1, "Engineer: 0.1 points"),
        (HIGH, 1.0, "Teacher: 1.0 points"),
        (HIGH, -2.34, "Teacher: -2.34 points"),
        (LOW, 0.15, "Engineer: 0.15 points"),
        (LOW, 0.04, "Engineer: 0.04 points"),
        (HIGH, -99.99, "Teacher: -99.99 points"),
        (HIGH, -123.45, "Teacher: -123.4 points"),
        (LOW, 1e6, "Engineer: 999.9 points"),
    ):
        assert ENV.render(state.replace(chosen=jnp.int32(arm), reward=jnp.float32(reward)), PARAMS) == text


def test_several_pairs_are_shown_in_turn_and_other_names_and_ids_pull_nothing():
    env = Bandit((("Engineer", "Teacher"), ("Trader", "Librarian"), ("Phoenix", "Dragon")))
    params = env.default_params
    keys = jax.random.split(jax.random.key(2), 1200)
    actions = jnp.tile(jnp.arange(6), 200)
    start, (_, state, reward, terminated, info) = play(keys, keys, actions, env)
    pair = start.shown.min(axis=1) // 2
    assert (start.shown.max(axis=1) // 2 == pair).all()
    assert np.bincount(pair, minlength=3).min() > 330
    on_display = (start.shown == np.asarray(actions)[:, None]).any(axis=1)
    assert (terminated == on_display).all()
    assert (info["action_is_effective"] == on_display).all()
    assert (info["success"] == (on_display & (np.asarray(actions) % 2 == 1))).all()
    assert (reward[~on_display] == 0).all()
    assert np.asarray(jax.vmap(lambda s: env.is_done(s, params))(state)).all()
    refused = jax.tree.map(lambda leaf: leaf[np.argmin(on_display)], state)
    name = env.actions[int(refused.chosen)]
    assert env.render(refused, params) == f"{name} is not one of the two arms."
    keys = jax.random.split(jax.random.key(0), 3)
    _, (_, state, reward, terminated, info) = play(keys, keys, jnp.array([-1, 2, -3]))
    assert not np.any([terminated, info["success"], reward])
    assert (state.chosen == -1).all()
    assert (state.time == 1).all()


def test_bad_names_and_rewards_that_the_text_cannot_show_are_refused():
    for bad in ("", "a", "a\n", "a\nc", " a", "<answer>"):
        with pytest.raises(ValueError, match="pairs is"):
            Bandit(((bad, "A" if bad == "a" else "b"),))
    for pairs in ((), (("a", "b"), ("b", "c")), (("a", "b", "c"),)):
        with pytest.raises(ValueError, match="pairs is"):
            Bandit(pairs)
    said = r"high_reward of Bandit is .*expected a finite number that the text can show"
    for reward in (0.155, 100.05, 1000, float("nan"), "much", True):
        with pytest.raises(ValueError, match=said):
            make_bandit(high_reward=reward)


def test_what_it_declares_and_what_it_does_not_have():
    _, state = ENV.reset_env(jax.random.key(0), PARAMS)
    assert (ENV.get_obs(state) == state.shown).all()
    space = ENV.observation_space(PARAMS)
    assert (space.low, space.high, space.shape, space.dtype) == (0, 1, (2,), jnp.int32)
    assert list(map(float, ENV.reward_range(PARAMS))) == [0, 1]
    assert list(map(float, ENV.reward_range(PARAMS.replace(low_reward=jnp.float32(-2))))) == [-2, 1]
    for name, count in {"level_images": 1, "reward_range": 1, "reset_to_level": 2, "sample_level": 2}.items():
        with pytest.raises(NotImplementedError, match="Bandit"):
            getattr(TextEnvironment, name)(ENV, *[None] * count)
