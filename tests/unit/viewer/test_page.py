"""What the page holds, without a browser."""

import base64
import dataclasses
import hashlib
import json
import re
import shutil
import threading
from pathlib import Path
from unittest import mock

import httpx
import numpy as np
import page_runs
import pytest
from page_runs import TOKENIZER, Scripts, decode_page, make_record, rewrite_lines, write_checkpoints, write_run
from refusing import refusal
from tiny_run import command

from agentrl_jax.cli import view
from agentrl_jax.errors import UserError
from agentrl_jax.rollout.trajectory import hexadecimal
from agentrl_jax.runs.remote import local_copy, refresh_copy
from agentrl_jax.runs.rollout_records import record_path, recorded_iterations, write_record
from agentrl_jax.viewer import data, export, replay_notes, scenes
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.live import PageServer
from agentrl_jax.viewer.pieces import Pieces

WEB = Path(export.__file__).parent / "web"


@pytest.fixture(autouse=True)
def boards(monkeypatch):
    monkeypatch.setattr(data, "scenes", page_runs.DrawnBoards())


@pytest.fixture(scope="module")
def records():
    return [make_record(i) for i in (1, 10, 40)]


@pytest.fixture(scope="module")
def run(tmp_path_factory, records):
    return write_run(tmp_path_factory.mktemp("home") / "run one", records)


def test_the_page_holds_records_scenes_trend_lines_alarms_and_the_command(run, records):
    index, (rows, *blocks) = decode_page(export.page([RunData(run)]))
    entry, columns, same = index["runs"][0], rows[1], np.testing.assert_array_equal
    assert (entry["name"], entry["replay"]) == ("run one", f"agentrl replay '{run}'")
    assert entry["actions"] == {"FrozenLake": list(page_runs.ACTIONS)}
    assert [(line["name"], line["mean"]) for line in entry["lines"]] == [("random", 0.12), ("optimal", 0.98)]
    (alarm,) = entry["alarms"]
    assert (alarm["name"], alarm["iterations"]) == ("entropy_lost", list(range(33, 41)))
    metrics = {metric["metric"]: metric["values"] for metric in entry["trend"]["metrics"]}
    assert len(metrics["train/success"]) == len(entry["trend"]["iteration"]) == 40
    assert metrics["validation/success"][8:10] == [None, pytest.approx(metrics["validation/success"][9])]
    assert [info["iteration"] for info in entry["iterations"]] == [1, 10, 40]
    same(columns["return"], np.concatenate([r.returns for r in records]))
    same(columns["success"], np.concatenate([r.success.any(1) for r in records]))
    same(columns["iteration"], np.repeat([1, 10, 40], 8))
    hashes = np.stack([columns["level_high"], columns["level_low"]], 1)
    assert hexadecimal(hashes) == hexadecimal(np.concatenate([r.state_hash[:, 0] for r in records]))
    ids = np.asarray([token for token, _ in entry["pieces"]])
    for record, (_, block) in zip(records, blocks, strict=True):
        sampled = np.arange(record.tokens.shape[2]) < record.length[..., None]
        same(ids[block["tokens"]], record.tokens[sampled])
        same(block["trained"], record.trained[sampled])
        gap = (record.learner_logprob - record.logprob)[sampled]
        np.testing.assert_allclose(block["gap_table"][block["gap"]], gap, rtol=0.05, atol=1e-5)
        values = block["logprob_table"][block["logprob"]]
        np.testing.assert_allclose(values, record.logprob[sampled], rtol=0.01, atol=1e-3)
        same(block["turns"], record.num_turns)
        seen = np.arange(record.observation.shape[2]) < record.observation_length[..., None]
        same(ids[block["observation_tokens"]], record.observation[seen])
        played = np.arange(record.reward.shape[1]) < record.num_turns[:, None]
        same(block["reward"], record.reward[played])
        same(block["actions"], record.actions[played][record.actions[played] >= 0])
    header, block = blocks[0]
    boards, stored = page_runs.DrawnBoards().run_scenes(None, None, records[0]), header["scenes"]
    flat = [scene for episode in boards for scene in episode]  # stored by their distinct stacks
    assert block["scene_count"].tolist() == [len(episode) for episode in boards]
    cells = [cell for scene in flat for row in scene["cells"] for cell in row]
    assert [stored["stacks"][i] for i in block["scene_cells"]] == cells
    assert [stored["actions"][i] for i in block["scene_action"]] == [scene["action"] for scene in flat]
    assert [stored["texts"][i].split("\n") for i in block["scene_text"]] == [scene["text"] for scene in flat]


def test_scenes_of_text_have_no_cells_and_none_are_no_error(run, monkeypatch):
    scene, notes = {"kind": "text", "turn": 0, "action": None, "text": ["two arms"]}, []
    monkeypatch.setattr(page_runs.DrawnBoards, "run_scenes", lambda *_: [[scene]] * 8)
    _, block = decode_page(export.page([RunData(run)]))[1][1]
    assert (block["scene_width"].tolist(), block["scene_cells"].size) == ([0] * 8, 0)
    monkeypatch.setattr(page_runs.DrawnBoards, "run_scenes", mock.Mock(side_effect=UserError("no such file")))
    header, _ = decode_page(export.page([RunData(run, note=notes.append)]))[1][1]
    assert ("scenes" in header, "no boards: no such file" in notes) == (False, True)


def test_hostile_texts_cannot_leave_their_element(tmp_path):
    hostile = "</script><img src=x onerror=alert(1)><!-- <script>alert(2)</script> \u202egnp.exe ]]>"
    page = export.page([RunData(write_run(tmp_path / "<b>run<!--", [make_record(1, observation=hostile)]))])
    page_runs.assert_inert(page)
    assert "<" in {piece for _, piece in decode_page(page)[0]["runs"][0]["pieces"] if isinstance(piece, str)}
    for file in (WEB / "src").iterdir():
        assert not re.search("innerHTML|insertAdjacent|document.write", file.read_text(), re.I)


@pytest.mark.parametrize("live", ["", "1"])
def test_policy_allows_the_page_alone(run, live):
    text = export.page([RunData(run)], live=live)
    found = Scripts(text)
    assert found.policy.startswith("default-src 'none'; ")
    assert ("connect-src 'self'" in found.policy) == bool(live)
    assert "unsafe" not in found.policy
    for body in (found.scripts[-1][1], re.search("<style>(.*?)</style>", text, re.S).group(1)):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" in found.policy
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)


def test_pieces_keep_bytes_that_are_no_character():
    euro, end = "€".encode(), TOKENIZER.end_of_turn_id
    partial = [i for i, data in enumerate(TOKENIZER.token_bytes) if data is not None and data in (euro[:1], euro[1:2])]
    pieces = Pieces(TOKENIZER)
    assert pieces.numbers(np.asarray([[*partial, end], [-1, 10**6, partial[0]]])).tolist() == [[0, 1, 2], [3, 3, 0]]
    first, second, *others = [entry for _, entry in pieces.table()]
    assert sorted([first["bytes"], second["bytes"]]) == ["82", "e2"]
    assert others == [{"special": TOKENIZER.special_name(end)}, None]


def test_the_command_writes_the_file_and_says_where_nothing_can_be_compared(run, records, tmp_path, monkeypatch):
    file = tmp_path / "page.html"
    code, out, err = command("view", str(run), "--export", str(file))
    assert (code, out) == (0, f"page: {file} ({file.stat().st_size / 1e6:.1f} MB)\n")
    assert "agentrl view: iteration 40 (3 of 3)" in err
    opened, other = [], shutil.copytree(run, tmp_path / "other" / run.name)
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    assert command("view", str(run), "--compare", str(other), "--newest", "1")[0] == 0
    assert opened == [(run / "view.html").resolve().as_uri()]
    shown = decode_page((run / "view.html").read_text())[0]["runs"]
    assert [[info["iteration"] for info in entry["iterations"]] for entry in shown] == [[40], [40]]
    other = write_run(tmp_path / "another", records[1:2])
    plain = (str(other), "--no_boards", "--no_browser")
    said = command("view", *plain, "--newest", "1", "--compare", str(run))[2]
    assert f"no level is in both {other} and {run}" in said
    assert "no level is in both" not in command("view", *plain)[2]


def test_names_are_the_shortest_that_differ(tmp_path, records):
    runs = [tmp_path / "a" / "same" / "demo", tmp_path / "b" / "same" / "demo"]
    for folder in runs:
        folder.parent.mkdir(parents=True)
    shown = [RunData(write_run(folder, records[:1]), boards=False) for folder in runs]
    names = lambda shown: [entry["name"] for entry in decode_page(export.page(shown))[0]["runs"]]  # noqa: E731
    assert names(shown) == ["a/same/demo", "b/same/demo"]
    assert names(shown[:1]) == ["demo"]
    shown[0].place = "gs://bucket/same/demo"
    assert names(shown) == ["bucket/same/demo", "b/same/demo"]


def test_what_is_refused(run, object_store, tmp_path, records, monkeypatch):
    object_store.pipe("gs://bucket/runs/other/config.txt", b"")
    for options, key in (
        ({"export": "/no/such/folder/x.html"}, "--export"),
        ({"newest": -1}, "--newest"),
        ({"port": 65536}, "--port"),
        ({"live": True, "export": "x.html"}, "--live"),
        ({"compare": "RUN/../run one/"}, "--compare"),
        ({"run": "gs://bucket/runs/far", "export": "x.html"}, "gs://bucket/runs/far"),
        ({"run": "gs://bucket/runs/far"}, "gs://bucket/runs/far"),
    ):
        words = {"run": str(run)} | options | {"compare": options.get("compare", "").replace("RUN", str(run))}
        assert refusal(view.run, view.View(**words)).key == key
    empty = write_run(tmp_path / "run", [])
    assert refusal(RunData(empty).refresh).key == str(empty)
    monkeypatch.setattr(export, "LARGEST", 1000)
    assert "--newest" in str(refusal(export.page, [RunData(run)]))
    monkeypatch.setattr(data, "scenes", scenes)
    file = write_run(tmp_path / "odd", records[:1]) / "config.yaml"
    file.write_text(file.read_text().replace("env: FrozenLake", "env: Corridor"))
    assert "'Corridor'" in str(refusal(view.run, view.View(str(file.parent), no_browser=True)))


def test_a_run_in_an_object_store_is_shown(run, records, object_store, tmp_path):
    place, file = "gs://bucket/runs/far", tmp_path / "page.html"
    object_store.put(str(run), place, recursive=True)
    assert command("view", place, "--export", str(file), "--compare", str(run))[0] == 0
    (far, near) = decode_page(file.read_text())[0]["runs"]
    assert (far["name"], far["replay"]) == ("far", f"agentrl replay {place}")
    assert {name for name in far if far[name] != near[name]} == {"name", "replay", "first_block"}
    with local_copy(place) as copy:
        shown = RunData(copy, place=place)
        before, unchanged = shown.stamp(), record_path(copy, 10).stat().st_ino
        metrics = (copy / "metrics.jsonl").read_text()
        object_store.pipe(f"{place}/metrics.jsonl", f"{metrics}{{}}\n".encode())
        object_store.rm(f"{place}/{record_path(copy, 1).relative_to(copy)}")
        refresh_copy(place, copy)
        assert shown.stamp() != before
        assert recorded_iterations(copy) == [10, 40]
        assert record_path(copy, 10).stat().st_ino == unchanged
    assert not copy.exists()


def test_a_summary_or_numbers_that_cannot_be_read_are_left_out(tmp_path, records):
    folder, notes = write_run(tmp_path / "run", records[:1], iterations=2), []
    assert RunData(folder).refresh()[0]["notes"] == []
    (folder / "summary.json").write_text("{")
    entry, _ = RunData(folder, note=notes.append).refresh()
    assert (entry["lines"], len(entry["notes"]), entry["notes"][0] in notes) == ([], 1, True)
    second = json.loads((folder / "metrics.jsonl").read_text().splitlines()[1])
    huge = {"train/success": 10**400, "actor/entropy": -(10**400)}
    rewrite_lines(folder / "metrics.jsonl", lambda rows: rows[0].update(huge))
    odd = {"random": {"mean": 10**400}, "optimal": {"mean": None}, "null": 3}
    (folder / "summary.json").write_text(json.dumps({"success": odd}))
    entry = decode_page(export.page([RunData(folder)]))[0]["runs"][0]
    values = {metric["metric"]: metric["values"] for metric in entry["trend"]["metrics"]}
    assert [values[name] for name in huge] == [[None, second[name]] for name in huge]
    assert entry["lines"] == []


def test_new_records_are_packed_once_and_damaged_ones_are_left_out(tmp_path, records):
    folder, notes = write_run(tmp_path / "run", records[:1]), []
    growing = RunData(folder, note=notes.append)
    before = growing.stamp()
    growing.refresh()
    assert notes == ["iteration 1 (1 of 1)"]
    write_record(folder, records[1])
    assert growing.stamp() != before
    assert len(growing.refresh()[1]) == 3
    assert notes[1:] == ["iteration 10 (2 of 2)"]
    entry, _ = RunData(folder, newest=1).refresh()
    assert [info["iteration"] for info in entry["iterations"]] == [10]
    folder = write_run(tmp_path / "damaged", records)
    whole, notes = record_path(folder, 10).read_bytes(), []
    record_path(folder, 10).write_bytes(whole[: len(whole) // 2])
    shown = RunData(folder, boards=False, note=notes.append)
    for _ in range(2):  # a damaged file is read once
        index, (rows, *blocks) = decode_page(export.page([shown]))
        assert [info["iteration"] for info in index["runs"][0]["iterations"]] == [1, 40]
        assert (len(blocks), rows[1]["iteration"].tolist()) == (2, [1] * 8 + [40] * 8)
        (said,) = index["runs"][0]["notes"]
        assert "1 recorded iteration (000010.npz)" in said
    assert ["000010.npz" in note for note in notes] == [False, True, False]
    record_path(folder, 10).write_bytes(whole)
    assert shown.refresh()[0]["notes"] == []
    middle = bytearray(whole)
    middle[len(whole) // 2 : len(whole) // 2 + 200] = bytes(200)  # the archive is whole, what it holds is not
    for iteration in (1, 10, 40):
        record_path(folder, iteration).write_bytes(bytes(middle))
    refusal(RunData(folder).refresh)


def test_the_live_page_follows_the_run(records, tmp_path):
    folder = write_run(tmp_path / "run", records[:1])
    with PageServer([RunData(folder)]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert server.url.startswith("http://127.0.0.1:")
        first = httpx.get(server.url)
        assert first.headers["cache-control"] == "no-store"
        before = decode_page(first.text)[0]["live"]
        write_record(folder, records[1])
        index, _ = decode_page(httpx.get(server.url).text)
        assert index["live"] == httpx.get(f"{server.url}version").text != before
        assert [info["iteration"] for info in index["runs"][0]["iterations"]] == [1, 10]
        # It is for this machine alone.
        assert httpx.get(server.url, headers={"Host": f"evil.example:{server.server_port}"}).status_code == 421
        assert httpx.get(f"{server.url}../config.yaml").status_code == 404
        assert httpx.post(server.url).status_code == 501
        head = httpx.head(server.url)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(httpx.get(server.url).content))
        shutil.rmtree(folder / "rollouts")
        assert httpx.get(server.url).status_code == 503
        assert refusal(PageServer, [], server.server_port).key == "--port"
        server.shutdown()


def notes(run, place=None):
    entry = RunData(run, place=place or "", boards=False).refresh()[0]
    return [info["replay_note"] for info in entry["iterations"]]


def with_step(record, step, **changes):
    return dataclasses.replace(record, header=dataclasses.replace(record.header, step=step, **changes))


def test_what_a_replay_trains_again(tmp_path, object_store, monkeypatch):
    """Two steps come before the first iteration; the records are of the steps 3, 8 and 9."""
    run = write_run(tmp_path / "run", [with_step(make_record(i), i + 2) for i in (1, 6, 7)])
    assert "first trains 7 steps again, from the start of the run" in notes(run)[1]
    write_checkpoints(run, {2: 0, 7: 0})
    first, second, third = notes(run)
    assert (first, second) == ("", "")
    assert "first trains 1 step again, from the checkpoint of step 7" in third
    for file in (run / "checkpoints").rglob("*.*"):
        object_store.pipe(f"gs://bucket/run/{file.relative_to(run)}", file.read_bytes())
    object_store.pipe("gs://bucket/run/checkpoints/7/meta/metadata", b'{"step": 7}')
    (run / "checkpoints" / "7" / "digests.json").unlink()  # it is not complete
    assert "5 steps again, from the checkpoint of step 2" in notes(run)[1]
    assert notes(run, "gs://bucket/run")[1] == ""
    assert notes(write_run(tmp_path / "without imitation", [with_step(make_record(1), 1)])) == [""]
    # After a roll-back.
    after = write_run(tmp_path / "rolled back", [with_step(make_record(8), 10, roll_backs=1)])
    (after / "roll_backs").mkdir()
    (after / "roll_backs" / "1.json").write_text('{"step": 4}')
    write_checkpoints(after, {9: 0})
    assert "no checkpoint that leads to it is left" in notes(after)[0]
    write_checkpoints(after, {4: 0})
    assert "5 steps again, from the checkpoint of step 4" in notes(after)[0]
    monkeypatch.setattr(replay_notes, "complete_steps", mock.Mock(side_effect=RuntimeError("no access")))
    entry = RunData(run, boards=False).refresh()[0]
    assert [info["replay_note"] for info in entry["iterations"]] == ["", "", ""]
    assert "no access" in entry["notes"][0]
