"""FrozenLake against Gymnasium's transition table, its maps against the statistics of the original, and its text."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from envs_jax.frozen_lake import FrozenLake, make_frozen_lake
from envs_jax.frozen_lake.generator import generate, solvable
from envs_jax.frozen_lake.levels import check_level, parse_maps, stack_levels
from envs_jax.frozen_lake.oracle import optimal_success, plan, random_success
from envs_jax.frozen_lake.text import FROZEN, GOAL, HOLE, START

LETTERS = "FHGS"
RATE = 1 / 3


@pytest.fixture(scope="module")
def lake():
    return make_frozen_lake()


@pytest.fixture(scope="module")
def levels(lake):
    env, params = lake
    keys = jax.random.split(jax.random.key(10), 4096)
    return np.asarray(jax.jit(jax.vmap(env.sample_level, in_axes=(0, None)))(keys, params))


@pytest.fixture(scope="module")
def step(lake):
    """Function that takes any number of steps (level, cell, action, key) in one program."""
    env, _ = lake

    def one(level, cell, action, key, params):
        _, state = env.reset_to_level(level, params)
        player = (jnp.arange(level.size) == cell).reshape(level.shape)
        state = state.replace(player=player)
        _, state, reward, terminated, info = env.step_env(key, state, action, params)
        ids = env.describe(state, params)
        return jnp.argmax(state.player), reward, terminated, info, jnp.sum(state.player), ids

    return jax.jit(jax.vmap(one, in_axes=(0, 0, 0, 0, None)))


@pytest.fixture(scope="module")
def slips():
    """Keys whose uniform number is, in this order, below 1/3, between 1/3 and 2/3, and above."""
    keys = jax.random.split(jax.random.key(5), 64)
    draws = np.asarray(jax.vmap(jax.random.uniform)(keys))
    return keys[np.array([np.argmax((draws > low) & (draws < low + 1 / 3)) for low in (0, 1 / 3, 2 / 3)])]


def table(level, rate=RATE):
    desc = ["".join(LETTERS[code] for code in row) for row in level]
    return FrozenLakeEnv(desc=desc, is_slippery=True, success_rate=rate).unwrapped.P


def test_every_transition_agrees_with_gymnasium(lake, levels, step, slips):
    """Each cell, action and direction of slip on twelve boards, with Gymnasium's rewards and terminations."""
    _, params = lake
    boards = levels[:12]
    cases = [
        (number, cell, action, slip)
        for number, board in enumerate(boards)
        for cell in np.flatnonzero((board != HOLE) & (board != GOAL))
        for action in range(4)
        for slip in range(3)
    ]
    number, cell, action, slip = (np.array(column) for column in zip(*cases))
    after, reward, terminated, info, players, _ = step(boards[number], cell, action, slips[slip], params)
    tables = [table(board) for board in boards]
    # Gymnasium lists the directions action - 1, action, action + 1; here the intended direction is first.
    expected = [tables[n][c][a][(1, 0, 2)[s]] for n, c, a, s in cases]
    assert [(n, float(r), t) for _, n, r, t in expected] == list(
        zip(after.tolist(), reward.tolist(), terminated.tolist())
    )
    np.testing.assert_allclose([p for p, *_ in expected], RATE)
    assert (np.asarray(players) == 1).all()
    assert (np.asarray(info["action_is_effective"]) == (np.asarray(after) != cell)).all()
    assert (np.asarray(info["success"]) == (np.asarray(reward) == 1)).all()


@pytest.mark.parametrize("rate", [1.0, 0.8, 0.0])
def test_slips_have_the_stated_probabilities(lake, step, rate):
    _, params = lake
    level = np.full((4, 4), FROZEN, np.int8)
    level[0, 0], level[3, 3] = START, GOAL
    count = 4096
    keys = jax.random.split(jax.random.key(7), count)
    params = params.replace(success_rate=jnp.float32(rate))
    after = step(np.broadcast_to(level, (count, 4, 4)), np.full(count, 5), np.full(count, 2), keys, params)[0]
    shares = {c: float(np.mean(np.asarray(after) == c)) for c in (6, 1, 9)}
    expected = {6: rate, 1: (1 - rate) / 2, 9: (1 - rate) / 2}
    assert sum(shares.values()) == 1
    for cell, share in expected.items():
        # Five standard deviations; exact if the probability is 0 or 1.
        assert abs(shares[cell] - share) <= 5 * np.sqrt(share * (1 - share) / count), (cell, shares)


def test_every_reachable_observation_spells_the_board(lake, levels, step, slips):
    """All cells of sixteen boards, after the step that led there: the text is the map with the player's symbol."""
    env, params = lake
    cases = [(number, cell) for number in range(16) for cell in range(16)]
    number, cell = (np.array(column) for column in zip(*cases))
    after, *_, ids = step(levels[number], cell, np.full(len(cases), -1), slips[np.zeros(len(cases), int)], params)
    assert (np.asarray(after) == cell).all()
    for n, c, row in zip(number, cell, np.asarray(ids)):
        symbols = [{"F": "_", "S": "_", "H": "O", "G": "G"}[LETTERS[code]] for code in levels[n].reshape(-1)]
        symbols[c] = {"_": "P", "O": "X", "G": "√"}[symbols[c]]
        expected = "\n".join("".join(symbols[i : i + 4]) for i in range(0, 16, 4))
        assert "".join(env.pieces[i] for i in row if i >= 0) == expected


def test_ids_that_are_no_action_stay(lake, levels, step, slips):
    _, params = lake
    actions = np.array([-1, 4, 9, -7])
    start = np.argmax(levels[0].reshape(-1) == START)
    after, reward, terminated, info, *_ = step(
        np.stack([levels[0]] * 4), np.full(4, start), actions, slips[np.array([0, 1, 2, 1])], params
    )
    assert (np.asarray(after) == start).all()
    assert not np.asarray(info["action_is_effective"]).any()
    assert not np.asarray(terminated).any()
    assert not np.asarray(reward).any()


def test_coordinates_name_start_goal_player_and_holes():
    env, params = make_frozen_lake(3, 4, observation="grid_coord")
    _, state = env.reset_to_level(parse_maps("FFHS\nFGFF\nHFFF")[0], params)
    state = jax.jit(env.step_env)(jax.random.key(0), state, jnp.int32(9), params)[1]
    text = "Board: 3 rows, 4 columns\nStart: (0,3)\nGoal: (1,1)\nYou: (0,3)\nHoles: (0,2) (2,0)"
    assert env.render(state, params) == text + "\n__OP\n_G__\nO___"
    env, params = make_frozen_lake(1, 3, observation="coord")
    _, state = env.reset_to_level(parse_maps("SFG")[0], params)
    assert env.render(state, params) == "Board: 1 rows, 3 columns\nStart: (0,0)\nGoal: (0,2)\nYou: (0,0)\nHoles: none"
    assert env.legend == ()


def test_map_law_has_the_statistics_of_the_original(levels):
    """Shares measured on 600 maps of the original, as percent; within 4 points, about two of its standard errors."""
    holes = (levels == HOLE).sum(axis=(1, 2))
    lengths = np.array([len(plan(level)) for level in levels[:1500]])
    assert abs(holes.mean() - 2.64) < 0.12
    assert abs(lengths.mean() - 2.79) < 0.12
    for value, share in enumerate((6, 15, 27, 25, 19)):
        assert abs(100 * np.mean(holes == value) - share) < 4, value
    for value, share in enumerate((22, 26, 22, 18, 8), start=1):
        assert abs(100 * np.mean(lengths == value) - share) < 4, value


def test_map_law_agrees_with_rejection_in_numpy(levels):
    """The joint distribution of start and goal and the share of frozen cells, against a separate rejection sampler."""
    draws = np.random.default_rng(0)
    count = np.zeros((2, 16))
    frozen = []
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
        frozen.append((board == FROZEN).sum())
    ours = np.stack([(levels == cell).mean(axis=0).reshape(-1) for cell in (START, GOAL)])
    # Standard error of the rarer cells: sqrt(p / 1500) = 0.6 points.
    assert np.abs(ours - count / 1500).max() < 0.025
    assert abs((levels == FROZEN).sum(axis=(1, 2)).mean() - np.mean(frozen)) < 0.15


def test_every_generated_level_is_solvable_and_whole(levels):
    for level in levels:
        check_level(level)
        assert plan(level) is not None


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


def test_generation_ends_on_a_board_of_holes():
    keys = jax.random.split(jax.random.key(2), 64)
    levels = np.asarray(jax.jit(jax.vmap(lambda k: generate(k, 4, 4, jnp.float32(0.0))))(keys))
    assert ((levels == HOLE).sum(axis=(1, 2)) == 14).all()
    assert all(len(plan(level)) == 1 for level in levels)


def test_random_and_optimal_success_are_in_the_stated_bands(levels):
    assert 0.21 < random_success(levels, 10, RATE).mean() < 0.23
    assert 0.48 < optimal_success(levels, 10, RATE).mean() < 0.51


def test_oracle_agrees_with_value_iteration_on_gymnasiums_table(levels):
    for level in levels[:40]:
        transitions = table(level, 0.7)
        values = {"best": np.zeros(16), "mean": np.zeros(16)}
        for _ in range(8):
            for name, choose in (("best", max), ("mean", lambda q: sum(q) / 4)):
                old = values[name]
                values[name] = np.array(
                    [
                        choose([sum(p * (r + (not t) * old[n]) for p, n, r, t in transitions[s][a]) for a in range(4)])
                        for s in range(16)
                    ]
                )
        start = np.argmax(level.reshape(-1) == START)
        np.testing.assert_allclose(optimal_success(level[None], 8, 0.7), [values["best"][start]])
        np.testing.assert_allclose(random_success(level[None], 8, 0.7), [values["mean"][start]])


def test_random_play_succeeds_as_often_as_the_oracle_says(lake, levels):
    """The whole environment at once: 16384 random episodes against the exact probability on their levels."""
    env, params = lake
    choices = jax.random.randint(jax.random.key(1), (4096, 4, 10), 0, 4)
    noise = jax.random.split(jax.random.key(2), (4096, 4, 10))

    def episode(level, actions, keys):
        _, state = env.reset_to_level(level, params)
        state, rewards = jax.lax.scan(lambda s, x: env.step_env(x[1], s, x[0], params)[1:3], state, (actions, keys))
        return env.success(state, params), jnp.sum(rewards)

    play = jax.jit(jax.vmap(jax.vmap(episode, in_axes=(None, 0, 0))))
    success, rewards = play(levels, choices, noise)
    exact = random_success(levels, 10, RATE)
    error = np.sqrt((exact * (1 - exact)).mean() / success.size)
    assert abs(float(success.mean()) - exact.mean()) < 5 * error
    assert (np.asarray(success) == np.asarray(rewards)).all()


def test_plans_are_shortest_safe_paths_without_slip(lake, levels, step):
    _, params = lake
    params = params.replace(success_rate=jnp.float32(1.0))
    plans = [plan(level) for level in levels[:64]]
    cells = np.array([np.argmax(level.reshape(-1) == START) for level in levels[:64]])
    assert [len(p) for p in plans] == [_distance(level) for level in levels[:64]]
    done = np.zeros(64, bool)
    for t in range(max(len(p) for p in plans)):
        actions = np.array([p[t] if t < len(p) else -1 for p in plans])
        cells, _, terminated, info, *_ = step(
            levels[:64], cells, actions, jax.random.split(jax.random.key(t), 64), params
        )
        assert (np.asarray(terminated) == np.asarray(info["success"])).all()
        done |= np.asarray(info["success"])
    assert done.all()


def _distance(level):
    """Shortest safe path by repeated relaxation."""
    far = np.where(level == START, 0, 99)
    for _ in range(16):
        around = np.pad(far, 1, constant_values=99)
        best = np.minimum.reduce([around[2:, 1:-1], around[:-2, 1:-1], around[1:-1, 2:], around[1:-1, :-2]]) + 1
        far = np.where(level == HOLE, 99, np.minimum(far, best))
    return far[level == GOAL].item()


def test_a_pack_replaces_the_generator(lake):
    env, params = lake
    pack = stack_levels(parse_maps("SFFF\nFHFH\nFFFH\nHFFG\n\nGFFF\nFFFF\nFFFF\nFFFS\n\nSGHH\nHHHH\nHHHH\nHHHH"))
    params = params.replace(levels=jnp.asarray(pack))
    keys = jax.random.split(jax.random.key(0), 300)
    _, states = jax.jit(jax.vmap(env.reset_env, in_axes=(0, None)))(keys, params)
    rows = [int(np.argmax((pack == level).all(axis=(1, 2)))) for level in np.asarray(states.level)]
    assert (pack[rows] == np.asarray(states.level)).all()
    assert np.bincount(rows, minlength=3).min() > 60


def test_levels_of_another_size_are_refused(lake):
    env, params = lake
    with pytest.raises(ValueError, match=r"shape \(3, 4\).*4x4"):
        env.reset_to_level(np.zeros((3, 4), np.int8), params)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"height": 0}, "0x4"),
        ({"height": 1, "width": 2}, "three cells"),
        ({"observation": "picture"}, "grid, coord, grid_coord"),
        ({"success_rate": 1.5}, "success_rate is 1.5"),
        ({"frozen_probability": float("nan")}, "frozen_probability is nan"),
    ],
)
def test_bad_options_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_frozen_lake(**arguments)


cell_rows = st.tuples(st.integers(1, 6), st.integers(2, 6)).flatmap(
    lambda size: st.tuples(
        st.lists(st.sampled_from([FROZEN, HOLE]), min_size=size[0] * size[1], max_size=size[0] * size[1]),
        st.permutations(range(size[0] * size[1])),
    ).map(lambda drawn: _with_ends(drawn[0], drawn[1], size))
)


def _with_ends(cells, order, size):
    board = np.array(cells, np.int8)
    board[order[0]], board[order[1]] = START, GOAL
    return board.reshape(size)


@settings(max_examples=60)
@given(st.lists(cell_rows, min_size=1, max_size=4))
def test_maps_are_read_as_written(boards):
    maps = ["\n".join("".join("FHGS"[code] for code in row) for row in board) for board in boards]
    back = parse_maps("\n\n".join(maps))
    assert len(back) == len(boards)
    for found, expected in zip(back, boards):
        assert found.dtype == np.int8
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no map"),
        ("SF\nFx", "line 2, column 2: found 'x'"),
        ("\n  SFQ\n", "line 2, column 5: found 'Q'"),
        ("SFG\nFF", "line 2: a row of 2 cells follows rows of 3"),
        ("SG\n\nSF\nFF", "the map at line 3 has 1 starts .* 0 goals"),
        ("SSG", "2 starts"),
        ("S" + "F" * 64 + "G", "larger than 64x64"),
    ],
)
def test_bad_maps_are_refused_by_line_and_column(text, message):
    with pytest.raises(ValueError, match=message):
        parse_maps(text)


def test_maps_may_be_indented_lower_case_and_from_windows():
    found = parse_maps("  sfg\r\n  FHF\r\n\r\n\r\nGS\r\n")
    assert [level.tolist() for level in found] == [[[START, FROZEN, GOAL], [FROZEN, HOLE, FROZEN]], [[GOAL, START]]]


def test_packs_hold_levels_of_one_size():
    with pytest.raises(ValueError, match="level 2 is 1x3 and the first one 1x2"):
        stack_levels(parse_maps("SG\n\nSFG"))
    with pytest.raises(ValueError, match="no levels"):
        stack_levels([])
    with pytest.raises(ValueError, match="cell codes 0 to 7"):
        check_level(np.array([[START, GOAL, FROZEN, 7]]))
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        check_level(np.zeros(3))


def test_plan_is_none_without_a_path():
    assert plan(parse_maps("SHG")[0]) is None


def test_other_sizes_generate():
    env = FrozenLake(5, 3)
    level = jax.jit(env.sample_level)(jax.random.key(0), env.default_params)
    chex.assert_shape(level, (5, 3))
    assert plan(np.asarray(level)) is not None
