"""Damaged files of tokenizers and levels."""

import json
import random

import pytest
from damage import damaged, ends_in_one_line, with_odd_values
from sound_files import LEVELS, TOKENIZER, uses_tokenizer

from agentrl_jax.config import TaskConfig
from agentrl_jax.errors import UserError
from agentrl_jax.setup.level_files import make_env

WORDS = [bytes([byte]) for byte in b"#@$.*+SFHG \n\r\x0b\x85;-_=059()"] + [
    b"99999999999",
    b"\xe2\x80\xa8",
    b"\0",
    b"1L",
]


@pytest.mark.parametrize("seed", range(2))
def test_damaged_tokenizers(seed, bounded_memory, capfd):
    rng = random.Random(seed)
    layout = json.loads(TOKENIZER)
    for number in range(400):
        content = damaged(TOKENIZER, rng) if number % 4 == 0 else json.dumps(with_odd_values(layout, rng)).encode()
        ends_in_one_line(lambda content=content: uses_tokenizer(content), ValueError)
    assert capfd.readouterr().err == ""  # a panic of the library prints by itself


@pytest.mark.parametrize("kind", LEVELS, ids="-".join)
def test_damaged_levels(kind, tmp_path, bounded_memory):
    env, suffix = kind
    rng = random.Random(env + suffix)
    file = tmp_path / f"levels.{suffix}"
    for _ in range(400):
        file.write_bytes(damaged(LEVELS[kind], rng, WORDS))
        ends_in_one_line(lambda: make_env(TaskConfig(env=env, groups=1, levels=str(file))), UserError)
