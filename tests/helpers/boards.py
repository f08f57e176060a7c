"""Boards, and the comparison of their observations' tokens with their text."""

import itertools

import jax
import numpy as np

from agentrl_jax.text.pieces import build_table, expand
from envs_jax.environment import NO_PIECE

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
    rng = np.random.default_rng(seed)
    levels = rng.integers(0, 2, (count, 16)).astype(np.int8)
    for level in levels:
        level[rng.choice(16, 2, replace=False)] = (2, 3)
    return levels.reshape(count, 4, 4)


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
