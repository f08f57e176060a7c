"""FrozenLake against Gymnasium's transition table, its maps against rejection in NumPy, and its text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from envs_jax.frozen_lake import make_frozen_lake
from envs_jax.frozen_lake.generator import generate, solvable
from envs_jax.frozen_lake.levels import check_level, parse_maps, stack_levels
from envs_jax.frozen_lake.oracle import best_actions, optimal_success, plan, random_success
from envs_jax.frozen_lake.text import FROZEN, GOAL, HOLE, START

LETTERS = "FHGS"
RATE = 1 / 3
ENV, PARAMS = make_frozen_lake()


@pytest.fixture(scope="module")
def levels():
    keys = jax.random.split(jax.random.key(10), 4096)
    return np.asarray(jax.jit(jax.vmap(ENV.sample_level, in_axes=(0, None)))(keys, PARAMS))


@pytest.fixture(scope="module")
def step():
    def one(level, cell, action, key, params):
        _, state = ENV.reset_to_level(level, params)
        player = (jnp.arange(level.size) == cell).reshape(level.shape)
        _, state, reward, terminated, info = ENV.step_env(key, state.replace(player=player), action, params)
        info |= {"reward of another step": ENV.step_env(key, state, action, params)[2]}
        return jnp.argmax(state.player), reward, terminated, info, jnp.sum(state.player), ENV.describe(state, params)

    return jax.jit(jax.vmap(one, in_axes=(0, 0, 0, 0, None)))


@pytest.fixture(scope="module")
def slips():
    """Keys whose uniform number is, in this order, below 1/3, between 1/3 and 2/3, and above."""
    keys = jax.random.split(jax.random.key(5), 64)
    draws = np.asarray(jax.vmap(jax.random.uniform)(keys))
    return keys[np.array([np.argmax((draws > low) & (draws < low + 1 / 3)) for low in (0, 1 / 3, 2 / 3)])]


def spelled(env, ids):
    return "".join(env.pieces[i] for i in np.asarray(ids).tolist() if i >= 0)


def table(level, rate=RATE):
    desc = ["".join(LETTERS[code] for code in row) for row in level]
    return FrozenLakeEnv(desc=desc, is_slippery=True, success_rate=rate).unwrapped.P


def test_every_transition_agrees_with_gymnasium(levels, step, slips):
    assert list(map(float, ENV.reward_range(PARAMS))) == [0, 1]
    boards = levels[:12]
    cases = np.argwhere(np.ones((12, 16, 4, 3)))
    ended = np.isin(boards.reshape(12, 16), (HOLE, GOAL))
    cases = cases[~ended[cases[:, 0], cases[:, 1]]]
    number, cell, action, slip = cases.T
    after, reward, terminated, info, players, _ = step(boards[number], cell, action, slips[slip], PARAMS)
    tables = [table(board) for board in boards]
    # Gymnasium lists the directions action - 1, action, action + 1; here the intended direction is first.
    expected = np.array([tables[n][c][a][(1, 0, 2)[s]] for n, c, a, s in cases], float)
    np.testing.assert_allclose(expected[:, 0], RATE)
    np.testing.assert_array_equal(expected[:, 1:], np.stack([after, reward, terminated], axis=1))
    assert (np.asarray(players) == 1).all()
    assert (np.asarray(info["action_is_effective"]) == (np.asarray(after) != cell)).all()
    assert (np.asarray(info["success"]) == (np.asarray(reward) == 1)).all()
    assert not np.asarray(info["reward of another step"])[np.asarray(terminated)].any()


@pytest.mark.parametrize("rate", [1.0, 0.8, 0.0])
def test_slips_have_the_stated_probabilities(step, rate):
    level = np.full((4, 4), FROZEN, np.int8)
    level[0, 0], level[3, 3] = START, GOAL
    count = 4096
    keys = jax.random.split(jax.random.key(7), count)
    params = PARAMS.replace(success_rate=jnp.float32(rate))
    after = step(np.broadcast_to(level, (count, 4, 4)), np.full(count, 5), np.full(count, 2), keys, params)[0]
    shares = np.array([np.mean(np.asarray(after) == cell) for cell in (6, 1, 9)])
    expected = np.array([rate, (1 - rate) / 2, (1 - rate) / 2])
    assert shares.sum() == 1
    # Five standard deviations; exact if the probability is 0 or 1.
    assert (np.abs(shares - expected) <= 5 * np.sqrt(expected * (1 - expected) / count)).all()


def test_every_reachable_observation_spells_the_board_and_ids_that_are_no_action_stay(levels, step, slips):
    cases = [(number, cell) for number in range(16) for cell in range(16)]
    number, cell = (np.array(column) for column in zip(*cases))
    no_action, keys = np.resize([-1, 4, 9, -7], len(cases)), slips[np.arange(len(cases)) % 3]
    after, reward, terminated, info, _, ids = step(levels[number], cell, no_action, keys, PARAMS)
    assert (np.asarray(after) == cell).all()
    assert not np.any(info["action_is_effective"])
    going_on = ~np.isin(levels[:16].reshape(-1), (HOLE, GOAL))
    assert not np.any(np.array([terminated, reward])[:, going_on])
    for n, c, row in zip(number, cell, np.asarray(ids)):
        symbols = [{"F": "_", "S": "_", "H": "O", "G": "G"}[LETTERS[code]] for code in levels[n].reshape(-1)]
        symbols[c] = {"_": "P", "O": "X", "G": "√"}[symbols[c]]
        assert spelled(ENV, row) == "\n".join("".join(symbols[i : i + 4]) for i in range(0, 16, 4))


def test_coordinates_name_start_goal_player_and_holes():
    places = "Board: 3 rows, 4 columns\nStart: (0,3)\nGoal: (1,1)\nYou: (0,3)\nHoles: (0,2) (2,0)\n__OP\n_G__\nO___"
    none = "Board: 1 rows, 3 columns\nStart: (0,0)\nGoal: (0,2)\nYou: (0,0)\nHoles: none"
    for lake, drawn, text in (
        (make_frozen_lake(3, 4, observation="grid_coord"), "FFHS\nFGFF\nHFFF", places),
        (make_frozen_lake(1, 3, observation="coord"), "SFG", none),
    ):
        env, params = lake
        ids = jax.jit(lambda level, env=env, params=params: env.describe(env.reset_to_level(level, params)[1], params))
        assert spelled(env, ids(parse_maps(drawn)[0])) == text
    assert env.legend == ()


def test_map_law_agrees_with_rejection_in_numpy(levels):
    draws = np.random.default_rng(0)
    count, holes, lengths = np.zeros((2, 16)), [], []
    for _ in range(1500):
        while True:
            board = np.where(draws.random((4, 4)) < 0.8, FROZEN, HOLE)
            start, goal = draws.integers(16, size=2)
            if start == goal:
                continue
            board.reshape(-1)[[start, goal]] = START, GOAL
            if plan(board) is not None:
                break
        count[0, start] += 1
        count[1, goal] += 1
        holes.append((board == HOLE).sum())
        lengths.append(len(plan(board)))
    for level in levels:
        check_level(level)
    ours = np.stack([(levels == cell).mean(axis=0).reshape(-1) for cell in (START, GOAL)])
    # Standard error of the rarer cells: sqrt(p / 1500) = 0.6 points.
    assert np.abs(ours - count / 1500).max() < 0.025
    # 2.64 holes and 2.79 moves are means of 600 maps of the original.
    of_ours = (levels == HOLE).sum(axis=(1, 2)), [len(plan(level)) for level in levels]
    for found, expected, original in zip(of_ours, (holes, lengths), (2.64, 2.79)):
        assert abs(np.mean(found) - original) < 0.12
        shares = [np.bincount(values, minlength=16)[:16] / len(values) for values in (found, expected)]
        assert np.abs(shares[0] - shares[1]).max() < 0.05


def test_flood_fill_agrees_with_breadth_first_search():
    draws = np.random.default_rng(1)
    boards = np.where(draws.random((2000, 4, 4)) < 0.55, FROZEN, HOLE).astype(np.int8)
    ends = np.argsort(draws.random((2000, 16)), axis=1)[:, :2]
    rows = np.arange(2000)
    boards.reshape(2000, 16)[rows, ends[:, 0]] = START
    boards.reshape(2000, 16)[rows, ends[:, 1]] = GOAL
    found = np.asarray(jax.jit(jax.vmap(solvable))(boards))
    expected = np.array([plan(board) is not None for board in boards])
    assert 0.2 < expected.mean() < 0.8
    assert (found == expected).all()


def test_generation_ends_on_a_board_of_holes_of_another_size():
    keys = jax.random.split(jax.random.key(2), 64)
    boards = np.asarray(jax.jit(jax.vmap(lambda k: generate(k, 5, 3, jnp.float32(0.0))))(keys))
    assert boards.shape == (64, 5, 3)
    assert ((boards == HOLE).sum(axis=(1, 2)) == 13).all()
    assert all(len(plan(board)) == 1 for board in boards)


def test_oracle_agrees_with_value_iteration_on_gymnasiums_table(levels):
    best = best_actions(levels[:40], 8, 0.7)
    for level, policy in zip(levels, best):
        transitions, start = table(level, 0.7), np.argmax(level.reshape(-1) == START)

        def values(later, cell, transitions=transitions):
            return [sum(p * (r + (not end) * later[to]) for p, to, r, end in transitions[cell][a]) for a in range(4)]

        optimal, random, chosen = np.zeros((3, 16))
        for actions in reversed(policy):
            optimal = np.array([max(values(optimal, cell)) for cell in range(16)])
            random = np.array([np.mean(values(random, cell)) for cell in range(16)])
            chosen = np.array([values(chosen, cell)[actions[cell]] for cell in range(16)])
        np.testing.assert_allclose(optimal_success(level[None], 8, 0.7), [optimal[start]])
        np.testing.assert_allclose(random_success(level[None], 8, 0.7), [random[start]])
        np.testing.assert_allclose(chosen[start], optimal[start])


def test_plans_are_shortest_safe_paths_without_slip(levels):
    def intended(outcomes):
        """The one in the middle; the ends of an episode have one outcome."""
        return outcomes[len(outcomes) // 2]

    for level in levels[:64]:
        transitions, cell = table(level), int(np.argmax(level.reshape(-1) == START))
        reached, distance = {cell}, 0
        while int(np.argmax(level.reshape(-1) == GOAL)) not in reached:
            reached |= {intended(transitions[at][action])[1] for at in reached for action in range(4)}
            distance += 1
        actions = plan(level)
        assert len(actions) == distance
        for action in actions:
            _, cell, reward, _ = intended(transitions[cell][int(action)])
        assert reward == 1
    assert plan(parse_maps("SHG")[0]) is None


def test_maps_are_read_as_written():
    draws = np.random.default_rng(2)
    for height, width in ((1, 2), (1, 5), (4, 4), (6, 3)):
        boards = draws.integers(0, 2, (3, height * width)).astype(np.int8)
        for board in boards:
            board[draws.choice(board.size, 2, replace=False)] = START, GOAL
        boards = boards.reshape(3, height, width)
        drawn = "\n\n".join("\n".join("".join(LETTERS[code] for code in row) for row in board) for board in boards)
        found = parse_maps(drawn)
        assert {board.dtype for board in found} == {np.dtype(np.int8)}
        np.testing.assert_array_equal(found, boards)
        np.testing.assert_array_equal(stack_levels(found), boards)
    found = parse_maps("  sfg\r\n  FHF\r\n\r\n\r\nGS\r\n")  # indented, in lower case, from Windows
    assert [level.tolist() for level in found] == [[[START, FROZEN, GOAL], [FROZEN, HOLE, FROZEN]], [[GOAL, START]]]


def test_what_is_wrong_is_refused_by_name_and_place():
    for function, argument, message in (
        (make_frozen_lake, {"height": 0}, "0x4"),
        (make_frozen_lake, {"height": 1, "width": 2}, "three cells"),
        (make_frozen_lake, {"observation": "picture"}, "grid, coord, grid_coord"),
        (make_frozen_lake, {"success_rate": 1.5}, "success_rate is 1.5"),
        (make_frozen_lake, {"frozen_probability": float("nan")}, "frozen_probability is nan"),
        (parse_maps, "", "holds no map"),
        (parse_maps, "SF\nFx", "line 2, column 2: found 'x'"),
        (parse_maps, "\n  SFQ\n", "line 2, column 5: found 'Q'"),
        (parse_maps, "SFG\nFF", "line 2: a row of 2 cells follows rows of 3"),
        (parse_maps, "SG\n\nSF\nFF", "the map at line 3 has 1 starts .* 0 goals"),
        (parse_maps, "SSG", "2 starts"),
        (parse_maps, "S" + "F" * 64 + "G", "larger than 64x64"),
        (stack_levels, parse_maps("SG\n\nSFG"), "level 2 is 1x3 and the first one 1x2"),
        (stack_levels, [], "no levels"),
        (check_level, np.array([[START, GOAL, FROZEN, 7]]), "cell codes 0 to 7"),
        (check_level, np.zeros(3), r"shape \(3,\)"),
        (lambda level: ENV.reset_to_level(level, PARAMS), np.zeros((3, 4), np.int8), r"shape \(3, 4\).*4x4"),
    ):
        with pytest.raises(ValueError, match=message):
            function(**argument) if isinstance(argument, dict) else function(argument)
