"""Observations: tokens and text agree, tested exhaustively if all boards can be listed."""

import itertools

import jax
import numpy as np
import pytest
from prompt_texts import prefix_text

import envs_jax
from agentrl_jax.config import PromptConfig
from agentrl_jax.setup import build
from agentrl_jax.text.pieces import build_table, expand
from envs_jax.bandit import Bandit
from envs_jax.environment import NO_PIECE
from envs_jax.frozen_lake import FrozenLake
from envs_jax.sokoban import Sokoban

ROOM = 256
SEPARATOR = b"\x01"


def joined(rows, spellings, nothing):
    """Bytes of all rows, each followed by a separator; entries equal to `nothing` add no bytes."""
    width = max(map(len, spellings))
    assert not any(b"\0" in spelling or SEPARATOR in spelling for spelling in spellings)
    table = np.array([*spellings, b"", SEPARATOR], f"S{width}")
    ids = np.where(rows == nothing, len(spellings), rows)
    ids = np.concatenate([ids, np.full((len(ids), 1), len(spellings) + 1)], axis=1)
    return table[ids].tobytes().replace(b"\0", b"")


def assert_tokens_are_text(tokenizer, env, states, room=ROOM):
    """Compares all observations of a batch of states; returns how many there were."""
    table, params = build_table(tokenizer, env.pieces), env.default_params

    @jax.jit
    def observe(states):
        ids = jax.vmap(lambda state: env.describe(state, params))(states)
        return ids, *jax.vmap(lambda row: expand(table, row, room))(ids)

    ids, tokens, lengths = jax.device_get(observe(states))
    assert lengths.max() <= room
    spelled = [b"" if data is None or b"\0" in data or SEPARATOR in data else data for data in tokenizer.token_bytes]
    got = joined(tokens, spelled, tokenizer.pad_id)
    assert got == joined(ids, [piece.encode() for piece in env.pieces], NO_PIECE)
    text = "".join(env.pieces[i] for i in ids[0] if i != NO_PIECE)
    assert tokenizer.decode(tokens[0, : lengths[0]].tolist()) == text
    return len(ids)


def start(env, levels):
    return jax.jit(jax.vmap(lambda level: env.reset_to_level(level, env.default_params)[1]))(levels)


def lake_levels(count, seed):
    """Random 4x4 levels, solvable or not."""
    rng = np.random.default_rng(seed)
    levels = rng.integers(0, 2, (count, 16)).astype(np.int8)
    for level in levels:
        level[rng.choice(16, 2, replace=False)] = (2, 3)
    return levels.reshape(count, 4, 4)


def test_every_board_of_the_classic_lake(small):
    """All hole patterns with the start and the goal in their corners, the player on every cell: 2**14 * 16 boards."""
    env = FrozenLake(4, 4)
    levels = np.zeros((2**14, 16), np.int8)
    levels[:, 1:15] = (np.arange(2**14)[:, None] >> np.arange(14)) & 1
    levels[:, 0], levels[:, 15] = 3, 2
    state = start(env, levels.reshape(-1, 4, 4))
    count = 0
    for cells in np.split(np.eye(16, dtype=bool).reshape(16, 4, 4), 4):
        placed = [state.replace(player=np.broadcast_to(cell, (2**14, 4, 4))) for cell in cells]
        count += assert_tokens_are_text(small, env, jax.tree.map(lambda *x: np.concatenate(x), *placed), room=20)
    assert count == 2**18


def sokoban_boards():
    """All 5x5 boards with one box and one target: walls anywhere inside, the player, the box and the target too."""
    boards = []
    for player, box, target in itertools.product(range(9), repeat=3):
        if player == box:
            continue
        free = [cell for cell in range(9) if cell not in (player, box, target)]
        inside = np.ones((2 ** len(free), 9), np.int8)
        inside[:, free] = (np.arange(2 ** len(free))[:, None] >> np.arange(len(free))) & 1
        inside[:, target] = 2
        inside[:, box] = 3 if box == target else 4
        inside[:, player] = 6 if player == target else 5
        boards.append(inside)
    inside = np.concatenate(boards).reshape(-1, 3, 3)
    return np.pad(inside, ((0, 0), (1, 1), (1, 1)))


def test_every_board_of_five_by_five_sokoban(small):
    env = Sokoban(5, 5)
    boards = sokoban_boards()
    assert assert_tokens_are_text(small, env, start(env, boards), room=32) == len(boards) == 50688


def test_sampled_boards_in_coordinates(any_tokenizer):
    boards = sokoban_boards()[:: 50688 // 500]
    env = Sokoban(5, 5, observation="grid_coord")
    assert_tokens_are_text(any_tokenizer, env, start(env, boards))
    lake = FrozenLake(4, 4, "grid_coord")
    assert_tokens_are_text(any_tokenizer, lake, start(lake, lake_levels(300, seed=3)))


def test_sampled_grids_with_the_large_tokenizer(large):
    env = Sokoban(5, 5, vocabulary=("W", ".", "G", "C", "B", "A", "@"))
    assert_tokens_are_text(large, env, start(env, sokoban_boards()[::97]))


def test_bandit_before_and_after_the_draw(any_tokenizer):
    env = Bandit((("Engineer", "Teacher"), ("Phoenix", "Dragon")))
    params = env.default_params
    keys = jax.random.split(jax.random.key(0), 32)
    states = jax.jit(jax.vmap(lambda key: env.reset_env(key, params)[1]))(keys)
    assert_tokens_are_text(any_tokenizer, env, states)
    step = jax.jit(jax.vmap(lambda key, state, action: env.step_env(key, state, action, params)[1]))
    assert_tokens_are_text(any_tokenizer, env, step(keys, states, np.arange(32) % env.num_actions))


@pytest.mark.parametrize("style", ["compact", "ragen"])
@pytest.mark.parametrize("encoder", ["pieces", "canonical"])
@pytest.mark.parametrize("name", ["Bandit", "BanditPhoenix"])
def test_a_bandits_prompt_does_not_tell_which_arm_is_which(small, name, encoder, style):
    """The arms are only named in the order of display, with the low arm first in half of the levels."""
    env, params = envs_jax.make(name)
    task = build.make_task(name, env, params, PromptConfig(style=style, encoder=encoder), small)
    assert not any(arm in prefix_text(task.prompt, small) for arm in env.actions)
    states = [env.reset_env(jax.random.key(seed), params)[1] for seed in range(8)]
    texts = [env.render(state, params) for state in states]
    low, high = env.actions
    assert {text.index(low) < text.index(high) for text in texts} == {True, False}
