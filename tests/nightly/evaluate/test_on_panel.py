"""API models on panels of a server with other items and of a compiled environment."""

import dataclasses
import json

from maze_model import evaluate, lines_in, walk
from serving import running

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
