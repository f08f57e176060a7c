"""API models on panels of a server with other items and of a compiled environment."""

import dataclasses
import json

import tiny_run
from fake_api import FakeApi
from maze_model import evaluate, lines_in, played, walk
from refusing import refusal
from serving import running
from solved_boxes import boxes, solve

from agentrl_jax.evaluate.api_models.evaluate import evaluate_api
from agentrl_jax.evaluate.api_models.level_task import level_task
from agentrl_jax.evaluate.api_models.on_panel import on_panel
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.evaluate.leaderboard import make_leaderboard
from agentrl_jax.evaluate.panels import get_panel
from agentrl_jax.services.environments.maze.env import SERVICE, STARTS, Maze
from agentrl_jax.services.protocol import routes_of
from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import Limits


def test_a_server_with_other_items_than_the_panel(tmp_path):
    moves = []

    class Other(Maze):
        def reset(self, item):
            return super().reset((item + 1) % len(STARTS))

        def step(self, action):
            moves.append(action)
            return super().step(action)

    served = dataclasses.replace(SERVICE, make=lambda upstream: Other())
    with running(create_app(served, routes_of("maze"), Limits())) as server:
        code, out, err, _ = evaluate(walk, tmp_path, "--url", server, "--json")
    assert (code, out) == (2, "")
    assert f"--panel is maze-v1, but item 0 begins with another text on the server at {server}" in err
    assert not (tmp_path / "record.json").exists()
    assert [row["solved"] for row in lines_in(tmp_path, "episodes")] == [True] * 25
    assert len(moves) > len(lines_in(tmp_path, "replies")), "null, random and optimal play move there, too"


def test_a_panel_of_a_compiled_environment(tmp_path):
    answer, words = "<answer>Down||Down||Right</answer>", ("--turns", "1", "--json")
    _, out, _, api = evaluate(lambda body: answer, tmp_path / "m", *words, panel="bandit-v1")
    record, panel = json.loads(out), get_panel("bandit-v1")
    assert len(record["outcomes"]["samples"]) == len(panel)
    row = next(row for row in make_leaderboard(str(tmp_path / "m")).tables[panel.name] if row.kind == "api")
    assert row.gap_closed == record["results"]["gap_closed"] == -1
    assert (record["decoding"]["actions"], record["decoding"]["turns"]) == (panel.max_actions, 1)
    assert record["decoding"]["seed"] == panel.seed
    assert all("seed" not in body for body in api.requests), "the seed of levels is none of sampling"
    for seed in (None, 0, 5):
        options = on_panel(TaskOptions(env="", seed=seed), panel)
        assert (options.seed, options.level_seed) == (seed, panel.seed)
    assert level_task(dataclasses.replace(options, style="ragen")).facts["seed_of_levels"] == panel.seed


def test_other_levels_in_the_file_are_not_added_to_those_before(tmp_path):
    first, second = tiny_run.LEVELS.strip("\n").split("\n\n")
    api, out = FakeApi(solve), tmp_path / "out"
    with api.running() as url:
        evaluate_api("m", url, dataclasses.replace(boxes(tmp_path), items="0"), out)
        both = dataclasses.replace(boxes(tmp_path), items="0,1")
        (tmp_path / "levels.txt").write_text(f"{second}\n\n{first}\n")
        assert "item 0 was played on another level" in str(refusal(evaluate_api, "m", url, both, out))
        (tmp_path / "levels.txt").write_text(f"{first}\n\n{second}\n\n{first}\n")
        result = evaluate_api("m", url, both, out)
    assert (len(api.requests), result["success_all"]["mean"]) == (2, 1.0)


def test_a_think_block_is_asked_for(tmp_path):
    def turns(first, later, **options):
        """How many turns an item takes with these thoughts in the first reply and in later ones."""

        def answer(body):
            return f"{first if len(body['messages']) == 2 else later}{solve(body)}"

        options = {"items": "0"} | options
        result, api = played(answer, tmp_path / str(len(asked)), dataclasses.replace(boxes(tmp_path), **options))
        asked.append("Response with <think> your reasoning" in api.requests[0]["messages"][1]["content"])
        assert result["success_all"]["mean"] == 1
        return result["turns_used"]

    asked = []
    assert turns("", "<think> push it </think>", think=True) == 2
    assert turns("<think>perhaps <answer>Left</answer>?</think>", "") == 1
    assert asked == [True, False]
