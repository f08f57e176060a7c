"""Items from ranges and from AgentGym's id files: what is accepted, and what is refused with which message."""

import json

import hypothesis
import hypothesis.strategies as st
import pytest

from agentrl_jax.services import items as items_module
from agentrl_jax.services.items import (
    item_index,
    load_items,
    parse_ranges,
    read_ids,
    read_mapping,
)

PATHS = [
    ("look_at_obj_in_light-AlarmClock-None-DeskLamp-301", "trial_T20190907_174127_043461", 0),
    ("pick_two_obj_and_place-WineBottle-None-Cabinet-17", "trial_T20190909_014040_145528", 2419),
]


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def ids(*names):
    return [{"item_id": name, "conversations": None} for name in names]


def write_mappings(folder):
    for name, (kind, task, item) in zip(("train", "test"), PATHS):
        write(folder / f"mappings_{name}.json", [{"item_id": item, "task_type": kind, "task_id": task}])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", (7,)),
        ("0-3", (0, 1, 2, 3)),
        ("5-5", (5,)),
        ("0-2,10, 4 - 5", (0, 1, 2, 10, 4, 5)),
        (" 007\n", (7,)),
    ],
)
def test_ranges_name_items_in_order(text, expected):
    assert parse_ranges(text) == expected
    assert load_items(text, "babyai") == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a range; expected ranges such as 0-399,450, or a JSON file"),
        (",", "is not a range"),
        ("1,", "'' is not a range"),
        ("-3", "'-3' is not a range"),
        ("1--3", "is not a range"),
        ("1-2-3", "is not a range"),
        ("1 2", "is not a range"),
        ("9" * 13, "is not a range"),
        ("5-3", "'5-3' ends before it starts"),
        ("0-999999999999", "more than 10000000 items"),
        ("1,0-3", "named twice"),
        ("0-9,abc", "items '0-9,abc': 'abc' is not a range"),
        ("0-9," + 5000 * "x", "is not a range"),
    ],
)
def test_a_wrong_range_is_named(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        load_items(text, "babyai")


@pytest.mark.parametrize("text", ["\u0663", "x", "1.5", "1;2"])
def test_what_is_no_range_is_a_path(text):
    with pytest.raises(ValueError, match=r"cannot be read .* or ranges such as 0-399,450"):
        load_items(text, "babyai")
    with pytest.raises(ValueError, match="is not a range"):
        parse_ranges(text)


@hypothesis.given(st.sets(st.integers(0, 300)))
def test_every_set_of_items_can_be_written_as_ranges(chosen):
    starts = sorted(item for item in chosen if item - 1 not in chosen)
    ends = sorted(item for item in chosen if item + 1 not in chosen)
    text = ",".join(f"{start}-{end}" for start, end in zip(starts, ends))
    if chosen:
        assert parse_ranges(text) == tuple(sorted(chosen))


@hypothesis.given(st.text(st.sampled_from("0123456789,- \nx")))
def test_a_range_gives_items_or_a_value_error(text):
    hypothesis.assume(len(text) < 12)
    try:
        found = parse_ranges(text)
    except ValueError:
        return
    assert found
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("item_id", "environment", "item"),
    [
        ("webshop_6", "webshop", 6),
        ("lmrlgym_maze_24", "maze", 24),
        ("nq_3609", "searchqa", 3609),
        ("2wikimultihopqa_49170", "searchqa", 49170),
        ("alfworld_2619", "alfworld", 2619),
        ("12", "babyai", 12),
        ("textcraft_007", "textcraft", 7),
    ],
)
def test_the_number_after_the_last_line_is_the_item(item_id, environment, item):
    assert item_index(item_id, environment) == item


@pytest.mark.parametrize("item_id", ["", "webshop", "webshop_", "webshop_-1", "webshop_1.0", "webshop_x", "a_\u0663"])
def test_an_id_without_a_number_is_refused(item_id):
    with pytest.raises(ValueError, match="expected a number"):
        item_index(item_id, "webshop")


def test_path_ids_of_alfworld_are_looked_up(tmp_path):
    write_mappings(tmp_path)
    names = [f"{kind}_{task}" for kind, task, _ in PATHS]
    path = write(tmp_path / "alfworld_train.json", ids(*names, "alfworld_5"))
    assert read_mapping(tmp_path) == dict(zip(names, (0, 2419)))
    assert load_items(str(path), "alfworld") == (0, 2419, 5)
    (tmp_path / "mappings_train.json").unlink()
    with pytest.raises(ValueError, match=r"alfworld_train.json: entry 0: .*look_at.*mappings_\*.json.*name 1 items"):
        load_items(str(path), "alfworld")


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ([{"item_id": "0", "task_type": "a", "task_id": "b"}], "entry 0: expected an item_id from 0"),
        ([{"item_id": True, "task_type": "a", "task_id": "b"}], "entry 0: expected an item_id from 0"),
        ([{"item_id": -1, "task_type": "a", "task_id": "b"}], "entry 0: expected an item_id from 0"),
        ([{"item_id": 0, "task_type": "a"}], r"found the keys \['item_id', 'task_type'\]"),
        (
            [{"item_id": 0, "task_type": "a", "task_id": "b"}, {"item_id": 1, "task_type": "a", "task_id": "b"}],
            "entry 1: a/b names another item",
        ),
    ],
)
def test_a_wrong_mapping_is_named(tmp_path, entries, complaint):
    write(tmp_path / "mappings_train.json", entries)
    with pytest.raises(ValueError, match=f"mappings_train.json: .*{complaint}"):
        read_mapping(tmp_path)


def test_training_items_keep_their_order_and_may_repeat(tmp_path):
    write(tmp_path / "babyai_train.json", ids("babyai_3", "babyai_1", "babyai_3"))
    assert load_items(str(tmp_path / "babyai_train.json"), "babyai") == (3, 1, 3)
    assert read_ids(tmp_path / "babyai_train.json") == ("babyai_3", "babyai_1", "babyai_3")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "not valid JSON"),
        ("[", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[NaN]", "NaN is no JSON number"),
        ('[{"item_id": "a_1", "item_id": "a_2"}]', "key 'item_id' is given twice"),
        ("{}", "holds a JSON dict; expected an array"),
        ("[]", "holds no items"),
        ('["a_1"]', "entry 0 is a JSON str; expected an object"),
        ('[{"item_id": "a_1"}, {}]', "entry 1: item_id is a NoneType"),
        ('[{"item_id": 1}]', "entry 0: item_id is a int; expected text"),
        ('[{"item_id": "a_1"}, {"item_id": "a_b"}]', "entry 1: item id 'a_b'"),
    ],
)
def test_a_wrong_file_is_named_with_its_entry(tmp_path, content, complaint):
    path = write(tmp_path / "webshop_train.json", content)
    with pytest.raises(ValueError, match=f"webshop_train.json: .*{complaint}"):
        load_items(str(path), "webshop")


def test_bytes_that_are_no_text_a_missing_file_and_a_folder_are_named(tmp_path):
    path = tmp_path / "webshop_train.json"
    with pytest.raises(ValueError, match=r"webshop_train.json: cannot be read"):
        load_items(str(path), "webshop")
    path.write_bytes(b'["\xff"]')
    with pytest.raises(ValueError, match=r"webshop_train.json: not valid JSON"):
        load_items(str(path), "webshop")
    with pytest.raises(ValueError, match="cannot be read"):
        load_items(str(tmp_path), "webshop")
    with pytest.raises(ValueError, match="cannot be read"):
        load_items("a\0b", "webshop")


def test_a_file_that_is_too_large_is_not_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(items_module, "MAX_BYTES", 1 << 20)
    path = write(tmp_path / "webshop_train.json", "[" + " " * (1 << 20) + "]")
    with pytest.raises(ValueError, match="larger than 1 MiB"):
        load_items(str(path), "webshop")
