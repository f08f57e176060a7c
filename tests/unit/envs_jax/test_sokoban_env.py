import importlib
import itertools
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sokoban_boards as slow
from sokoban_boards import TWO_BOXES, generate_pack

from envs_jax.sokoban import TAGS, Sokoban

KEY = jax.random.key(0)


def play(env):
    """A program (levels, actions i32[N, T]) -> (first states, states, observations, rewards, terminated, infos)."""

    def run(level, actions):
        params = env.default_params
        _, first = env.reset_to_level(level, params)

        def step(state, action):
            obs, state, *results = env.step_env(KEY, state, action, params)
            return state, (state, obs, *results)

        return first, *jax.lax.scan(step, first, actions)[1]

    return jax.jit(jax.vmap(run))


def all_positions():
    """Every placement of target, box and player in two rooms of at most nine floor cells."""
    levels = []
    for room in ("00000 01110 01110 01110 00000", "00000 01110 01010 01100 00000"):
        cells = [tuple(place) for place in np.argwhere(slow.board(room))]
        for target, box, player in itertools.product(cells, cells, cells):
            if player != box:
                level = slow.board(room)
                level[target] = 2
                level[box] = 3 if box == target else 4
                level[player] = 6 if player == target else 5
                levels.append(level)
    return np.array(levels)


def test_every_position_of_a_small_board():
    env = Sokoban(5, 5, 1, observation="grid_coord", vocabulary=tuple("W.GCBA@"))
    actions = range(-1, 5)

    @jax.jit
    def play_all(levels, params):
        def every_action(level):
            _, state = env.reset_to_level(level, params)
            outcomes = jax.vmap(env.step_env, (None, None, 0, None))(KEY, state, jnp.array(actions), params)
            return env.describe(state, params), env.state_hash(state, params), outcomes

        return jax.vmap(every_action)(levels)

    levels, params = all_positions(), env.default_params
    ids, hashes, (obs, after, rewards, terminated, info) = jax.device_get(play_all(levels, params))

    assert len(np.unique(hashes, axis=0)) == len(levels)
    solved = (levels == 3).any((1, 2))
    assert (obs[solved] == levels[solved][:, None]).all()
    assert (rewards[solved] == 0).all()
    params = params.replace(step_reward=jnp.float32(-1), solved_reward=jnp.float32(100))
    others = np.asarray(play_all(levels, params)[-1][2])
    np.testing.assert_allclose((others - rewards)[~solved], -0.9 + 90 * terminated[~solved], atol=1e-5)
    assert (after.time == ~solved[:, None]).all()
    assert terminated[solved].all()
    for i, level in enumerate(levels):
        codes = level.tolist()
        assert "".join(env.pieces[k] for k in ids[i] if k >= 0) == slow.spell(codes, env.vocabulary)
        for column, action in enumerate(actions if not solved[i] else ()):
            known = 0 <= action < 4
            codes_next, reward, done, moved = slow.step(codes, action) if known else (codes, -0.1, False, False)
            assert obs[i, column].tolist() == codes_next
            assert abs(rewards[i, column] - reward) < 1e-5
            assert terminated[i, column] == info["success"][i, column] == done
            assert info["action_is_effective"][i, column] == moved
            assert info["boxes_on_target"][i, column] == slow.covered(codes_next)


def test_any_board_moves_as_the_slow_rules_say():
    """Also boards with open borders, unequal numbers of boxes and targets, and covered targets at the start."""
    rng = np.random.default_rng(0)
    boards = rng.choice(np.array([0, 1, 1, 1, 2, 2, 3, 4, 4], np.int8), (100, 25))
    start, actions = rng.integers(0, 25, 100), rng.integers(0, 4, (100, 16)).astype(np.int32)
    below = boards[np.arange(100), start]
    boards[np.arange(100), start] = np.where((below == 2) | (below == 3), 6, 5)
    boards = boards.reshape(100, 5, 5)
    first, states, obs, rewards, _, info = jax.device_get(play(Sokoban(5, 5, 8))(boards, actions))
    for i, codes in enumerate(boards.tolist()):
        ended = bool(first.terminated[i])
        assert ended == (slow.uncovered(codes) == 0)
        for t, action in enumerate(actions[i]):
            reward, moved = 0.0, False
            if not ended:
                codes, reward, ended, moved = slow.step(codes, action)
            assert obs[i, t].tolist() == codes
            assert abs(rewards[i, t] - reward) < 1e-5
            assert states.terminated[i, t] == ended
            assert info["action_is_effective"][i, t] == moved


@pytest.fixture
def gym_sokoban(monkeypatch):
    """gym_sokoban's environment class, without its images and without the deprecated `gym`."""
    spec = importlib.util.find_spec("gym_sokoban")
    if spec is None:
        pytest.skip("gym-sokoban is not installed (pip install --no-deps gym-sokoban==0.0.6)")
    root = next(iter(spec.submodule_search_locations))
    known = {"gym": {"Env": object}, "gym_sokoban": {"__path__": [root]}}
    known["gym_sokoban.envs"] = {"__path__": [f"{root}/envs"]}
    for name in (*known, "gym.utils", "gym.spaces", "gym.spaces.discrete", "gym_sokoban.envs.render_utils"):
        monkeypatch.setitem(sys.modules, name, mock.MagicMock(__spec__=None, **known.get(name, {})))
    for name in ("gym_sokoban.envs.room_utils", "gym_sokoban.envs.sokoban_env"):
        monkeypatch.setitem(sys.modules, name, None)  # so that it is taken away again afterwards
        del sys.modules[name]
    return importlib.import_module("gym_sokoban.envs.sokoban_env").SokobanEnv


def test_steps_agree_with_gym_sokoban(gym_sokoban):
    levels = generate_pack(range(24), *TWO_BOXES)
    actions = np.random.default_rng(0).integers(0, 4, (24, 100)).astype(np.int32)
    env = Sokoban(7, 7, 2)
    _, states, obs, rewards, terminated, info = jax.device_get(play(env)(levels, actions))
    ends = 0
    for i, level in enumerate(levels):
        theirs = gym_sokoban(dim_room=(7, 7), max_steps=100, num_boxes=2, reset=False)
        theirs.room_fixed = np.where(level == 0, 0, np.where(np.isin(level, (2, 3, 6)), 2, 1))
        theirs.room_state = np.where(level == 6, 5, level).astype(int)
        theirs.player_position = np.argwhere(theirs.room_state == 5)[0]
        theirs.num_env_steps = theirs.boxes_on_target = 0
        for t, action in enumerate(actions[i]):
            _, reward, done, facts = theirs.step(int(action) + 1)
            expected = np.where((theirs.room_state == 5) & (theirs.room_fixed == 2), 6, theirs.room_state)
            np.testing.assert_array_equal(obs[i, t], expected)
            np.testing.assert_allclose(rewards[i, t], reward, rtol=1e-6)
            assert info["action_is_effective"][i, t] == facts["action.moved_player"]
            assert (terminated[i, t] or states.time[i, t] >= 100) == done
            if done:
                ends += bool(terminated[i, t])
                break
    assert ends >= 1


def test_tags_explain_their_own_symbols():
    for make in TAGS.values():
        env, params = make()
        assert [symbol for symbol, _ in env.legend] == list(env.vocabulary)
        assert len(set(env.pieces)) == len(env.pieces)
        assert params.levels.shape == (0, env.height, env.width)
    env, _ = TAGS["SokobanDifferentGridVocab"]()
    meanings = ["wall", "floor", "target", "box on target", "box", "you", "you on target"]
    assert env.legend == tuple(zip("W.GCBA@", meanings))
    assert Sokoban(observation="coord").legend == ()


def test_a_pack_row_is_drawn_by_the_key():
    env = Sokoban(6, 6)
    pack = generate_pack(range(4))
    params = env.default_params.replace(levels=jnp.asarray(pack))
    obs, state = jax.jit(jax.vmap(env.reset_env, (0, None)))(jax.random.split(KEY, 400), params)
    rows = (np.asarray(obs)[:, None] == pack).all((2, 3))
    assert (rows.sum(1) == 1).all()
    assert (rows.sum(0) > 60).all()
    assert (state.time == 0).all()


def test_what_cannot_be_used_is_refused():
    env = Sokoban(6, 6)
    for refused, message in (
        (lambda: env.reset_to_level(jnp.zeros((5, 6), jnp.int8), env.default_params), r"\(5, 6\) .* 6x6"),
        (lambda: env.reset_env(KEY, env.default_params), "neither a generator nor levels"),
        (lambda: Sokoban(vocabulary=("#",) * 7), "7 different symbols"),
        (lambda: Sokoban(observation="picture"), "grid, coord, grid_coord"),
        (lambda: Sokoban(boxes=0), "at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            refused()
