"""Rows of conversations and pairs: what is read, and what is refused by its place and its key."""

import dataclasses
import json

import pytest

from agentrl_jax.errors import UserError
from agentrl_jax.offline.conversations import Conversation, Data, Message, PreferencePair
from agentrl_jax.offline.read import read_data, read_items, read_pairs

ASKED, SAID = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
TALK = {"messages": [ASKED, SAID]}
HUMAN, GPT = {"from": "human", "value": "look", "loss": None}, {"from": "gpt", "value": "go", "loss": True}
MANUAL = [{"from": "human", "value": "The rules.", "loss": None}, {"from": "gpt", "value": "OK.", "loss": False}]


def lines(path, *rows, end="\n"):
    path.write_bytes(("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + end).encode())
    return path


def refused(*paths, read=read_data, **settings):
    with pytest.raises(UserError) as error:
        read([str(path) for path in paths], **settings)
    return error.value


def test_lines_of_messages(tmp_path):
    full = {
        "messages": [
            {"role": "system", "content": "Be \u2028 brief."},
            ASKED,
            SAID | {"loss": False},
            ASKED,
            SAID,
            ASKED,
        ],
        "task": "sums",
        "item": "7",
        "reward": 1 / 3,
        "success": True,
    }
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + json.dumps(full, ensure_ascii=False).encode() + b"\r\n\n" + json.dumps(TALK).encode()
    )
    data = read_data([path])
    first, second = data.conversations
    assert [message.loss for message in first.messages] == [False, False, False, False, True, False]
    assert first.messages[0].content == "Be \u2028 brief."
    assert (first.task, first.item, first.reward, first.success) == ("sums", "7", 0.33333334, True)
    assert first.start == ("Be \u2028 brief.", "2 + 2?")
    assert second == Conversation((Message("user", "2 + 2?"), Message("assistant", "4")))
    assert (second.source, second.reward, second.success) == (f"{path}:3", None, None)
    assert data.conversations[1:] == [second]
    assert (data.name, data.dropped) == ("a.jsonl", {})
    with pytest.raises(IndexError):
        data.conversations[2]


def test_the_digest_is_of_the_content_and_its_order(tmp_path):
    other = {"messages": [ASKED, SAID | {"content": "5"}]}
    both = read_data([lines(tmp_path / "both.jsonl", TALK, other)])
    apart = read_data([lines(tmp_path / "1.jsonl", TALK), lines(tmp_path / "2.jsonl", other)])
    assert both.digest == apart.digest
    assert both.digest[:16] == "bbfa63a254288fa5"
    assert list(both.conversations) == list(apart.conversations)
    assert apart.conversations[-1] == apart.conversations[1]
    assert read_data([lines(tmp_path / "b.jsonl", other, TALK)]).digest != both.digest
    for change in (
        {"task": "t"},
        {"item": "i"},
        {"reward": 0},
        {"success": False},
        {"messages": [ASKED, SAID | {"loss": False}]},
    ):
        assert read_data([lines(tmp_path / "c.jsonl", TALK | change, other)]).digest != both.digest


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ([TALK], "the row"),
        ({"text": "hi"}, "messages"),
        ({"item_id": "babyai_1"}, "conversations"),
        ({"prompt": [], "chosen": [], "rejected": []}, "chosen"),
        (TALK | {"weight": 2}, "weight"),
        (TALK | {"tools": []}, "tools"),
        (TALK | {"task": 3}, "task"),
        (TALK | {"item": "\ud800"}, "item"),
        (TALK | {"reward": "1"}, "reward"),
        (TALK | {"reward": True}, "reward"),
        (TALK | {"reward": 10**400}, "reward"),
        (TALK | {"reward": -3.5e38}, "reward"),
        (TALK | {"success": 1}, "success"),
        ({"messages": {}}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [ASKED]}, "messages"),
        ({"messages": [ASKED, SAID] * 2049}, "messages"),
        ({"messages": [SAID]}, "role 0"),
        ({"messages": [ASKED, ASKED, SAID]}, "role 1"),
        ({"messages": [ASKED, SAID, SAID]}, "role 2"),
        ({"messages": [ASKED, {"role": "system", "content": ""}, SAID]}, "role 1"),
        ({"messages": [ASKED, "4"]}, "messages.1"),
        ({"messages": [ASKED, {"role": "tool", "content": "4"}]}, "messages.1.role"),
        ({"messages": [ASKED, {"role": "human", "content": "4"}]}, "messages.1.role"),
        ({"messages": [ASKED, SAID | {"tool_calls": []}]}, "messages.1.tool_calls"),
        ({"messages": [ASKED, SAID | {"name": "x"}]}, "messages.1.name"),
        ({"messages": [ASKED, SAID | {"content": None}]}, "messages.1.content"),
        ({"messages": [ASKED, SAID | {"content": [{"type": "text"}]}]}, "messages.1.content"),
        ({"messages": [ASKED, SAID | {"content": "\udfff"}]}, "messages.1.content"),
        ({"messages": [ASKED, SAID | {"loss": 1}]}, "messages.1.loss"),
        ({"messages": [ASKED | {"loss": True}, SAID]}, "messages.0.loss"),
        ({"conversations": [HUMAN, GPT]}, "item_id"),
        ({"conversations": [HUMAN, GPT], "item_id": 3}, "item_id"),
        ({"conversations": [HUMAN, GPT | {"loss": None}], "item_id": "a_1"}, "conversations.1.loss"),
        ({"conversations": [HUMAN | {"loss": True}, GPT], "item_id": "a_1"}, "conversations.0.loss"),
        ({"conversations": [HUMAN, GPT | {"from": "user"}], "item_id": "a_1"}, "conversations.1.from"),
        ({"conversations": [HUMAN, GPT | {"role": "assistant"}], "item_id": "a_1"}, "conversations.1.role"),
    ],
)
def test_what_is_not_understood_is_refused_by_line_and_key(tmp_path, row, key):
    path = lines(tmp_path / "a.jsonl", TALK, row)
    error = refused(path)
    assert error.key == key
    assert str(error).startswith(f"{path}:2: ")


@pytest.mark.parametrize(
    "line", ['{"messages": [], "messages": []}', '{"messages": NaN}', "[" * 5000, "\ufeff\ufeff{}", '{"messages": [']
)
def test_what_is_no_strict_json_is_refused_by_line(tmp_path, line):
    path = lines(tmp_path / "a.jsonl", TALK, line, TALK)
    assert refused(path).key == f"{path}:2"
    assert "cut off" in str(refused(lines(path, TALK, '{"messages": [{"role"', end="")))
    path.write_bytes(b'{"messages": "\xff"}\n')
    assert refused(path).key == f"{path}:1"


def test_lines_have_a_largest_size_and_files_do_not_change(tmp_path, monkeypatch):
    path = lines(tmp_path / "a.jsonl", TALK, TALK)
    size = path.stat().st_size // 2
    monkeypatch.setattr("agentrl_jax.json_files.MAX_LINE", size)
    data = read_data([path])
    assert data.conversations[1].source == f"{path}:2"
    lines(path, TALK, TALK, TALK)
    with pytest.raises(UserError) as error:
        data.conversations[0]
    assert error.value.key == str(path)
    monkeypatch.setattr("agentrl_jax.json_files.MAX_LINE", size - 1)
    assert refused(path).key == f"{path}:1"


def test_agentgyms_arrays(tmp_path, monkeypatch):
    path = tmp_path / "traj.json"
    rows = [{"conversations": [*MANUAL, HUMAN, GPT, HUMAN], "item_id": "lmrl_maze_12"}]
    rows.append({"conversations": [HUMAN, GPT], "item_id": "x", "reward": 1, "success": 1, "task": "t"})
    path.write_text(json.dumps(rows))
    first, second = read_data([path]).conversations
    assert [message.role for message in first.messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [message.loss for message in first.messages] == [False, False, False, True, False]
    assert (first.task, first.item, first.start) == ("lmrl_maze", "12", ("", "look"))
    assert (second.task, second.item, second.reward, second.success, second.start) == (
        "t",
        "x",
        1.0,
        True,
        ("", "look"),
    )
    assert second.source == f"{path}: row 2"
    path.write_text(json.dumps([*rows, {"conversations": [], "item_id": "x_1"}]))
    assert str(refused(path)).startswith(f"{path}: row 3: ")
    path.write_text(json.dumps(rows[0]))
    assert refused(path).key == str(path)
    path.write_text("[]")
    assert refused(path).key == str(path)
    path.write_text(json.dumps(rows))
    monkeypatch.setattr("agentrl_jax.json_files.MAX_ARRAY", path.stat().st_size)
    assert len(read_data([path])) == 2
    monkeypatch.setattr("agentrl_jax.json_files.MAX_ARRAY", path.stat().st_size - 1)
    assert refused(path).value == path.stat().st_size


def test_rollout_logs_of_a_folder(tmp_path):
    talk = [ASKED, SAID, ASKED | {"content": "and?"}, SAID]
    for step in (10, 9):
        (tmp_path / f"step{step}").mkdir()
        row = {"item_id": f"maze_{step}", "conversations": talk, "reward": 0.5}
        (tmp_path / f"step{step}" / "0.json").write_text(json.dumps([row]))
    (tmp_path / "README.md").touch()
    data = read_data([tmp_path])
    assert [conversation.item for conversation in data.conversations] == ["9", "10"]
    assert [message.loss for message in data.conversations[0].messages] == [False, False, False, True]
    assert data.conversations[0].start == ("", "and?")


def test_items_without_conversations(tmp_path):
    path = tmp_path / "items.json"
    path.write_text(json.dumps([{"item_id": "maze_3"}, {"item_id": "maze_1", "conversations": []}]))
    assert read_items([path]) == ("maze_3", "maze_1")
    assert refused(path).key == "conversations"
    path.write_text(json.dumps([{"item_id": "maze_3", "conversations": [HUMAN]}]))
    assert refused(path, read=read_items).key == "conversations"
    path.write_text(json.dumps([{"id": "maze_3"}]))
    assert refused(path, read=read_items).key == "the row"


def test_preference_pairs(tmp_path):
    pair = {"id": 4, "prompt": [*MANUAL, HUMAN], "chosen": [GPT, HUMAN, GPT], "rejected": [GPT | {"value": "sit"}]}
    path = lines(tmp_path / "a.jsonl", pair, pair | {"id": "b", "task": "maze", "item": "3"})
    pairs = read_pairs([path])
    first, second = pairs.pairs
    said = (Message("assistant", "sit"),)
    assert first.rejected == said
    assert (first.id, second.id, second.task, second.item, second.source) == ("4", "b", "maze", "3", f"{path}:2")
    assert first.conversation("rejected") == Conversation((*first.prompt, *said))
    assert len(first.conversation("chosen").messages) == 6
    assert len({pairs.digest, read_pairs([path], "[:1]").digest, read_pairs([path], "[1:]").digest}) == 3
    for change, key in (
        ({"weight": 1}, "weight"),
        ({"id": 1.5}, "id"),
        ({"chosen": []}, "chosen"),
        ({"rejected": []}, "rejected"),
        ({"rejected": [HUMAN]}, "role 3"),
        ({"prompt": []}, "role 0"),
        ({"prompt": MANUAL}, "prompt"),
        ({"rejected": "no"}, "rejected"),
    ):
        assert refused(lines(path, pair | change), read=read_pairs).key == key
    assert refused(lines(path, TALK), read=read_pairs).key == "messages"
    del pair["chosen"]
    assert refused(lines(path, pair), read=read_pairs).key == "chosen"


def test_slices_are_those_of_tfds(tmp_path):
    path = lines(tmp_path / "a.jsonl", *(TALK | {"item": str(i)} for i in range(7)))

    def items(split):
        return "".join(conversation.item for conversation in read_data([path], split).conversations)

    assert [items(f"[{part}]") for part in ("80%:", ":80%", "2:4", "-2:", ":", "50%:-1")] == [
        *("6", "012345", "23", "56", "0123456", "45")
    ]
    part = read_data([path], "[1:]")
    assert [part.conversations[i].item for i in (0, -1)] == ["1", "6"]
    assert [each.item for each in part.conversations[1:3]] == ["2", "3"]
    for split in ("train", "train[:1]", "[1]", "[1:2", "[7:]", "[2:1]"):
        assert refused(path, split=split).key == "split"


def test_what_cannot_be_opened(tmp_path):
    (tmp_path / "data.parquet").touch()
    for path in (tmp_path, tmp_path / "none.jsonl", tmp_path / "data.parquet"):
        assert refused(path).key == str(path)
    assert refused(read=read_data).key == "paths"
    with pytest.raises(UserError):
        read_data("a.jsonl")


def test_contents_tell_levels_apart():
    def talk(system, asked, item):
        return Conversation((Message("system", system), Message("user", asked), Message("assistant", "x")), item=item)

    rows = [talk("s", "a", "0"), talk("s", "b", "1"), talk("t", "a", "2")]
    assert len({row.content() for row in rows}) == 3
    some = Data.of(rows, "made", {"other": 1}).part([0, 2], {"left out": 1})
    assert [each.item for each in some.conversations] == ["0", "2"]
    assert (some.dropped, some.name) == ({"left out": 1, "other": 1}, "made")
    assert some.digest == Data.of([rows[0], rows[2]], "").digest
    assert rows[0].content() == "23808e427e8f1cbef05b6a0bd7465726"
    acknowledged = (
        Message("user", "rules"),
        Message("assistant", "OK", loss=False),
        Message("user", "a"),
        Message("assistant", "x"),
    )
    assert Conversation(acknowledged).start == ("", "a")
    trained = tuple(dataclasses.replace(message, loss=True) for message in acknowledged)
    assert Conversation(trained).start == ("", "rules")
    with pytest.raises(ValueError, match="JSON"):
        dataclasses.replace(rows[0], reward=float("nan")).digest()
    assert PreferencePair((), (), (), source="a") == PreferencePair((), (), (), source="b")
