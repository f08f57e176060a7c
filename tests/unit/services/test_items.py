"""Items from ranges and from AgentGym's id files: what is accepted, and what is refused with which message."""

import json

import hypothesis
import hypothesis.strategies as st
import pytest

from agentrl_jax.errors import BadValue
from agentrl_jax.services import items as items_module
from agentrl_jax.services.items import item_index, load_items, parse_ranges, read_ids, read_mapping

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
    [("7", (7,)), ("0-3", (0, 1, 2, 3)), ("5-5", (5,)), ("0-2,10, 4 - 5", (0, 1, 2, 10, 4, 5)), (" 007\n", (7,))],
)
def test_ranges_name_items_in_order(text, expected):
    assert parse_ranges(text) == expected
    assert load_items(text, "babyai") == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "1,", "-3", "1--3", "1-2-3", "1 2", "9" * 13),
        *("5-3", "0-999999999999", "1,0-3", "0-9,abc", "0-9," + 5000 * "x"),
    ],
    ids=lambda text: text[:14],
)
def test_a_wrong_range_is_named(text):
    with pytest.raises(BadValue) as refused:
        load_items(text, "babyai")
    assert (refused.value.key, refused.value.value) == ("items", text)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("text", ["\u0663", "x", "1.5", "1;2"])
def test_what_is_no_range_is_a_path(text):
    with pytest.raises(BadValue) as refused:
        load_items(text, "babyai")
    assert refused.value.key == text
    with pytest.raises(BadValue) as refused:
        parse_ranges(text)
    assert (refused.value.key, refused.value.value) == ("items", text)


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
    with pytest.raises(BadValue) as refused:
        item_index(item_id, "webshop")
    assert (refused.value.key, refused.value.value) == ("item id", item_id)


def test_path_ids_of_alfworld_are_looked_up(tmp_path):
    write_mappings(tmp_path)
    names = [f"{kind}_{task}" for kind, task, _ in PATHS]
    path = write(tmp_path / "alfworld_train.json", ids(*names, "alfworld_5"))
    assert read_mapping(tmp_path) == dict(zip(names, (0, 2419)))
    assert load_items(str(path), "alfworld") == (0, 2419, 5)
    (tmp_path / "mappings_train.json").unlink()
    with pytest.raises(BadValue) as refused:
        load_items(str(path), "alfworld")
    assert (refused.value.key, refused.value.value) == (str(path), 0)
    assert names[0] in str(refused.value)


ENTRY = {"item_id": 0, "task_type": "a", "task_id": "b"}


@pytest.mark.parametrize(
    "entries",
    [
        *([ENTRY | {"item_id": item}] for item in ("0", True, -1)),
        [{"item_id": 0, "task_type": "a"}],
        [ENTRY, ENTRY | {"item_id": 1}],
    ],
)
def test_a_wrong_mapping_is_named(tmp_path, entries):
    path = write(tmp_path / "mappings_train.json", entries)
    with pytest.raises(BadValue) as refused:
        read_mapping(tmp_path)
    assert (refused.value.key, refused.value.value) == (str(path), len(entries) - 1)


def test_training_items_keep_their_order_and_may_repeat(tmp_path):
    write(tmp_path / "babyai_train.json", ids("babyai_3", "babyai_1", "babyai_3"))
    assert load_items(str(tmp_path / "babyai_train.json"), "babyai") == (3, 1, 3)
    assert read_ids(tmp_path / "babyai_train.json") == ("babyai_3", "babyai_1", "babyai_3")


@pytest.mark.parametrize(
    ("content", "value"),
    [
        *((text, None) for text in ("", "[", "[" * 100_000, "[NaN]", '[{"item_id": "a_1", "item_id": "a_2"}]', "[]")),
        (b'["\xff"]', None),
        ("{}", "dict"),
        ('["a_1"]', 0),
        ('[{"item_id": "a_1"}, {}]', 1),
        ('[{"item_id": 1}]', 0),
        ('[{"item_id": "a_1"}, {"item_id": "a_b"}]', 1),
    ],
    ids=lambda content: repr(content)[:24],
)
def test_a_wrong_file_is_named_with_its_entry(tmp_path, content, value):
    path = tmp_path / "webshop_train.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadValue) as refused:
        load_items(str(path), "webshop")
    assert (refused.value.key, refused.value.value) == (str(path), value)


def test_what_is_no_file_or_too_large_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(items_module, "MAX_BYTES", 1 << 20)
    large = write(tmp_path / "webshop_train.json", "[" + " " * (1 << 20) + "]")
    for path in (str(tmp_path / "absent.json"), str(tmp_path), "a\0b", str(large)):
        with pytest.raises(BadValue) as refused:
            load_items(path, "webshop")
        assert refused.value.key == path
