"""Damaged files of tokenizers and levels."""

import io
import json
import random

import numpy as np
import pytest
from damage import damaged, ends_in_one_line, with_odd_values

from agentrl_jax.config import TaskConfig
from agentrl_jax.errors import UserError
from agentrl_jax.setup.level_files import make_env
from agentrl_jax.text import tokenizer
from envs_jax import packs
from envs_jax.frozen_lake import levels as maps
from envs_jax.sokoban import levels as xsb

XSB = "; c\n######\n#@$. #\n######\n\nLevel 1\n####\n#@ #\n#$ #\n#. #\n####\n"
MAPS = "SFFF\nFHFH\nFFFH\nHFFG\n\nSFFF\nFFFF\nFFFF\nFFFG\n"
TOKENIZER = tokenizer.small_files()["tokenizer.json"]


def uses_tokenizer(content):
    made = tokenizer.from_files({"tokenizer.json": content}, "a folder")
    made.decode(made.encode("Up <answer>é\n"))
    made.decode(range(made.vocab_size), skip_special=False)


@pytest.mark.parametrize("number", [2**31, 2**63, 10**30, -1, 1.5, True])
def test_a_tokenizer_with_an_id_beyond_all(number, bounded_memory):
    layout = json.loads(TOKENIZER)
    layout["model"]["vocab"]["zz"] = number
    assert not ends_in_one_line(lambda: uses_tokenizer(json.dumps(layout).encode()), ValueError)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_damaged_tokenizers(seed, bounded_memory, capfd):
    rng = random.Random(seed)
    layout = json.loads(TOKENIZER)
    for number in range(400):
        content = damaged(TOKENIZER, rng) if number % 4 == 0 else json.dumps(with_odd_values(layout, rng)).encode()
        ends_in_one_line(lambda content=content: uses_tokenizer(content), ValueError)
    assert capfd.readouterr().err == ""  # a panic of the library prints by itself


def npy(pack):
    stream = io.BytesIO()
    np.save(stream, pack)
    return stream.getvalue()


LEVELS = {
    ("SimpleSokoban", "txt"): XSB.encode(),
    ("FrozenLake", "txt"): MAPS.encode(),
    ("SimpleSokoban", "npy"): npy(xsb.stack_levels(xsb.parse_xsb(XSB), 6, 6)),
    ("FrozenLake", "npy"): npy(maps.stack_levels(maps.parse_maps(MAPS))),
}
WORDS = [bytes([byte]) for byte in b"#@$.*+SFHG \n\r\x0b\x85;-_=059()"] + [
    b"99999999999",
    b"\xe2\x80\xa8",
    b"\0",
    b"1L",
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LEVELS, ids="-".join)
def test_damaged_levels(kind, tmp_path, bounded_memory):
    env, suffix = kind
    rng = random.Random(env + suffix)
    file = tmp_path / f"levels.{suffix}"
    for _ in range(400):
        file.write_bytes(damaged(LEVELS[kind], rng, WORDS))
        ends_in_one_line(lambda: make_env(TaskConfig(env=env, groups=1, levels=str(file))), UserError)


def test_a_pack_is_not_allocated_before_its_file_is_measured(tmp_path, bounded_memory):
    file = tmp_path / "levels.npy"
    header = LEVELS["FrozenLake", "npy"].replace(b"(2, 4, 4), }        ", b"(99999999, 4, 4), } ")
    assert b"99999999" in header
    file.write_bytes(header)
    with pytest.raises(ValueError, match="cells; expected at most"):
        maps.load_pack(file)
    file.write_bytes(header.replace(b"(99999999, 4, 4), } ", b"(9999999, 4, 4), }  "))
    with pytest.raises(ValueError, match="has not the size"):
        maps.load_pack(file)


def test_one_large_level_among_many_small_ones_is_refused():
    with pytest.raises(ValueError, match=f"expected at most {packs.MAX_CELLS}"):
        packs.check_cells(200_000, 64, 64)


@pytest.mark.parametrize("levels", [xsb, maps])
def test_levels_are_judged_together_as_one_by_one(levels):
    codes = np.random.default_rng(0).integers(-1, 8, (2000, 2, 3)).astype(np.int8)
    codes[1000:] = np.clip(codes[1000:], 0, 3 if levels is maps else 6)

    def can_be_played(level):
        return ends_in_one_line(lambda: levels.check_level(level), ValueError)

    judged = levels.playable(codes)
    assert judged.any()
    np.testing.assert_array_equal(judged, [can_be_played(level) for level in codes])
