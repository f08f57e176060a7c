"""Files of tokenizers and levels with impossible numbers."""

import json

import numpy as np
import pytest
from damage import LEVELS, TOKENIZER, ends_in_one_line, uses_tokenizer

from envs_jax import packs
from envs_jax.frozen_lake import levels as maps
from envs_jax.sokoban import levels as xsb


@pytest.mark.parametrize("number", [2**31, 2**63, 10**30, -1, 1.5, True])
def test_a_tokenizer_with_an_id_beyond_all(number, bounded_memory):
    layout = json.loads(TOKENIZER)
    layout["model"]["vocab"]["zz"] = number
    assert not ends_in_one_line(lambda: uses_tokenizer(json.dumps(layout).encode()), ValueError)


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
