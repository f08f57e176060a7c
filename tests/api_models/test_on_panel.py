"""API models on panels: the panel's levels and limits, and a record only where every episode was answered."""

import json

import pytest
import tiny_run
from fake_api import FakeApi, completion

from agentrl_jax.evaluate.leaderboard import make_leaderboard
from agentrl_jax.evaluate.panels import get_panel
from agentrl_jax.evaluate.scripted import evaluate_on_panel
from agentrl_jax.services.environments.maze import Oracle


def evaluate(url, out, *words):
    return tiny_run.command("eval", "--api", "m", "--base_url", url, "--out", str(out), *words)


def walk(body):
    """Plays the maze by a shortest path."""
    return f"Thought: on\n\nAction: {Oracle().act(body['messages'][-1]['content'])}"


def test_a_service(tmp_path):
    """The record stands beside that of the oracle, which plays the same."""
    api, panel = FakeApi(walk), get_panel("maze-v1")
    with api.running() as url:
        code, out, err = evaluate(url, tmp_path / "m", "--panel", "maze-v1", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert record == json.loads((tmp_path / "m" / "record.json").read_text())
    assert (record["panel"], record["agent"]["kind"]) == ({"name": panel.name, "sha256": panel.sha256}, "api")
    assert record["outcomes"]["samples"] == [[1]] * len(panel)
    assert record["mean_turns"] == pytest.approx(evaluate_on_panel("oracle", "maze-v1")["mean_turns"])
    board = make_leaderboard(str(tmp_path / "m"))
    assert [(row.agent, row.kind, row.success["mean"]) for row in board.tables["maze-v1"]] == [("m", "api", 1.0)]


def test_a_compiled_environment(tmp_path):
    """Levels, seed and limit of actions are the panel's."""
    api = FakeApi(lambda body: "<answer>Down||Down||Right</answer>")
    with api.running() as url:
        words = ("--panel", "frozen-lake-4x4-v1", "--turns", "1", "--style", "compact")
        code, out, err = evaluate(url, tmp_path / "m", *words, "--json")
    assert code == 0, err
    record, panel = json.loads(out), get_panel("frozen-lake-4x4-v1")
    assert len(record["outcomes"]["samples"]) == len(panel)
    (row,) = make_leaderboard(str(tmp_path / "m")).tables[panel.name]
    assert row.gap_closed == pytest.approx(record["results"]["gap_closed"])
    assert (record["decoding"]["actions"], record["decoding"]["turns"]) == (panel.max_actions, 1)


def test_no_record_with_a_cut_reply(tmp_path):
    def answer(body):
        return completion("too long", finish="length") if len(api.requests) == 1 else walk(body)

    api = FakeApi(answer)
    with api.running() as url:
        code, _, err = evaluate(url, tmp_path / "m", "--panel", "maze-v1", "--concurrency", "1")
    assert code == 2
    assert "1 of " in err
    assert "no record of maze-v1" in err
    assert not (tmp_path / "m" / "record.json").exists()
    assert json.loads((tmp_path / "m" / "summary.json").read_text())["episodes"]["length"] == 1


@pytest.mark.parametrize("words", [("--env", "maze"), ("--items", "0"), ("--episodes", "3"), ("--turns", "2")])
def test_what_a_panel_fixes_is_refused(tmp_path, words):
    code, _, err = evaluate("http://127.0.0.1:9/v1", tmp_path / "m", "--panel", "maze-v1", *words)
    assert code == 2
    assert f"{words[0]} is {words[1]}, which --panel maze-v1 fixes" in err
