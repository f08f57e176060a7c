"""What the page holds, without a browser."""

import base64
import hashlib
import json
import re
import shutil
import threading
from pathlib import Path

import httpx
import numpy as np
import page_runs
import pytest
from page_runs import TOKENIZER, Scripts, decode_page, make_record, write_run
from tiny_run import command

import agentrl_jax.viewer
from agentrl_jax.errors import UserError
from agentrl_jax.rollout.trajectory import hexadecimal
from agentrl_jax.runs.remote import local_copy, refresh_copy
from agentrl_jax.runs.rollout_records import record_path, recorded_iterations, write_record
from agentrl_jax.viewer import data, export, scenes
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.live import PageServer
from agentrl_jax.viewer.pieces import Pieces

WEB = Path(agentrl_jax.viewer.__file__).parent / "web"


@pytest.fixture(autouse=True)
def boards(monkeypatch):
    monkeypatch.setattr(data, "scenes", page_runs.DrawnBoards())


@pytest.fixture(scope="module")
def records():
    return [make_record(i) for i in (1, 10, 40)]


@pytest.fixture(scope="module")
def run(tmp_path_factory, records):
    return write_run(tmp_path_factory.mktemp("home") / "run one", records)


def test_rows_and_tokens_are_those_of_the_records(run, records):
    index, (rows, *blocks) = decode_page(export.page([RunData(run)]))
    entry = index["runs"][0]
    assert [info["iteration"] for info in entry["iterations"]] == [1, 10, 40]
    columns = rows[1]
    np.testing.assert_array_equal(columns["return"], np.concatenate([r.returns for r in records]))
    np.testing.assert_array_equal(columns["success"], np.concatenate([r.success.any(1) for r in records]))
    np.testing.assert_array_equal(columns["iteration"], np.repeat([1, 10, 40], 8))
    hashes = np.stack([columns["level_high"], columns["level_low"]], 1)
    assert hexadecimal(hashes) == hexadecimal(np.concatenate([r.state_hash[:, 0] for r in records]))
    ids = np.asarray([token for token, _ in entry["pieces"]])
    for record, (_, block) in zip(records, blocks, strict=True):
        sampled = np.arange(record.tokens.shape[2]) < record.length[..., None]
        np.testing.assert_array_equal(ids[block["tokens"]], record.tokens[sampled])
        np.testing.assert_array_equal(block["trained"], record.trained[sampled])
        close = {"rtol": 0.01, "atol": 1e-3}
        np.testing.assert_allclose(block["logprob_table"][block["logprob"]], record.logprob[sampled], **close)
        gap = (record.learner_logprob - record.logprob)[sampled]
        np.testing.assert_allclose(block["gap_table"][block["gap"]], gap, rtol=0.05, atol=1e-5)
        np.testing.assert_array_equal(block["turns"], record.num_turns)
        seen = np.arange(record.observation.shape[2]) < record.observation_length[..., None]
        np.testing.assert_array_equal(ids[block["observation_tokens"]], record.observation[seen])
        played = np.arange(record.reward.shape[1]) < record.num_turns[:, None]
        np.testing.assert_array_equal(block["reward"], record.reward[played])
        np.testing.assert_array_equal(block["actions"], record.actions[played][record.actions[played] >= 0])


def test_index_has_trend_lines_alarms_and_the_command(run):
    entry = decode_page(export.page([RunData(run)]))[0]["runs"][0]
    assert entry["name"] == "run one"
    assert entry["replay"] == f"agentrl replay '{run}'"
    assert entry["actions"] == {"FrozenLake": list(page_runs.ACTIONS)}
    assert [line["name"] for line in entry["lines"]] == ["random", "optimal"]
    assert entry["lines"][0]["mean"] == 0.12
    assert [(alarm["name"], alarm["iterations"]) for alarm in entry["alarms"]] == [
        ("entropy_lost", list(range(33, 41)))
    ]
    metrics = {metric["metric"]: metric["values"] for metric in entry["trend"]["metrics"]}
    assert len(metrics["train/success"]) == len(entry["trend"]["iteration"]) == 40
    assert metrics["validation/success"][8:10] == [None, pytest.approx(metrics["validation/success"][9])]


def test_scenes_are_stored_by_distinct_stacks(run, records):
    header, block = decode_page(export.page([RunData(run)]))[1][1]
    boards = page_runs.DrawnBoards().run_scenes(None, None, records[0])
    flat = [scene for episode in boards for scene in episode]
    assert block["scene_count"].tolist() == [len(episode) for episode in boards]
    assert block["scene_count"][-1] == 0
    stacks = header["scenes"]["stacks"]
    found = [stacks[i] for i in block["scene_cells"]]
    assert found == [cell for scene in flat for row in scene["cells"] for cell in row]
    actions = [header["scenes"]["actions"][i] for i in block["scene_action"]]
    assert actions == [scene["action"] for scene in flat]
    assert [header["scenes"]["texts"][i].split("\n") for i in block["scene_text"]] == [scene["text"] for scene in flat]


def test_text_scenes_have_no_cells(tmp_path, records, monkeypatch):
    class Texts(page_runs.DrawnBoards):
        def run_scenes(self, run, config, record, note=None):
            return [[{"kind": "text", "turn": 0, "action": None, "text": ["two arms"]}] for _ in record.task]

    monkeypatch.setattr(data, "scenes", Texts())
    _, block = decode_page(export.page([RunData(write_run(tmp_path / "run", records[:1]))]))[1][1]
    assert block["scene_width"].tolist() == [0] * 8
    assert block["scene_cells"].size == 0


def test_no_boards_are_no_error(run, monkeypatch):
    class Broken(page_runs.DrawnBoards):
        def run_scenes(self, run, config, record, note=None):
            raise UserError("levels.txt: there is no such file")

    notes = []
    monkeypatch.setattr(data, "scenes", Broken())
    header, _ = decode_page(export.page([RunData(run, note=notes.append)]))[1][1]
    assert "scenes" not in header
    assert "no boards: levels.txt: there is no such file" in notes
    assert "scenes" not in decode_page(export.page([RunData(run, boards=False)]))[1][1][0]


def test_an_unknown_environment_is_one_error(tmp_path, records, monkeypatch, caplog):
    monkeypatch.setattr(data, "scenes", scenes)
    file = write_run(tmp_path / "run", records[:1]) / "config.yaml"
    file.write_text(file.read_text().replace("env: FrozenLake", "env: Corridor"))
    code, out, err = command("view", str(file.parent), "--no_browser")
    assert (code, out, caplog.text) == (2, "", "")
    assert err.startswith("agentrl: no environment is called 'Corridor'")
    assert err.count("\n") == 1


HOSTILE = "</script><img src=x onerror=alert(1)><!-- <script>alert(2)</script> \u202egnp.exe ]]>"


def test_hostile_texts_cannot_leave_their_element(tmp_path):
    folder = write_run(tmp_path / "<b>run<!--", [make_record(1, observation=HOSTILE)])
    text = export.page([RunData(folder)])
    plain = Scripts(text)
    assert "img" not in plain.tags
    assert "b" not in plain.tags
    data_parts = [body for attrs, body in plain.scripts if "id" in attrs]
    assert len(data_parts) == 3
    assert all(re.fullmatch(r"[A-Za-z0-9+/=]+", body) for body in data_parts)
    assert plain.tags.count("script") == 4
    entry = decode_page(text)[0]["runs"][0]
    assert "<" in {piece for _, piece in entry["pieces"] if isinstance(piece, str)}


@pytest.mark.parametrize("live", ["", "1"])
def test_policy_allows_the_page_alone(run, live):
    text = export.page([RunData(run)], live=live)
    found = Scripts(text)
    assert found.policy.startswith("default-src 'none'; ")
    assert ("connect-src 'self'" in found.policy) == bool(live)
    assert "unsafe" not in found.policy
    program = found.scripts[-1][1]
    style = re.search("<style>(.*?)</style>", text, re.S).group(1)
    for body in (program, style):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" in found.policy
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)


def test_sources_set_no_markup():
    sources = {file: file.read_text() for file in (WEB / "src").iterdir()}
    assert len(sources) > 10
    assert [
        file.name for file, text in sources.items() if re.search("innerHTML|insertAdjacent|document.write", text, re.I)
    ] == []


def test_pieces_keep_bytes_that_are_no_character():
    euro = "€".encode()
    partial = [i for i, data in enumerate(TOKENIZER.token_bytes) if data is not None and data in (euro[:1], euro[1:2])]
    pieces = Pieces(TOKENIZER)
    numbers = pieces.numbers(np.asarray([[*partial, TOKENIZER.end_of_turn_id], [-1, 10**6, partial[0]]]))
    assert numbers.tolist() == [[0, 1, 2], [3, 3, 0]]
    entries = [entry for _, entry in pieces.table()]
    assert sorted(entry["bytes"] for entry in entries[:2]) == ["82", "e2"]
    assert entries[2:] == [{"special": TOKENIZER.special_name(TOKENIZER.end_of_turn_id)}, None]
    more = pieces.numbers(np.asarray([partial[1], 5]))
    assert more[0] == 1
    assert more[1] == 4


def test_refresh_packs_new_iterations_only(tmp_path, records):
    folder = write_run(tmp_path / "run", records[:1])
    notes = []
    run = RunData(folder, note=notes.append)
    before = run.stamp()
    run.refresh()
    assert notes == ["iteration 1 (1 of 1)"]
    write_record(folder, records[1])
    assert run.stamp() != before
    entry, blocks = run.refresh()
    assert notes[1:] == ["iteration 10 (2 of 2)"]
    assert len(blocks) == 3
    entry, _ = RunData(folder, newest=1).refresh()
    assert [info["iteration"] for info in entry["iterations"]] == [10]


def test_runs_without_records_are_refused(tmp_path):
    run = RunData(write_run(tmp_path / "run", []))
    with pytest.raises(UserError, match="has no recorded rollouts; train it with"):
        run.refresh()


def test_a_page_that_browsers_refuse_is_not_written(run, monkeypatch):
    monkeypatch.setattr(export, "LARGEST", 1000)
    with pytest.raises(UserError, match="show fewer iterations with --newest"):
        export.page([RunData(run)])


def test_command_writes_the_file(run, tmp_path, monkeypatch):
    file = tmp_path / "page.html"
    code, out, err = command("view", str(run), "--export", str(file))
    assert (code, out) == (0, f"page: {file} ({file.stat().st_size / 1e6:.1f} MB)\n")
    assert "agentrl view: iteration 40 (3 of 3)" in err
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    other = shutil.copytree(run, tmp_path / "other" / run.name)
    code, out, err = command("view", str(run), "--compare", str(other), "--newest", "1")
    assert code == 0
    assert "no level is in both" not in err
    assert opened == [(run / "view.html").resolve().as_uri()]
    index, _ = decode_page((run / "view.html").read_text())
    assert [[info["iteration"] for info in entry["iterations"]] for entry in index["runs"]] == [[40], [40]]
    assert [entry["name"] for entry in index["runs"]] == [f"{run.parent.name}/run one", "other/run one"]


def test_names_are_the_shortest_that_differ(tmp_path, records):
    runs = [tmp_path / "a" / "same" / "demo", tmp_path / "b" / "same" / "demo"]
    for folder in runs:
        folder.parent.mkdir(parents=True)
        write_run(folder, records[:1])
    shown = [RunData(folder, boards=False) for folder in runs]
    names = [entry["name"] for entry in decode_page(export.page(shown))[0]["runs"]]
    assert names == ["a/same/demo", "b/same/demo"]
    assert decode_page(export.page(shown[:1]))[0]["runs"][0]["name"] == "demo"
    shown[0].place = "gs://bucket/same/demo"
    names = [entry["name"] for entry in decode_page(export.page(shown))[0]["runs"]]
    assert names == ["bucket/same/demo", "b/same/demo"]


def test_a_comparison_of_nothing_is_said_at_once(tmp_path, records):
    runs = [write_run(tmp_path / "one", records[:1]), write_run(tmp_path / "two", records[1:2])]
    words = ("view", str(runs[0]), "--compare", str(runs[1]), "--no_boards", "--no_browser")
    code, _, err = command(*words)
    assert code == 0
    assert f"no level is in both {runs[0]} and {runs[1]}" in err
    assert "no level is in both" not in command(*words[:2], "--no_boards", "--no_browser")[2]
    code, _, err = command("view", str(runs[0]), "--compare", f"{runs[0]}/../one/")
    assert code == 2
    assert "name another run or evaluation" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--export", "/no/such/folder/x.html"], "its folder is not there"),
        (["--export", "/tmp"], "--export is /tmp, a folder; name a file"),
        (["--newest", "-1"], "--newest is -1"),
        (["--port", "70000"], "--port is 70000"),
        (["--live", "--export", "x.html"], "give one of them"),
    ],
)
def test_command_refuses(run, words, message):
    code, out, err = command("view", str(run), *words)
    assert (code, out) == (2, "")
    assert message in err


def test_a_run_in_an_object_store_is_shown(run, records, object_store, tmp_path, monkeypatch):
    place, file = "gs://bucket/runs/far", tmp_path / "page.html"
    object_store.put(str(run), place, recursive=True)
    code, _, err = command("view", place, "--export", str(file), "--compare", str(run))
    assert code == 0, err
    (far, near) = decode_page(file.read_text())[0]["runs"]
    assert (far["name"], far["replay"]) == ("far", f"agentrl replay {place}")
    assert [info["iteration"] for info in far["iterations"]] == [1, 10, 40]
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


@pytest.mark.parametrize(
    ("place", "words", "message"),
    [
        ("gs://bucket/runs/far", ["--export", "x.html"], "cannot be read (there is no such folder)"),
        ("gs://bucket/runs", ["--live"], "it holds no config.yaml"),
        ("gs://bucket/runs/far", [], "say with --export FILE.html where to write its page"),
    ],
)
def test_a_place_without_a_run_is_refused(object_store, place, words, message):
    object_store.pipe("gs://bucket/runs/other/config.txt", b"")
    code, _, err = command("view", place, *words)
    assert code == 2
    assert message in err


def test_a_summary_that_cannot_be_read_is_left_out(tmp_path, records):
    folder = write_run(tmp_path / "run", records[:1])
    assert RunData(folder).refresh()[0]["notes"] == []
    (folder / "summary.json").write_text("{")
    notes = []
    entry, _ = RunData(folder, note=notes.append).refresh()
    assert entry["lines"] == []
    assert [note.split(" (")[0] for note in entry["notes"]] == ["summary.json cannot be read"]
    assert entry["notes"][0] in notes
    (folder / "summary.json").write_text('{"success": {"random": 3, "optimal": {"mean": null}}}')
    assert RunData(folder).refresh()[0]["lines"] == []


def test_numbers_that_no_float_holds_are_left_out(tmp_path, records):
    folder = write_run(tmp_path / "run", records[:1], iterations=2)
    first, second = (folder / "metrics.jsonl").read_text().splitlines()
    huge = json.loads(first) | {"train/success": 10**400, "actor/entropy": -(10**400)}
    (folder / "metrics.jsonl").write_text(f"{json.dumps(huge)}\n{second}\n")
    (folder / "summary.json").write_text(json.dumps({"success": {"random": {"mean": 10**400}}}))
    entry = decode_page(export.page([RunData(folder)]))[0]["runs"][0]
    values = {metric["metric"]: metric["values"] for metric in entry["trend"]["metrics"]}
    for metric in ("train/success", "actor/entropy"):
        assert values[metric] == [None, json.loads(second)[metric]]
    assert entry["lines"] == []


def test_damaged_records_are_left_out(tmp_path, records):
    folder = write_run(tmp_path / "run", records)
    whole = record_path(folder, 10).read_bytes()
    record_path(folder, 10).write_bytes(whole[: len(whole) // 2])
    notes = []
    shown = RunData(folder, boards=False, note=notes.append)
    for _ in range(2):  # a damaged file is read once
        index, (rows, *blocks) = decode_page(export.page([shown]))
        assert [info["iteration"] for info in index["runs"][0]["iterations"]] == [1, 40]
        assert (len(blocks), rows[1]["iteration"].tolist()) == (2, [1] * 8 + [40] * 8)
        assert index["runs"][0]["notes"] == [
            "Left out because the file cannot be read: 1 recorded iteration (000010.npz)."
        ]
    assert ["000010.npz" in note and note.endswith("left out") for note in notes] == [False, True, False]
    record_path(folder, 10).write_bytes(whole)
    assert shown.refresh()[0]["notes"] == []
    middle = bytearray(whole)
    middle[len(whole) // 2 : len(whole) // 2 + 200] = bytes(200)  # the archive is whole, what it holds is not
    for iteration in (1, 10, 40):
        record_path(folder, iteration).write_bytes(bytes(middle))
    with pytest.raises(UserError, match="is no rollout of a run"):
        RunData(folder).refresh()


@pytest.fixture
def served(tmp_path, records):
    folder = write_run(tmp_path / "run", records[:1])
    with PageServer([RunData(folder)]) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield folder, server
        server.shutdown()
        thread.join()


def test_live_page_follows_the_run(served, records):
    folder, server = served
    assert server.url.startswith("http://127.0.0.1:")
    first = httpx.get(server.url)
    assert first.headers["cache-control"] == "no-store"
    index, _ = decode_page(first.text)
    assert index["live"] == httpx.get(f"{server.url}version").text
    write_record(folder, records[1])
    version = httpx.get(f"{server.url}version").text
    assert version != index["live"]
    index, _ = decode_page(httpx.get(server.url).text)
    assert index["live"] == version
    assert [info["iteration"] for info in index["runs"][0]["iterations"]] == [1, 10]


def test_live_page_is_for_this_machine(served):
    folder, server = served
    assert httpx.get(server.url, headers={"Host": f"evil.example:{server.server_port}"}).status_code == 421
    assert httpx.get(f"{server.url}../config.yaml").status_code == 404
    assert httpx.post(server.url).status_code == 501
    head, body = httpx.head(server.url), httpx.get(server.url)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(body.content))
    shutil.rmtree(folder / "rollouts")
    answer = httpx.get(server.url)
    assert answer.status_code == 503
    assert "has no recorded rollouts" in answer.text
    with pytest.raises(UserError, match="--port is"):
        PageServer([], server.server_port)
