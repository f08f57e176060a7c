"""Folders of TFDS, files that are written, and the way from a recorded run through all of them."""

import dataclasses
import json
import pickle
import shutil
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_run

from agentrl_jax.errors import UserError
from agentrl_jax.formats.episodes import read_episodes
from agentrl_jax.offline import tfds_folders
from agentrl_jax.offline.conversations import Conversation, Data, Message
from agentrl_jax.offline.export import write_agenttraj, write_jsonl, write_rlds
from agentrl_jax.offline.read import read_data, read_items
from agentrl_jax.offline.recorded import CUT_REPLY, conversations_of, is_cut
from agentrl_jax.rollout.contexts import Window

tfds = pytest.importorskip("tensorflow_datasets")


def talk(number, **known):
    said = Message("assistant", f"é\u2028{number}", loss=number % 2 == 0)
    return Conversation((Message("user", "?"), said, Message("user", ""), Message("assistant", "!")), **known)


KNOWN = [{}, {"task": "a", "item": "b_c"}, {"task": "a_b", "item": "1", "reward": 0.1}, {"item": "x", "success": False}]
DATA = Data.of([talk(i, **KNOWN[i % 4]) for i in range(10)] + [talk(9, success=True, reward=-1.0)], "made", {"why": 2})


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored") / "talks"
    tfds_folders.write_folder(DATA, folder)
    return folder


@pytest.fixture
def copied(stored, tmp_path):
    """A copy of a folder to damage, its file of records, and a function that changes a JSON file of it."""
    folder = tmp_path / "copy"
    shutil.copytree(stored, folder)

    def change(name, **keys):
        known = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(known | keys))

    (records,) = folder.glob("*.array_record*")
    return folder, records, change


def refused(read, *words):
    with pytest.raises(UserError) as error:
        read(*words)
    return error.value


def test_what_was_written_is_read_again(stored):
    data = read_data([stored])
    assert list(data.conversations) == list(DATA.conversations)
    assert (data.digest, data.dropped, data.name) == (DATA.digest, {"why": 2}, "talks train")
    assert data.conversations[-1].source.endswith(": row 11")
    assert data.conversations[2:4] == DATA.conversations[2:4]
    assert pickle.loads(pickle.dumps(data.conversations))[3] == DATA.conversations[3]
    with pytest.raises(IndexError):
        data.conversations[11]
    assert {path.name.partition("-")[0] for path in stored.iterdir()} == {
        *("agentrl_trajectories", "dataset_info.json", "features.json", "metadata.json")
    }


def test_a_row_is_named_by_its_file_and_its_number_there(tmp_path):
    rows = tfds_folders._Rows(tmp_path, "train", [("a", 2), ("b", 1), ("c", 2)])
    assert len(rows) == 5
    assert [rows._place(index) for index in range(5)] == [("a", 1), ("a", 2), ("b", 1), ("c", 1), ("c", 2)]


def test_tfds_opens_it_and_its_sub_splits_are_ours(stored):
    builder = tfds.builder_from_directory(stored)
    assert builder.info.metadata["digest"] == DATA.digest
    for part in ("80%:", ":25%", "3:7", "-2:"):
        theirs = [row["messages"]["content"][1].decode() for row in builder.as_data_source(split=f"train[{part}]")]
        ours = read_data([stored], f"train[{part}]")
        assert theirs == [conversation.messages[1].content for conversation in ours.conversations]
        assert len(ours) < len(DATA)
    assert refused(read_data, [stored], "test").key == "split"


def test_a_folder_is_new_or_not_written(stored, tmp_path):
    before = {path.name: path.read_bytes() for path in stored.iterdir()}
    assert refused(tfds_folders.write_folder, DATA, stored).key == str(stored)
    assert {path.name: path.read_bytes() for path in stored.iterdir()} == before

    def broken():
        yield tfds_folders._example(DATA.conversations[0])
        raise RuntimeError("stopped")

    builders = tfds_folders.import_builders()
    with pytest.raises(RuntimeError):
        tfds_folders.build(builders.AgentrlTrajectories, {"train": broken()}, {}, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_changed_file_is_refused_by_name(copied):
    folder, records, change = copied
    whole = records.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], whole[:-9] + b"x" + whole[-8:]):
        records.write_bytes(damaged)
        assert refused(read_data, [folder]).key == str(records)
    records.unlink()
    assert refused(read_data, [folder]).key == str(records)
    records.write_bytes(whole)
    change("metadata.json", digest="0" * 64)
    assert refused(read_data, [folder]).key == str(folder)
    (folder / "metadata.json").write_text("{")
    assert refused(read_data, [folder]).key == str(folder / "metadata.json")


def test_folders_of_others_are_read_if_they_are_whole(copied, tmp_path):
    folder, records, change = copied
    (folder / "metadata.json").unlink()
    assert read_data([folder]).digest == DATA.digest
    whole = records.read_bytes()
    for damaged in (b"", whole[:-1], whole[: len(whole) // 2]):
        records.write_bytes(damaged)
        assert refused(read_data, [folder]).key == str(records)
    records.write_bytes(whole)
    splits = json.loads((folder / "dataset_info.json").read_text())["splits"]
    change("dataset_info.json", splits=[splits[0] | {"shardLengths": ["10"]}])
    assert refused(read_data, [folder]).key == str(records)
    shutil.copy(records, folder.parent / "agentrl_trajectories")
    change("dataset_info.json", splits=[splits[0] | {"filepathTemplate": "../{DATASET}"}])
    assert refused(read_data, [folder]).key == str(folder / "../agentrl_trajectories")
    change("dataset_info.json", splits=[splits[0] | {"shardLengths": []}])
    assert refused(read_data, [folder]).key == str(folder / "dataset_info.json")
    change("dataset_info.json", splits=[splits[0], splits[0] | {"name": "test"}])
    assert refused(read_data, [folder]).key == "split"
    for form, why in (("parquet", "sub-splits"), ("tfrecord", "TensorFlow"), ("a", "not supported")):
        change("dataset_info.json", fileFormat=form)
        error = refused(read_data, [folder])
        assert (error.key, error.value) == (str(folder), form)
        assert why in str(error)


def test_other_features_are_refused_before_what_they_name_is_imported(copied, tmp_path, monkeypatch):
    folder, _, change = copied
    (tmp_path / "foreign.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    change("features.json", pythonClassName="foreign.Feature")
    assert refused(read_data, [folder]).key == str(folder / "features.json")
    (folder / "features.json").unlink()
    assert refused(read_data, [folder]).key == str(folder / "features.json")


def test_rows_that_are_no_conversation_are_refused_by_file_and_row(tmp_path):
    wrong = Conversation((Message("user", "?"), Message("user", "?"), Message("assistant", "!")))
    data = Data.of([DATA.conversations[0], wrong], "wrong")
    tfds_folders.write_folder(data, tmp_path / "wrong")
    error = refused(read_data, [tmp_path / "wrong"])
    assert (error.key, error.value) == ("role 1", "user")
    assert ": row 2: " in str(error)


def test_without_tfds_it_is_said(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "agentrl_jax.offline.tfds_builders", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    monkeypatch.delattr("agentrl_jax.offline.tfds_builders", raising=False)
    error = refused(tfds_folders.write_folder, DATA, tmp_path / "new")
    assert error.key == "tensorflow_datasets"
    assert "agentrl_jax[data]" in str(error)


def test_files_are_written_and_read_again(tmp_path):
    for write, name in ((write_jsonl, "a.jsonl"), (write_agenttraj, "a.json")):
        write(DATA, tmp_path / name)
        data = read_data([tmp_path / name])
        assert (data.digest, list(data.conversations)) == (DATA.digest, list(DATA.conversations))
        assert refused(write, DATA, tmp_path / name).key == str(tmp_path / name)
    rows = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [row["item_id"] for row in rows[:4]] == ["none", "a_b_c", "a_b_1", "x"]
    assert ["task" in row for row in rows[:4]] == [True, True, False, False]
    assert rows[0]["conversations"][:2] == [
        {"from": "human", "value": "?", "loss": None},
        {"from": "gpt", "value": "é\u20280", "loss": True},
    ]
    (tmp_path / "items.json").write_text(json.dumps([{"item_id": row["item_id"]} for row in rows[:2]]))
    assert read_items([tmp_path / "items.json"]) == ("none", "a_b_c")


def test_a_recorded_run_goes_through_every_format(recorded_run, tmp_path):
    """Run, AgentTraj, TFDS, JSONL: the same conversations, with the system message and what was not answered."""
    run, record = recorded_run
    data = read_data([run])
    played = [episode for episode in read_episodes(run) if not episode.failed]
    cut = [[is_cut(turn) for turn in episode.turns] for episode in played]
    assert data.dropped == {"the environment failed": 1, CUT_REPLY: sum(map(sum, cut))}
    assert len(data) == sum(not all(of) for of in cut)
    first = data.conversations[0]
    assert (first.task, first.success, first.reward) == (
        "SimpleSokoban",
        bool(record.success[0].any()),
        record.returns[0],
    )
    assert [message.role for message in first.messages[:3]] == ["system", "user", "assistant"]
    assert first.source == "tiny/rollouts/000004.npz: row 0"
    assert any(conversation.messages[-1].role == "user" for conversation in data.conversations)
    assert len({conversation.content() for conversation in data.conversations if conversation.item == first.item}) == 1
    write_agenttraj(data, tmp_path / "a.json")
    out = tiny_run.done("data", "import", str(tmp_path / "a.json"), "--to", str(tmp_path / "folder"))
    assert out == f"{tmp_path / 'folder'}: {len(data)} conversations, digest {data.digest[:16]}\n"
    tiny_run.done("data", "export", str(tmp_path / "folder"), "--to", str(tmp_path / "a.jsonl"), "--kind", "jsonl")
    again = read_data([tmp_path / "a.jsonl"])
    assert (again.digest, list(again.conversations)) == (data.digest, list(data.conversations))
    shown = tiny_run.done("data", "show", str(run), "--split", "iteration-4")
    tasks = Counter(conversation.task for conversation in data.conversations)
    known = ", ".join(f"{task} ({count})" for task, count in tasks.most_common())
    for text in (str(len(data)), known, first.messages[-1].content):
        assert text in shown
    for split in ("iteration-3", "train"):
        assert refused(read_data, [run], split).key in ("--iteration", "split")


@pytest.mark.parametrize(("turns", "read"), [(1, [[0], [1], [2]]), (2, [[0], [0, 1], [1, 2]])])
def test_other_agents_give_a_conversation_for_each_response(recorded_run, turns, read):
    """It has the turns that were read, and only its last reply is trained on."""
    source = read_episodes(recorded_run[0])
    episode = next(episode for episode in source if len(episode.turns) == 3)
    windowed = SimpleNamespace(context=Window(turns), header=source.header, run="a")
    made = conversations_of(episode, windowed)
    texts = [turn.message for turn in episode.turns]
    assert [[m.content for m in c.messages if m.role == "user"][: len(r)] for c, r in zip(made, read)] == [
        [texts[turn] for turn in r] for r in read
    ]
    replies = [[message for message in c.messages if message.role == "assistant"] for c in made]
    assert [[message.loss for message in each] for each in replies] == [[False] * (len(r) - 1) + [True] for r in read]
    assert [c.messages[-1].content == episode.unanswered for c in made] == [False, False, True]
    assert len(conversations_of(episode, source)) == 1
    assert conversations_of(dataclasses.replace(episode, turns=()), source) == []
    # What was cut at its limit is read and not trained, because nobody has sampled its end.
    whole, closed = ({"ended": ended, "response": "<answer>Up</answer>"} for ended in (True, False))
    changes = [{"ended": False, "response": "<answer>Up Up"}, whole, closed]
    turns_ = [dataclasses.replace(turn, **change) for turn, change in zip(episode.turns, changes)]
    partly = dataclasses.replace(episode, turns=tuple(turns_))
    (found,) = conversations_of(partly, source)
    assert [m.loss for m in found.messages if m.role == "assistant"] == [False, True, True]
    assert len(conversations_of(partly, windowed)) == 2
    assert conversations_of(dataclasses.replace(episode, turns=(turns_[0],)), source) == []


def test_episodes_in_the_schema_of_rlds(recorded_run, tmp_path):
    run, record = recorded_run
    assert write_rlds(run, tmp_path / "rlds") == f"{len(record.task) - 1} episodes"
    rows = tfds.builder_from_directory(tmp_path / "rlds").as_data_source(split="train")
    assert len(rows) == len(record.task) - 1
    for number, row in enumerate(rows):
        steps, turns = list(row["steps"]), record.num_turns[number]
        terminal = record.truncation[number] == 0
        assert [bool(step["is_first"]) for step in steps] == [True] + [False] * turns
        assert [bool(step["is_last"]) for step in steps] == [False] * turns + [True]
        assert [bool(step["is_terminal"]) for step in steps] == [False] * turns + [terminal]
        np.testing.assert_array_equal([step["reward"] for step in steps], [*record.reward[number, :turns], 0])
        end = 0.0 if terminal else 1.0
        assert [step["discount"] for step in steps] == [1.0] * (turns - 1) + [end, end]
        assert (steps[-1]["action"], bool(steps[-1]["observation"])) == (b"", not terminal)
        assert (row["iteration"], row["success"]) == (4, record.success[number].any())
    assert refused(read_data, [tmp_path / "rlds"]).key == str(tmp_path / "rlds" / "features.json")
    assert refused(write_rlds, tmp_path / "rlds", tmp_path / "more").key == str(tmp_path / "rlds")
    words = ("data", "export", str(run), "--to", str(tmp_path / "more"), "--kind", "rlds")
    assert "--split" in tiny_run.refusal(*words, "--split", "iteration-4")


@pytest.mark.nightly
def test_tfds_is_imported_only_where_it_is_needed():
    code = (
        "import sys, agentrl_jax.train.run, agentrl_jax.cli.main, agentrl_jax.offline.export, agentrl_jax.offline.read"
    )
    code += "; sys.exit(', '.join({'tensorflow_datasets', 'array_record', 'pyarrow'} & sys.modules.keys()) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
