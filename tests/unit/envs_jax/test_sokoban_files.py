import numpy as np
import pytest
from sokoban_boards import TWO_BOXES, board, generate_pack

from envs_jax.sokoban.levels import MAX_SIDE, check_level, load_pack, parse_xsb, stack_levels

TWO = """; a comment
Level 1: first steps
  #####
###   #
#.$@ *#
#######
by nobody

####
#+$#
#-_#
####"""


def test_ragged_levels_with_titles_and_comments_read_the_same_on_other_systems():
    first, second = parse_xsb(TWO)
    np.testing.assert_array_equal(first, board("0000000 0001110 0245130 0000000"))
    np.testing.assert_array_equal(second, board("0000 0640 0110 0000"))
    assert first.dtype == np.int8
    title = "-----------\nLevel 1 (#12, #14)\n====="
    changes = (("\n", "\r\n"), ("\n", "\r"), ("; a", "\n\n; a"), ("*#", "*#   "), ("Level 1: first steps", title))
    for change in changes:
        for found, expected in zip(parse_xsb(TWO.replace(*change)), (first, second), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_round_trip():
    levels = [*generate_pack(range(60)), *generate_pack(range(30), *TWO_BOXES), *parse_xsb(TWO)]
    written = ["\n".join("".join("# .*$@+"[code] for code in row) for row in level) for level in levels]
    for found, level in zip(parse_xsb("\n\n".join(written)), levels, strict=True):
        np.testing.assert_array_equal(found, level)
        check_level(found)


def test_malformed_text_is_refused_by_place():
    for text, message in (
        ("", "the text holds no level"),
        ("#####\n#@$x#\n#####", r"line 2, column 4: found 'x'; expected one of # @"),
        ("#####\n#@$.#\nmiddle\n#####", r"line 4, column 1: a row follows a title"),
        ("@$.", r"line 1, column 1: found '@' outside"),
        ("#####\n#@$. \n#####", r"line 2, column 2: found '@' outside the walls; expected a board closed"),
        ("\n#####\n #@$.#\n## ###", r"line 3, column 3: found '@' outside the walls"),
        ("#####\n# $.#\n#####", "the level at line 1 has 0 players"),
        ("#####\n#@$.#\n#####\n\n######\n#@@$.#\n######", "the level at line 5 has 2 players"),
        ("#####\n#@$ #\n#####", "1 boxes and 0 targets"),
        ("####\n#@ #\n####", "0 boxes and 0 targets"),
        ("####\n#@*#\n####", "solved already"),
        ("#" * (MAX_SIDE + 1), f"larger than {MAX_SIDE}x{MAX_SIDE}"),
        ("##\n" * (MAX_SIDE + 1), f"line {MAX_SIDE + 1}: the level is larger"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_xsb(text)


def test_stacking_pads_with_wall():
    first, second = parse_xsb(TWO)
    pack = stack_levels([first, second], 6, 8)
    assert (pack.shape, pack.dtype) == ((2, 6, 8), np.int8)
    np.testing.assert_array_equal(pack[1, :4, :4], second)
    assert pack[1].sum() == second.sum()
    with pytest.raises(ValueError, match="level 1 is 4x7; expected at most 4x6"):
        stack_levels([first, second], 4, 6)
    with pytest.raises(ValueError, match="level 2 has 0 players"):
        stack_levels([first, np.zeros((3, 3), np.int8)], 6, 8)


def test_packs_are_plain_arrays(tmp_path):
    levels, file = generate_pack(range(5)), tmp_path / "levels.npy"
    with pytest.raises(FileNotFoundError):
        load_pack(file)
    np.save(file, levels)
    np.testing.assert_array_equal(load_pack(file), levels)
    empty_third = np.where(np.arange(5)[:, None, None] == 2, 0, levels).astype(np.int8)
    for array, message in (
        (empty_third, "level 3 has 0 players"),
        (np.arange(2), r"int64\[2\]; expected a level pack"),
        (np.array([{}], dtype=object), r"holds object\[1\]; expected a level pack"),
    ):
        np.save(file, array, allow_pickle=True)
        with pytest.raises(ValueError, match=message):
            load_pack(file)
    file.write_text("#####")
    with pytest.raises(ValueError, match=r"is no .npy array file"):
        load_pack(file)
    for level, message in (
        (np.zeros(3), r"expected \(rows, columns\)"),
        (np.full((3, 3), 7), "codes 7 to 7; expected 0"),
    ):
        with pytest.raises(ValueError, match=message):
            check_level(level.astype(np.int8))
