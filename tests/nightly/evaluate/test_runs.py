"""Evaluations of whole runs: levels of files, panels, records and conversations; and of a model that is killed."""

import io
import json
import signal
import subprocess
import sys
import threading

import made_run
import numpy as np
import pytest
import tiny_run
from evaluating import refusal, result_of
from fake_api import FakeApi
from maze_model import replies_in, walk

from agentrl_jax.config import load_resolved
from agentrl_jax.evaluate import chat
from agentrl_jax.evaluate.panels import get_panel
from agentrl_jax.evaluate.records import read_record
from agentrl_jax.models.io.load import load_pretrained
from agentrl_jax.runs import rollout_records
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.services.environments.maze.env import STARTS, distances
from agentrl_jax.viewer.data import RunData
from envs_jax.budget import Budget
from envs_jax.frozen_lake.levels import parse_maps
from envs_jax.frozen_lake.open_loop import committed_success
from envs_jax.frozen_lake.oracle import optimal_success, random_success

LAKES = "SFFF\nFFFF\nFFFF\nFFFG\n\nSFFG\nHHHH\nHHHH\nHHHH\n\nSHFF\nHHFF\nFFFF\nFFFG\n"


def test_lakes_from_a_file(finished, tmp_path):
    """As text and as a pack; the lines are at the agent's budget: two turns of two actions of the ten of an episode."""
    file, pack, levels = tmp_path / "lakes.txt", tmp_path / "lakes.npy", np.stack(parse_maps(LAKES))
    file.write_text(LAKES)
    np.save(pack, levels)
    words = ("eval", finished.folder, "--env", "FrozenLake", "--temperature", "0.5", "--levels")
    result = result_of(*words, file)
    assert (result["env"], result["temperature"], result["success"]["n"]) == ("FrozenLake", 0.5, 3)
    assert result_of(*words, pack)["success"] == result["success"]
    rate = float(np.float32(1 / 3))
    assert result["random"]["mean"] == pytest.approx(random_success(levels, 4, rate).mean())
    assert result["optimal"]["mean"] == pytest.approx(committed_success(levels, Budget(10, 2, 2), rate).mean())
    # By hand: from the start of the third map every move but a slip at the edge ends in a hole.
    assert 0 < result["random"]["mean"] < result["optimal"]["mean"] < optimal_success(levels, 4, rate).mean() < 1
    assert (result["optimal_is"], result["null"]["mean"]) == ("exact", 0.0)


def test_other_environments_than_the_runs_own(finished):
    other = result_of("eval", finished.folder, "--env", "Bandit", "--episodes", "4")
    assert (other["random"]["mean"], other["optimal"]["mean"], other["null"]["mean"]) == (0.5, 1.0, 0.0)
    seen = result_of("eval", finished.folder, "--env", "CoordFrozenLake", "--episodes", "8")["seen"]
    assert (seen["held_out"], seen["seen_levels"], seen["seen_images"]) == (True, 0, 0)


def test_lines_follow_the_budget_of_turns(finished, tmp_path):
    words = ("--env", "FrozenLake", "--episodes", "8", "--turns", "2,3", "--out", tmp_path)
    two, three = result_of("scaling", finished.folder, *words)["axes"]["turns"]
    for name in ("random", "optimal"):
        assert three[name]["mean"] > two[name]["mean"]
    assert (two["baseline_turns"]["null"], three["baseline_turns"]["null"]) == (2, 3)
    for point in (two, three):
        random, optimal = (point[line]["mean"] for line in ("random", "optimal"))
        assert point["gap_closed"] == pytest.approx((point["success"]["mean"] - random) / (optimal - random))


def test_a_run_on_services_plays_a_panel_of_its_service(served, tmp_path):
    printed = result_of("eval", served, "--panel", "maze-v1", "--out", tmp_path / "record.json")
    record = read_record(tmp_path / "record.json")
    assert printed == record.model_dump(mode="json")
    assert (len(record.outcomes.samples), record.decoding.turns, record.mean_turns) == (25, 2, 2.0)
    assert record.seen.seen_levels == 0, "nothing was learned from"
    # By hand: only starts at most two moves from the goal can be solved in two turns.
    assert sum(record.outcomes.optimal) == sum(distances()[start] <= 2 for start in STARTS) == 2
    assert refusal("eval", served, "--panel", "wordle-v1").value == "wordle-v1"


def test_a_recorded_panel_is_named(finished, tmp_path):
    folder = tmp_path / "new"
    result_of("eval", finished.folder, "--panel", "bandit-v1", "--record", folder)
    evaluation = rollout_records.read_record(rollout_records.record_path(folder, 1)).header.evaluation
    panel = get_panel("bandit-v1")
    assert (evaluation.panel, evaluation.panel_sha256, evaluation.seed) == (panel.name, panel.sha256, panel.seed)
    assert read_config(folder).prompt.max_actions == panel.max_actions
    index, _ = RunData(folder, boards=False).refresh()
    assert index["about"] == f"Evaluation of {finished.folder}, iteration 4 on bandit-v1."


def test_a_conversation_beyond_the_positions_of_the_model_is_refused(tmp_path):
    model = made_run.write_model(tmp_path / "model", positions=160)
    run = made_run.write_run(tmp_path / "run", f"pretrained: {model}")
    message = str(refusal("scaling", run, "--attempts", "4", "--episodes", "2"))
    assert "--attempts 4, in one conversation: the longest context of a rollout has" in message


def test_the_policy_of_a_run_talks(tmp_path, monkeypatch):
    thinker = made_run.write_model(tmp_path / "thinker", made_run.THINKING)
    model = f"pretrained: {thinker}, lora: {{rank: 2, alpha: 3.0}}"
    run = made_run.write_run(tmp_path / "run", model, "think: true, max_response_tokens: 8")
    tiny_run.done("export", str(run), str(tmp_path / "whole"))
    found = chat.speaker(str(run))
    assert (found.positions, found.thinking) == (512, True)

    def response(speaker):
        return list(chat.Conversation(*speaker[:3], length=60).respond("Up?", 20))

    assert response(found) == response(chat.speaker(str(tmp_path / "whole")))
    base = load_pretrained(load_resolved(run / "config.yaml").model.pretrained)
    assert response(found) != response((base.params, base.config.decoder, found.tokenizer))
    monkeypatch.setattr("sys.stdin", io.StringIO("Up?\n"))
    out = tiny_run.done("chat", str(run), "--max_tokens", "4", "--length", "100")
    assert out == found.tokenizer.decode(response(found)[:4]) + "\n"


def test_an_evaluation_of_an_api_model_that_is_killed_goes_on(tmp_path):
    """While the process waits for answers; the next one asks nothing that was answered."""
    enough, held = threading.Event(), threading.Event()

    def answer(body):
        with api.lock:
            late = sum(api.asked.values()) >= 12
        if late and not held.is_set():
            enough.set()
            held.wait(30)
        return walk(body)

    api = FakeApi(answer)
    words = ["eval", "--api", "m", "--env", "maze", "--items", "0-7", "--concurrency", "2", "--out", str(tmp_path)]
    with api.running() as url:
        words += ["--base_url", url, "--json"]
        with subprocess.Popen([sys.executable, "-m", "agentrl_jax", *words], stderr=subprocess.DEVNULL) as process:
            assert enough.wait(120)
            process.send_signal(signal.SIGKILL)
        before = replies_in(tmp_path)
        assert 10 <= len(before) <= 12
        held.set()
        asked = len(api.requests)
        result = json.loads(tiny_run.done(*words))
    assert (result["episodes"]["answered"], result["success_all"]["mean"]) == (8, 1)
    after = replies_in(tmp_path)
    assert {key: after[key] for key in before} == before
    assert len(api.requests) - asked == len(after) - len(before) == result["requests"]
