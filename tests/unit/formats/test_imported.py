"""Rollout logs of RAGEN, AgentGym-RL and AgentGym, written as these programs write them, and hostile ones."""

import dataclasses
import json

import tiny_run
from hypothesis import given, settings
from hypothesis import strategies as st
from page_runs import decode_page
from refusing import refusal

from agentrl_jax.errors import UserError
from agentrl_jax.viewer import imported, log_files
from agentrl_jax.viewer.imported import ImportedEpisode, load_imported

SAID = [{"role": "user", "content": "#P_"}, {"role": "assistant", "content": "<answer>Right</answer>"}]


def lines(path, *rows):
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def silent(line):
    raise AssertionError(line)


def ragen(**metadata):
    known = {"env_id": 3, "group_id": 1, "num_turns": 1, "total_reward": 0.9}
    return {"custom_id": "traj_3", "messages": SAID, "metadata": known | metadata}


def test_ragens_evaluation_output(tmp_path):
    """RAGEN looks for `success` among metrics that are named TAG/NAME, so that its own key is always false."""
    metrics = {"success": False, "CoordSokoban/success": 1.0, "CoordSokoban/num_actions": 2, "entropy": 0.5}
    file = lines(tmp_path / "val.jsonl", ragen(**metrics), "", ragen(success=True), ragen(total_reward=float("nan")))
    first, second, third = load_imported(file, report=silent)
    kept = {"custom_id": "traj_3", "env_id": 3, "group_id": 1, "num_turns": 1} | metrics
    del kept["success"]
    assert first == ImportedEpisode(messages=tuple(SAID), reward=0.9, success=True, metadata=kept)
    assert (second.success, second.reward) == (True, 0.9)
    assert (third.success, third.reward) == (None, None)


def test_generations_that_are_dumped_in_training(tmp_path):
    row = {"input": "user\n#P_\nassistant\n", "output": "Right", "score": -0.1, "step": 20, "gts": None, "acc": [1]}
    file = lines(tmp_path / "20.jsonl", row, row | {"input": ""})
    first, second = load_imported(file, report=silent)
    assert [message["role"] for message in first.messages] == ["user", "assistant"]
    assert (first.reward, first.success, first.metadata) == (-0.1, None, {"step": 20, "gts": None})
    assert [message["role"] for message in second.messages] == ["assistant"]
    # AgentGym-RL's rollout log.
    rows = [{"item_id": 7, "conversations": SAID, "reward": 1.0}, {"item_id": 8, "conversations": SAID, "reward": 0}]
    (tmp_path / "0.json").write_text(json.dumps(rows, indent=4))
    first, second = load_imported(tmp_path / "0.json", report=silent)
    assert (first.messages, first.reward, first.success, first.metadata) == (tuple(SAID), 1.0, None, {"item_id": 7})
    assert (second.reward, second.metadata) == (0.0, {"item_id": 8})


def test_trajectories_of_a_run_of_any_version(tmp_path):
    row = {"step": 4, "task": "Sokoban", "group": 0, "prompt": "Move.", "return": -0.5, "success": False}
    new, old = ({"observation": "#P_", name: "Right", "reward": 0.5} for name in ("response", "reply"))
    file = lines(tmp_path / "trajectories.jsonl", row | {"turns": [new, old]}, row | {"turns": [{"observation": "x"}]})
    told: list[str] = []
    (episode,) = load_imported(file, report=told.append)
    said = [("system", "Move."), *[("user", "#P_"), ("assistant", "Right")] * 2]
    assert [(message["role"], message["content"]) for message in episode.messages] == said
    assert (episode.reward, episode.success) == (-0.5, False)
    assert (episode.metadata, len(told)) == ({"step": 4, "task": "Sokoban", "group": 0}, 1)
    tiny_run.done("view", str(tmp_path), "--export", str(tmp_path / "page.html"))
    assert decode_page((tmp_path / "page.html").read_text())[0]["runs"]


def test_results_of_agentgyms_evaluators(tmp_path):
    old = [{"from": "human", "loss": None, "value": "#P_"}, {"from": "gpt", "loss": True, "value": "Right"}]
    new = [SAID[0], {"role": "assistant", "content": "Right", "reasoning_content": "It is free."}]
    known = {"item_id": "babyai_4"}
    rows = [known | {"conversations": old, "reward": 1, "success": 1}]
    rows += [known | {"conversations": new, "reward": 0.5, "success": 0}]
    for episodes in (load_imported(lines(tmp_path / "out.jsonl", *rows)), [*one_by_one(tmp_path, rows)]):
        first, second = episodes
        assert first.messages == (SAID[0], {"role": "assistant", "content": "Right"})
        assert (first.reward, first.success, first.metadata) == (1.0, True, known)
        assert second.messages[1]["content"] == "<think>It is free.</think>Right"
        assert (second.reward, second.success) == (0.5, False)


def write_steps(folder, *steps, ranks=(0, 1)):
    for step in steps:
        (folder / f"step{step}").mkdir(parents=True, exist_ok=True)
        for rank in ranks:
            rows = [{"item_id": 100 * step + rank, "conversations": SAID, "reward": 1.0}]
            (folder / f"step{step}" / f"{rank}.json").write_text(json.dumps(rows))
    return folder


def test_a_folder_of_steps_is_one_log(tmp_path):
    folder = write_steps(tmp_path / "agrl", 10, 2, ranks=(0, 2, 10))
    (folder / "step3").mkdir()
    (folder / "notes.txt").touch()
    found = load_imported(folder, report=silent)
    assert [e.label for e in found] == [f"item {item}" for item in (200, 202, 210, 1000, 1002, 1010)]
    assert (found[-1].step, found[-1].metadata) == (10, {"file": "step10/10.json", "item_id": 1010})
    assert {e.step for e in load_imported(folder, newest=1, report=silent)} == {10}
    one = load_imported(folder / "step2", report=silent)
    assert [(e.step, e.metadata["file"]) for e in one] == [(None, "0.json"), (None, "2.json"), (None, "10.json")]


def test_a_folder_of_items_is_one_log(tmp_path):
    rows = [{"conversations": SAID, "item_id": f"babyai_{i}", "reward": 1, "success": 1} for i in range(12)]
    list(one_by_one(tmp_path, rows))
    (tmp_path / "broken.json").write_text("[")
    (tmp_path / "babyai_12.jsonl").write_text(json.dumps(rows[0]) + "\n7\n")
    reported = []
    found = load_imported(tmp_path, report=reported.append)
    assert [e.label for e in found] == [f"item babyai_{i}" for i in (*range(12), 0)]
    assert [line.split(": ")[1] for line in reported] == ["babyai_12.jsonl", "broken.json"]
    assert ": line 2: " in reported[0]


def one_by_one(folder, rows):
    for number, row in enumerate(rows):
        (folder / f"babyai_{number}.json").write_text(json.dumps(row, indent=4))
        yield from load_imported(folder / f"babyai_{number}.json", report=silent)


BAD = {
    '{"messages": [': "is no JSON",
    "7": "JSON int",
    '{"tokens": [1]}': "keys tokens",
    "{}": "empty object",
    '{"messages": [], "metadata": 3}': "metadata is 3",
    '{"conversations": "text"}': "messages are text",
    '{"conversations": ["text"]}': "message 1 is text",
    '{"conversations": [{"role": "root", "content": ""}]}': "role root",
    '{"conversations": [{"role": ["user"], "content": ""}]}': "message 1",
    '{"conversations": [{"from": "gpt", "value": 3}]}': "content 3",
    "[" * 100_000: "is no JSON",
    '{"conversations": [], "reward": ' + "9" * 5000 + "}": "is no JSON",
}
"""Lines, and what is said of them."""


def test_bad_lines_are_named_and_left_out(tmp_path):
    for bad, why in BAD.items():
        reported = []
        found = load_imported(lines(tmp_path / "a.jsonl", ragen(), bad, ragen()), report=reported.append)
        (line,), refused = reported, refusal(load_imported, lines(tmp_path / "b.jsonl", bad))
        assert (len(found), refused.key) == (2, str(tmp_path / "b.jsonl"))
        assert line.startswith(f"{tmp_path / 'a.jsonl'}: line 2: ")
        for said in (line, str(refused)):
            assert (why in said, len(said) < 500) == (True, True), said[:600]


def test_torn_lines_bytes_that_are_no_text_many_bad_lines_and_hostile_texts(tmp_path):
    file, reported = lines(tmp_path / "a.jsonl", ragen(), ragen()), []
    file.write_bytes(file.read_bytes()[:-20] + b"\xff\xfe")
    assert len(load_imported(file, report=reported.append)) == 1
    assert "line 2: is no JSON (" in reported.pop()
    file = lines(tmp_path / "b.jsonl", {"conversations": [{"role": "user", "content": "caf?"}], "reward": 1})
    file.write_bytes(file.read_bytes().replace(b"caf?", b"caf\xe9"))
    (episode,) = load_imported(file, report=silent)
    assert episode.messages[0]["content"] == "caf\ufffd"
    load_imported(lines(tmp_path / "c.jsonl", *["{}"] * 50, ragen()), report=reported.append)
    assert (len(reported), "50 of 51 " in reported[-1]) == (6, True)
    # Texts are kept as they are if a file can hold them.
    hostile = "</script><img onerror=alert(1)>\u202e\x00 \ud800 \ud83d\ude00"
    said = [{"role": "user", "content": hostile}]
    row = {"conversations": said, "item_id": hostile, "reward": 1e999, hostile: 10**400, "nested": {"a": 1}}
    (episode,) = load_imported(lines(tmp_path / "d.jsonl", row), report=silent)
    clean = "</script><img onerror=alert(1)>\u202e\x00 \ufffd \U0001f600"
    assert (episode.messages[0]["content"], episode.reward) == (clean, None)
    assert episode.metadata == {"item_id": clean, clean: None}


def test_files_that_are_refused(tmp_path, monkeypatch):
    def refused(path):
        error = refusal(load_imported, path, report=silent)
        assert error.key == str(path)
        return str(error)

    for name in ("a.pkl", "a.jsonl"):
        refused(tmp_path / name)
    assert "rename it to .jsonl" in refused(lines(tmp_path / "lines.json", ragen(), ragen()))
    refused(lines(tmp_path / "empty.jsonl"))
    refused(lines(tmp_path / "none.json", []))
    file, folder = lines(tmp_path / "many.jsonl", *[ragen()] * 4), write_steps(tmp_path / "agrl", 1, 2)
    size = sum(file.stat().st_size for file in folder.rglob("*.json"))
    for module, name, limit, source in (
        (log_files, "MAX_BYTES", 100, file),
        (log_files, "MAX_BYTES", size - 1, folder),
        (log_files, "MAX_BRACKETS", 15, file),
        (log_files, "MAX_BRACKETS", 15, folder),
        (log_files, "MAX_FILES", 3, folder),
        (imported, "MAX_EPISODES", 3, file),
        (imported, "MAX_EPISODES", 3, folder),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, limit)
            assert f"more than {limit} " in refused(source)
            if source is folder:
                load_imported(folder, newest=1, report=silent)
    monkeypatch.setattr(imported, "MAX_METADATA", 2)
    assert len(load_imported(file, report=silent)[0].metadata) == 2
    monkeypatch.setattr(imported, "MAX_MESSAGES", 1)
    assert "line 1: has 2 messages" in refused(file)


OF_RAGEN = ("messages", "metadata", "success", "T/success", "total_reward", "input", "output", "score")
OF_AGENTGYM = ("conversations", "role", "content", "from", "value", "reward", "reasoning_content")
KEYS = st.sampled_from(OF_RAGEN + OF_AGENTGYM)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["user", "gpt"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=50)
@given(rows=st.lists(st.dictionaries(KEYS, VALUES, max_size=5) | VALUES, max_size=4), suffix=st.sampled_from(["l", ""]))
def test_any_json_is_read_or_refused(rows, suffix, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / f"any.json{suffix}"
    file.write_text("\n".join(map(json.dumps, rows)) if suffix else json.dumps(rows))
    try:
        episodes = load_imported(file, report=lambda line: None)
    except UserError:
        return
    text = json.dumps([dataclasses.asdict(episode) for episode in episodes], allow_nan=False, ensure_ascii=False)
    assert text.encode()
