"""Logs of other programs and folders of API models' evaluations in the page, and what of them cannot be used."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from api_folders import BROKEN, HOSTILE, ITEMS, LOGPROBS, REFUSED, SCRIPT, SOLVED, UNFINISHED, write_folder
from page_runs import assert_inert, decode_page, rewrite_lines, write_log
from refusing import refusal
from tiny_run import command

from agentrl_jax.cli import view
from agentrl_jax.evaluate.api_models.answers import read_reply
from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.viewer import api_folder, export, log_data
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.imported import load_imported
from agentrl_jax.viewer.log_data import OUTCOMES, LogData

SAID = [{"role": "user", "content": "#P_"}, {"role": "assistant", "content": "Right"}]


def read_back(page: str):
    """Episodes of a page as (messages, metadata), and the columns of all rows."""
    index, ((_, rows), *blocks) = decode_page(page)
    entry, found = index["runs"][0], []
    for (header, columns), count in zip(blocks, entry["blocks"], strict=True):
        texts = header["texts"]
        roles = iter([entry["roles"][i] for i in columns["message_role"]])
        said = iter([texts[i] for i in columns["message_text"]])
        pairs = iter([(texts[k], texts[v]) for k, v in zip(columns["metadata_key"], columns["metadata_value"])])
        assert len(columns["message_count"]) == count
        for messages, entries in zip(columns["message_count"], columns["metadata_count"], strict=True):
            spoken = [(next(roles), next(said)) for _ in range(messages)]
            found.append((spoken, dict(next(pairs) for _ in range(entries))))
    return entry, rows, found


def test_page_holds_the_episodes_of_the_log(tmp_path, monkeypatch):
    file = write_log(tmp_path / "log.jsonl")
    episodes = load_imported(file)
    monkeypatch.setattr(log_data, "BLOCK_CHARACTERS", 4000)
    entry, rows, found = read_back(export.page([LogData(file)]))
    assert len(entry["blocks"]) > 1
    assert [said for said, _ in found] == [[(m["role"], m["content"]) for m in e.messages] for e in episodes]
    plain = [{k: v if isinstance(v, str) else json.dumps(v) for k, v in e.metadata.items()} for e in episodes]
    assert [metadata for _, metadata in found] == plain
    assert rows["outcome"].tolist() == [{None: 2, False: 1, True: 0}[e.success] for e in episodes]
    expected = np.asarray([np.nan if e.reward is None else e.reward for e in episodes], np.float32)
    np.testing.assert_array_equal(rows["return"], expected)
    assert rows["turns"].tolist() == [sum(m["role"] == "assistant" for m in e.messages) for e in episodes]
    assert rows["characters"].tolist() == [sum(len(m["content"]) for m in e.messages) for e in episodes]


def test_command_writes_the_file(tmp_path):
    """With all digits of numbers, and a word about lines that cannot be read."""
    log, folder = tmp_path / "log.jsonl", write_steps(tmp_path / "agrl", {"step1": [7], "step2": [8]})
    row = {"input": "", "output": "", "score": 1e300, "big": 2**60 + 1, "yes": True, "none": None, "text": "null"}
    log.write_text(f"{json.dumps(row)}\n{{\n")
    code, out, err = command("view", str(log), "--no_browser")
    assert (code, out.split(" (")[0]) == (0, f"page: {log}.html")
    assert f"{log}: line 2: is no JSON" in err
    _, rows, found = read_back((tmp_path / "log.jsonl.html").read_text())
    assert found == [([], {"big": str(2**60 + 1), "yes": "true", "none": "null", "text": "null"})]
    assert rows["return"].tolist() == [float(np.finfo(np.float32).max)]
    assert command("view", str(folder), "--newest", "1", "--no_browser")[0] == 0
    entry, rows, _ = read_back((folder / "view.html").read_text())
    assert (len(rows["outcome"]), entry["recorded"]) == (1, "1 step")


def write_steps(folder, steps, rank=0):
    """Items of each step, whose name is empty for files without steps."""
    for step, items in steps.items():
        (folder / step).mkdir(parents=True, exist_ok=True)
        rows = [{"item_id": item, "conversations": SAID, "reward": 1.0} for item in items]
        (folder / step / f"{rank}.json").write_text(json.dumps(rows))
    return folder


def header_of(shown):
    return decode_page(export.page([shown]))[1][0][0]


def test_steps_of_a_folder_are_its_iterations(tmp_path):
    folder = write_steps(tmp_path / "agrl", {"step0": [7, 8], "step10": [9]})
    shown = LogData(folder)
    entry, rows, _ = read_back(export.page([shown]))
    assert (entry["name"], entry["recorded"]) == ("agrl", "2 steps")
    assert [(i["iteration"], i["recorded"]) for i in entry["iterations"]] == [(0, 2), (10, 1)]
    assert rows["iteration"].tolist() == [0, 0, 10]
    assert header_of(shown)["labels"] == ["step 0 · item 7", "step 0 · item 8", "step 10 · item 9"]
    before = shown.stamp()
    write_steps(folder, {"step11": [3]})
    assert shown.stamp() != before
    assert len(shown.refresh()[0]["iterations"]) == 3


def test_names_of_episodes_stay_as_a_log_grows(tmp_path):
    """The address of an episode holds its name; a log of several files grows in the middle."""
    folder = write_steps(tmp_path / "agrl", {"": (7, 7)}, rank=0)
    write_steps(folder, {"": (9,)}, rank=10)
    before = header_of(LogData(folder))["names"]
    assert before == ["0.json, episode 1", "0.json, episode 2", "10.json, episode 1"]
    write_steps(folder, {"": (8,)}, rank=2)
    assert header_of(LogData(folder))["names"] == [*before[:2], "2.json, episode 1", before[2]]
    (tmp_path / "one.jsonl").write_text(2 * f"{json.dumps({'conversations': SAID})}\n\n")
    assert [episode.name for episode in load_imported(tmp_path / "one.jsonl")] == ["line 1", "line 3"]


def test_the_command_refuses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log.jsonl")
    write_steps(tmp_path / "agrl", {"step1": [7]})
    (tmp_path / "empty" / "step1").mkdir(parents=True)
    (tmp_path / "log.txt").write_text("{}")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.*")}
    for run, options, key in (
        ("log.jsonl", {"compare": "other.jsonl"}, "log.jsonl"),
        ("log.jsonl", {"newest": 3}, "--newest"),
        ("log.jsonl", {"export": "log.jsonl"}, "--export"),
        ("agrl", {"export": "agrl/step1/0.json"}, "--export"),
        ("agrl/step1", {"newest": 1}, "--newest"),
        ("empty", {}, "empty"),
        ("log.txt", {}, "log.txt"),
        ("empty", {"compare": "log.txt"}, "log.txt"),
    ):
        assert refusal(view.run, view.View(run, **options)).key == key
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.*")} == before


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("api") / "out")


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def load(folder):
    said = []
    episodes, about, _ = api_folder.load_api_folder(folder, said.append)
    return episodes, about, said


def roles(episode):
    return [message["role"] for message in episode.messages]


def test_episodes_are_those_that_were_played(folder, copy):
    episodes, _, said = load(folder)
    assert said == []
    assert [episode.outcome for episode in episodes] == ["solved", "cut", "refused", "unfinished", "unsolved"]
    summary = json.loads((folder / "summary.json").read_text())
    for name, kind in (("tokens read", "prompt_tokens"), ("tokens written", "completion_tokens")):
        assert sum(episode.metadata[name] for episode in episodes) == summary["tokens"][kind]
    assert [episode.reward for episode in episodes] == [1, None, None, None, 0]
    assert episodes[SOLVED].metadata["of these for reasoning"] == 4 * roles(episodes[SOLVED]).count("assistant")
    solved, refused = episodes[SOLVED], episodes[REFUSED]
    assert roles(solved)[:5] == ["system", "user", "reasoning", "assistant", "user"]
    assert solved.messages[2]["content"] == f"I think {SCRIPT}"
    assert roles(refused) == ["system", "user", "refusal", "assistant"]
    assert "status 503" in episodes[UNFINISHED].metadata["why it is unfinished"]
    assert not any("127.0.0.1" in str(episode) for episode in episodes)
    first = next(m for m in episodes[HOSTILE].messages if m["role"] == "assistant")
    assert first["content"] == f"{SCRIPT}\nAction: {BROKEN.encode('utf-8', 'replace').decode()}"
    assert_inert(export.page([LogData(folder)]))
    # Earlier versions wrote a score of 0 where an episode was not answered.
    rewrite_lines(copy / "episodes.jsonl", lambda rows: [row | {"score": row["score"] or 0.0} for row in rows])
    assert load(copy) == load(folder)


def test_the_address_of_the_api_is_not_shown(copy):
    """However the client has written it; what a server says of an error stands where a reply is refused."""

    def refuse(rows):
        next(row["reply"] for row in rows if row["item"] == REFUSED)["refusal"] = said

    for base_url, said, shown in (
        ("HTTPS://LLM.Example.com:443/v1/", "https://llm.example.com/v1/chat: status 503", "API/chat: status 503"),
        ("http://llm.example.com/a b/v1", "http://llm.example.com/a%20b/v1: Timeout", "API: Timeout"),
        ("https://llm.example.com", "not valid for 'LLM.EXAMPLE.COM'", "not valid for 'API'"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1/chat: no", "API/chat: no"),
        ("http://bücher.example", "xn--bcher-kva.example:80: no", "API: no"),
        ("http://llm.example.com", "otherllm.example.com", "otherllm.example.com"),
        ("no address", "no address: no", "API: no"),
        ("", "status 503", "status 503"),
    ):
        unfinished = {f"item {UNFINISHED}, sample 0": said}
        for name, change in (("settings", {"base_url": base_url}), ("summary", {"unfinished": unfinished})):
            file = copy / f"{name}.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | change))
        rewrite_lines(copy / "replies.jsonl", refuse)
        episodes, _, _ = load(copy)
        assert episodes[UNFINISHED].metadata["why it is unfinished"] == shown
        assert episodes[REFUSED].messages[2]["content"] == shown


def test_log_probabilities_only_where_the_server_gave_them(folder):
    episodes, _, _ = load(folder)
    with_tokens = [m for episode in episodes for m in episode.messages if "tokens" in m]
    assert with_tokens == [m for m in episodes[HOSTILE].messages if m["content"] == "Action: move down"]
    assert with_tokens[0]["tokens"] == [tuple(pair) for pair in LOGPROBS]
    _, ((_, rows), (header, columns)) = decode_page(export.page([LogData(folder)]))
    assert [OUTCOMES[i] for i in rows["outcome"]] == [episode.outcome for episode in episodes]
    np.testing.assert_array_equal(rows["return"], [1, np.nan, np.nan, np.nan, 0])
    values = columns["logprob_table"][columns["logprob"]]
    np.testing.assert_array_equal(values, [value for m in with_tokens for _, value in m["tokens"]])
    assert "".join(header["texts"][i] for i in columns["token_text"]) == "Action: move down" * len(with_tokens)
    for logprob in (None, "x", float("nan"), float("-inf"), 10**400):
        choice = {"message": {"content": "hi"}, "logprobs": {"content": [{"token": "hi", "logprob": logprob}]}}
        assert read_reply({"choices": [choice]}).logprobs is None


def test_log_probabilities_of_another_text_are_not_drawn(copy):
    tokens = [("a", -1.0), ("b", -2.0)]
    assert api_folder._placed(tokens, "ab") == tokens
    assert api_folder._placed(tokens, "a") == tokens, "b is the stop token"
    (added, unknown), *rest = api_folder._placed(tokens, "<think>ab")
    assert (added, np.isnan(unknown), rest) == ("<think>", True, tokens)
    assert api_folder._placed(tokens, "abc") == api_folder._placed(tokens, "") == []
    file = copy / "replies.jsonl"
    file.write_text(file.read_text().replace('[" move down", -4.0]', '[" move up", -4.0]'))
    episode = load(copy)[0][HOSTILE]
    assert not any("tokens" in message for message in episode.messages)
    noted = sum("which do not join to this text" in message.get("note", "") for message in episode.messages)
    assert noted == roles(episode).count("assistant") - 1


def test_damaged_rows_are_left_out(copy):
    before = [dataclasses.replace(episode, reward=None) for episode in load(copy)[0]]
    row = {"item": 9, "sample": 0, "turn": 0, "added": [{"role": "imp", "content": "half \ud83d"}, 3, {"role": 1}]}
    reply = {"text": "\udc00 <b>", "finish": 3, "prompt_tokens": "many", "logprobs": [["a"]]}
    rewrite_lines(copy / "episodes.jsonl", lambda rows: [row | {"score": "high"} for row in rows])
    rows = [
        b'{"item": 7, "sample": 0, "turn": 0, "reply": {"text": "\xff\xfe"}}',
        *(b"[1, 2]", b'{"item": "7", "sample": 0}', b"[" * 100_000),
        json.dumps(row | {"reply": reply}).encode(),
        b'{"item": 8, "sample": 0, "turn": 0, "rep',
    ]
    with open(copy / "replies.jsonl", "ab") as file:
        file.write(b"\n".join(rows))
    episodes, _, (said,) = load(copy)
    assert said.startswith(f"{copy / 'replies.jsonl'}: 3 lines ")
    assert episodes[:ITEMS] == before
    replaced, added = episodes[ITEMS:]
    assert [message["content"] for message in replaced.messages] == ["\ufffd\ufffd"]
    assert (added.outcome, added.metadata["item"]) == ("unfinished", 9)
    contents = [(m["role"], m["content"]) for m in added.messages]
    assert contents == [("user", "half \ufffd"), ("user", ""), ("assistant", "\ufffd <b>")]
    export.page([LogData(copy)])


def test_attempts_are_marked(copy):
    def with_attempts(rows):
        (row,) = [row for row in rows if row["item"] == HOSTILE]
        first = {name: row[name] for name in ("status", "turns", "solved", "score")} | {"turns": 2}
        row["attempts"] = [first, first | {"turns": 28, "solved": True, "score": 1.0}]

    rewrite_lines(copy / "episodes.jsonl", with_attempts)
    episode = load(copy)[0][HOSTILE]
    assert (episode.outcome, episode.metadata["attempts"], episode.reward) == ("solved", 2, 1.0)
    (marked,) = [i for i, message in enumerate(episode.messages) if message.get("note") == "attempt 2 begins"]
    assert roles(episode)[:marked].count("assistant") == 2


def test_levels_are_those_of_recorded_runs(folder, copy, tmp_path):
    evaluate_scripted("maze", "oracle", items=f"0-{ITEMS - 1}", turns=30, record=tmp_path / "oracle")
    index, blocks = decode_page(export.page([LogData(folder), RunData(tmp_path / "oracle")]))
    header, (_, rows) = blocks[0][0], blocks[index["runs"][1]["first_block"]]
    assert header["task"] == "maze"
    assert header["levels"] == [f"{high:08x}{low:08x}" for high, low in zip(rows["level_high"], rows["level_low"])]

    # Replies of an earlier version name none.
    def without_levels(rows):
        assert sum(row.pop("level", None) is not None for row in rows) == ITEMS
        rows[0]["level"] = "<b>"

    before = LogData(copy).stamp()
    rewrite_lines(copy / "replies.jsonl", without_levels)
    assert LogData(copy).stamp() != before
    assert decode_page(export.page([LogData(copy)]))[1][0][0]["levels"] == [""] * ITEMS


def test_what_is_refused(copy, monkeypatch):
    (copy / "settings.json").write_text("{")
    assert refusal(load, copy).key == str(copy / "settings.json")
    (copy / "settings.json").write_text("{}")
    (copy / "replies.jsonl").write_text("")
    assert refusal(load, copy).key == str(copy)
    monkeypatch.setattr(api_folder, "MAX_BYTES", 100)
    assert refusal(load, copy).value == 100
