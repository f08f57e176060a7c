"""The bandit: the rewards of its arms, their order of display, and all its texts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.bandit import Bandit, make_bandit

LOW, HIGH = 0, 1


@pytest.fixture(scope="module")
def bandit():
    return make_bandit()


@pytest.fixture(scope="module")
def play():
    """One action in each of many episodes: (env, level keys, step keys, actions) -> states and results."""

    def run(env, params, level_keys, step_keys, actions):
        def one(level_key, step_key, action):
            _, start = env.reset_env(level_key, params)
            return start, env.step_env(step_key, start, action, params)

        return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(level_keys, step_keys, actions))

    return run


@pytest.fixture(scope="module")
def five_thousand(bandit, play):
    """Both arms in 5000 episodes."""
    env, params = bandit
    levels, noise = jax.random.split(jax.random.key(0), 5000), jax.random.split(jax.random.key(1), 5000)
    return play(env, params, jnp.tile(levels, 2), jnp.tile(noise, 2), jnp.repeat(jnp.array([LOW, HIGH]), 5000))


def test_high_arm_pays_a_quarter_of_the_time(five_thousand):
    _, (_, _, reward, _, _) = five_thousand
    assert (reward[:5000] == np.float32(0.1)).all()
    assert set(reward[5000:].tolist()) == {0.0, 1.0}
    assert abs(reward[5000:].mean() - 0.25) < 0.02


def test_arms_stand_in_either_order_half_of_the_time(five_thousand):
    shown = five_thousand[0].shown[:5000]
    assert abs(np.mean(shown[:, 0] == LOW) - 0.5) < 0.03
    assert (np.sort(shown, axis=1) == [LOW, HIGH]).all()


def test_success_is_the_high_arm_whatever_it_pays(five_thousand):
    _, (_, state, reward, terminated, info) = five_thousand
    high = np.arange(10000) >= 5000
    assert (info["success"] == high).all()
    assert info["action_is_effective"].all()
    assert terminated.all()
    assert (state.time == 1).all()
    assert (state.reward == reward).all()


def test_the_draw_comes_from_the_step_key_and_not_from_the_level(bandit, play):
    env, params = bandit
    one_level = jnp.broadcast_to(jax.random.key(3), (200,))
    many = jax.random.split(jax.random.key(4), 200)
    high = jnp.full(200, HIGH)
    start, (_, _, rewards, _, _) = play(env, params, one_level, many, high)
    assert len(np.unique(start.shown, axis=0)) == 1
    assert set(rewards.tolist()) == {0.0, 1.0}
    _, (_, _, rewards, _, _) = play(env, params, many, one_level, high)
    assert len(set(rewards.tolist())) == 1


def test_order_and_draw_are_independent(five_thousand):
    start, (_, _, reward, _, _) = five_thousand
    first = start.shown[5000:, 0] == HIGH
    assert abs(reward[5000:][first].mean() - reward[5000:][~first].mean()) < 0.06


def test_what_it_says(bandit):
    env, params = bandit
    _, state = env.reset_env(jax.random.key(0), params)
    for order, (first, second) in (((LOW, HIGH), ("Engineer", "Teacher")), ((HIGH, LOW), ("Teacher", "Engineer"))):
        state = state.replace(shown=jnp.array(order, jnp.int32))
        text = env.render(state, params)
        assert text.startswith(f"There are two arms to choose from: {first} and {second}. ")
        assert text.endswith(f"{first} or {second}, by its name.")
    for chosen, reward, text in (
        (LOW, 0.1, "Engineer: 0.1 points"),
        (HIGH, 1.0, "Teacher: 1.0 points"),
        (HIGH, 0.0, "Teacher: 0.0 points"),
        (HIGH, -2.34, "Teacher: -2.34 points"),
        (LOW, 0.15, "Engineer: 0.15 points"),
        (LOW, 0.04, "Engineer: 0.04 points"),
        (HIGH, -99.99, "Teacher: -99.99 points"),
        (HIGH, 123.4, "Teacher: 123.4 points"),
        (HIGH, -123.45, "Teacher: -123.4 points"),
        (LOW, 105.0, "Engineer: 105.0 points"),
        (LOW, 20.5, "Engineer: 20.5 points"),
        (LOW, 1e6, "Engineer: 999.9 points"),
    ):
        after = state.replace(chosen=jnp.int32(chosen), reward=jnp.float32(reward))
        assert env.render(after, params) == text


def test_several_pairs_are_shown_in_turn_and_other_names_pull_nothing(play):
    env = Bandit((("Engineer", "Teacher"), ("Trader", "Librarian"), ("Phoenix", "Dragon")))
    params = env.default_params
    keys = jax.random.split(jax.random.key(2), 1200)
    actions = jnp.tile(jnp.arange(6), 200)
    start, (_, state, reward, terminated, info) = play(env, params, keys, keys, actions)
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


def test_ids_that_are_no_arm_pull_nothing(bandit, play):
    env, params = bandit
    keys = jax.random.split(jax.random.key(0), 3)
    _, (_, state, reward, terminated, info) = play(env, params, keys, keys, jnp.array([-1, 2, -3]))
    assert not terminated.any()
    assert not info["success"].any()
    assert not reward.any()
    assert (state.chosen == -1).all()
    assert (state.time == 1).all()


@pytest.mark.parametrize(
    "pairs",
    [
        (),
        (("a", "A"),),
        (("", "b"),),
        (("a", "b"), ("b", "c")),
        (("a", "b", "c"),),
        (("a\n", "b"),),
        (("a\nc", "b"),),
        ((" a", "b"),),
        (("<answer>", "b"),),
    ],
)
def test_bad_names_are_refused(pairs):
    with pytest.raises(ValueError, match="pairs is"):
        Bandit(pairs)


@pytest.mark.parametrize("reward", [0.155, 100.05, 1000, float("nan"), "much", True])
def test_rewards_that_the_text_cannot_show_are_refused(reward):
    with pytest.raises(ValueError, match=r"high_reward of Bandit is .*expected a finite number that the text can show"):
        make_bandit(high_reward=reward)
