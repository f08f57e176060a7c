"""Iterations with boards, and what their episodes read."""

import yaml
from toy_agent import TOKENIZER

from agentrl_jax.config import decode

MOVES = ("Left", "Down", "Right", "Up")
COMMON = """
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
algo: {preset: starpo, dynamic_sampling: 2}
"""
LAKE_SYMBOLS = {
    "ice": "_",
    "ice+start": "_",
    "ice+hole": "O",
    "ice+goal": "G",
    "ice+player": "P",
    "ice+start+player": "P",
    "ice+hole+player+fallen": "X",
    "ice+goal+player+arrived": "√",
}


def load(text):
    """The configuration of a run, without the section that all share."""
    return decode(yaml.safe_load(text + COMMON), source="test")


def states_read(record, row, found):
    """What an episode read, and the scene of the state that it read: one pair for each turn, then of the last state."""
    for turn in range(record.num_turns[row]):
        before = [scene for scene in found if scene["action"] is None or scene["turn"] < turn]
        yield _text(record.observation[row, turn], record.observation_length[row, turn]), before[-1]
    if record.final_observation_length[row]:
        yield _text(record.final_observation[row], record.final_observation_length[row]), found[-1]


def _text(tokens, length):
    return TOKENIZER.decode(tokens[:length].tolist(), skip_special=False)


def board(scene, symbols):
    """A scene as the environment writes it."""
    return "\n".join("".join(symbols["+".join(cell)] for cell in row) for row in scene["cells"])
