"""API models on levels in the words of their prompts, and on panels: with their limits, and a record at the end."""

import dataclasses
import json

import numpy as np
import pytest
import tiny_run
from fake_api import FakeApi, completion
from maze_model import at, evaluate, lines_in, played, walk
from refusing import refusal
from serving import running

from agentrl_jax.config import Config, EvalConfig, PromptConfig, TaskConfig
from agentrl_jax.evaluate.api_models.evaluate import evaluate_api
from agentrl_jax.evaluate.api_models.level_task import level_task
from agentrl_jax.evaluate.api_models.on_panel import on_panel
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.evaluate.baselines import success_intervals
from agentrl_jax.evaluate.leaderboard import make_leaderboard, row_of
from agentrl_jax.evaluate.level_set import level_set
from agentrl_jax.evaluate.panels import get_panel
from agentrl_jax.evaluate.records import Record
from agentrl_jax.evaluate.scripted import evaluate_on_panel
from agentrl_jax.evaluate.statistics import success_interval
from agentrl_jax.rollout.trajectory import hexadecimal
from agentrl_jax.services.environments.maze.env import SERVICE, STARTS, Maze
from agentrl_jax.services.protocol import routes_of
from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import Limits
from agentrl_jax.setup import build
from agentrl_jax.text.tokenizer import load_small
from envs_jax import registry

SOLUTIONS = {"#PXO_#": "Right", "#P_###": "Down"}
"""The action that solves each level, by a row of the level."""


def solve(body):
    shown = body["messages"][-1]["content"]
    return f"<answer>{next(action for row, action in SOLUTIONS.items() if row in shown)}</answer>"


def boxes(tmp_path):
    (tmp_path / "levels.txt").write_text(tiny_run.LEVELS)
    return TaskOptions(env="SimpleSokoban", levels=str(tmp_path / "levels.txt"), concurrency=1, max_tokens=40)


LAKES = TaskOptions(env="FrozenLake", style="compact", turns=3, actions_per_turn=2, seed=9)


@pytest.mark.nightly
def test_the_levels_of_a_file_in_ragens_words(tmp_path):
    """The first reply of each episode has the wrong format, which takes a turn; the limit that is sent is shown."""

    def answer(body):
        return "Right" if len(body["messages"]) == 2 else solve(body)

    api, options = FakeApi(answer), dataclasses.replace(boxes(tmp_path), max_tokens=512)
    with api.running() as url:
        wrong = {"max_completion_tokens": "40 tokens"}
        assert refusal(evaluate_api, "m", url, options, tmp_path / "b", extra=wrong).key == "max_completion_tokens"
        extra = {"max_tokens": None, "max_completion_tokens": 40}
        result = evaluate_api("m", url, options, tmp_path / "out", extra=extra)
    assert (result["style"], result["items"], result["success_all"]["mean"]) == ("ragen", 2, 1.0)
    assert result["max_tokens"] == api.requests[0]["max_completion_tokens"] == 40
    assert "max_tokens" not in api.requests[0]
    assert result["null"]["mean"] == 0 < result["random"]["mean"] < result["optimal"]["mean"] == 1
    first, second = (request["messages"] for request in api.requests[:2])
    assert [message["role"] for message in first] == ["system", "user"]
    assert "Turn 1:\nState:\n######\n#PXO_#" in first[1]["content"]
    assert first[1]["content"].endswith(" </answer> and nothing else, in at most 40 words.")
    assert second[:3] == [*first, {"role": "assistant", "content": "Right"}]
    assert second[3]["content"].startswith("Reward:\n")
    assert "Turn 2:\nState:\n######\n#PXO_#" in second[3]["content"]


def test_lines_are_those_of_the_items(tmp_path):
    every = level_task(dataclasses.replace(LAKES, items="0-5")).item_lines()
    some = level_task(dataclasses.replace(LAKES, items="5,2,40")).item_lines()
    for name, known in every.items():
        assert some[name][:2] == [known[5], known[2]]
        assert len(some[name]) == 3
    assert len(level_task(TaskOptions(env="Bandit", style="compact", episodes=70_000)).items) == 70_000
    refused = refusal(level_task, dataclasses.replace(LAKES, items=str(2**14)))
    assert (refused.key, refused.value) == ("--items", 2**14)
    (tmp_path / "items.json").write_text('[{"item_id": "FrozenLake_1"}, {"item_id": "FrozenLake_1"}]')
    twice = dataclasses.replace(LAKES, items=str(tmp_path / "items.json"))
    assert "an item is named twice" in str(refusal(level_task, twice))


def test_items_are_the_test_levels_of_a_run():
    task = level_task(dataclasses.replace(LAKES, items="2,5"))
    prompt = PromptConfig(max_turns=3, max_actions_per_turn=2, max_response_tokens=512, forced_tag=False)
    config = Config(tasks=(TaskConfig(env="FrozenLake", groups=1),), prompt=prompt, evaluation=EvalConfig(seed=9))
    levels = level_set(config, build.build_compiled_env(config, load_small()), None)
    known, (env, params) = levels.baselines(6), registry.make("FrozenLake")
    chosen = known._replace(random=known.random[[2, 5]], optimal=known.optimal[[2, 5]], null=known.null[[2, 5]])
    turns = {"random": known.turns["random"][[2, 5]].mean(), "null": 3}
    assert task.lines(1) == success_intervals(chosen) | {"optimal_is": known.optimal_is, "baseline_turns": turns}
    for item in (2, 5):
        episode, board = task.open(item, 0), levels.boards(6)[item]
        shown, state = episode.start()[1][1], env.reset_to_level(board, params)[1]
        assert episode.level() == hexadecimal(np.asarray(env.state_hash(state, params))[None])[0]
        assert shown == "\n".join([*("".join("_OGP"[cell] for cell in row) for row in board), "10"])


SCRIPTED = {"random": "random", "null": "null", "optimal": "oracle"}


def test_a_panel_of_a_service(tmp_path):
    panel, (code, out, err, _) = get_panel("maze-v1"), evaluate(walk, tmp_path / "m", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert record == json.loads((tmp_path / "m" / "record.json").read_text())
    assert (record["panel"], record["agent"]["kind"]) == ({"name": panel.name, "sha256": panel.sha256}, "api")
    assert record["outcomes"]["samples"] == [[1]] * len(panel)
    lines = {name: evaluate_on_panel(policy, "maze-v1") for name, policy in SCRIPTED.items()}
    assert record["mean_turns"] == pytest.approx(lines["optimal"]["mean_turns"])
    for name, line in lines.items():
        assert record["outcomes"][name] == [solved for (solved,) in line["outcomes"]["samples"]]
    board = make_leaderboard(str(tmp_path / "m"), against="random play")
    rows = {row.agent: row for row in board.tables["maze-v1"]}
    assert (rows["m"].kind, rows["m"].success["mean"], rows["m"].gap_closed) == ("api", 1.0, 1.0)
    assert rows["m"].difference["mean"] == pytest.approx(1 - lines["random"]["success"]["mean"])


def test_cut_refused_and_failed_episodes_have_no_outcome_and_cannot_help(tmp_path):
    def answer(body):
        if at(0, body, 1):
            return 400, {}, {"error": {"message": "odd"}}
        if at(1, body, 1):
            return completion("too long", finish="length")
        return completion(None, refusal="I must not walk.") if at(2, body, 1) else walk(body)

    code, out, err, _ = evaluate(answer, tmp_path / "a", "--json")
    assert (code, err.splitlines()[-1].split(";")[0]) == (1, "agentrl: 0 of 25 episodes are unfinished and 1 failed")
    record = Record.model_validate_json(out)
    assert record.outcomes.samples == [[None]] * 3 + [[1.0]] * 22
    assert record.outcomes.unanswered.model_dump() == {"length": 1, "refusal": 1, "failed": 1}
    assert (record.results["success"]["mean"], record.results["success_answered"]["mean"]) == (0.88, 1.0)
    row = row_of(record, "")
    assert row.success == success_interval([0.0] * 3 + [1.0] * 22)
    assert row.success_answered == success_interval([1.0] * 22)
    assert (row.answered, row.unanswered) == (22, {"length": 1, "refusal": 1, "failed": 1})
    code, out, err, _ = evaluate(lambda body: completion("", "length"), tmp_path / "b", "--json")
    assert code == 0, err
    row = row_of(Record.model_validate_json(out), "")
    assert (row.success["mean"], row.success_answered, row.answered, row.turns) == (0.0, None, 0, None)
    board = " ".join(tiny_run.command("leaderboard", str(tmp_path))[1].split())
    assert "1 refused, 1 failed count as not solved" in board
    assert "none was answered" in board

    # An unfinished episode means no record.
    def answer(body):
        return (200, {}, b"<html>Welcome</html>") if at(3, body, 1) else walk(body)

    code, out, err, _ = evaluate(answer, tmp_path / "c", "--retries", "0")
    assert (code, (tmp_path / "c" / "record.json").exists()) == (1, False)
    assert "1 of 25 episodes are unfinished and 0 failed" in err.splitlines()[-1]
    assert all(part in out for part in ("unfinished: item 3, sample 0:", "but <html>Welcome</html>"))


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
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
