"""API models on levels in the words of their prompts, and on panels: with their limits, and a record at the end."""

import dataclasses
import json

import numpy as np
import pytest
import tiny_run
from fake_api import FakeApi, completion
from maze_model import at, evaluate, walk
from refusing import refusal
from solved_boxes import boxes, solve

from agentrl_jax.config import Config, EvalConfig, PromptConfig, TaskConfig
from agentrl_jax.evaluate.api_models.evaluate import evaluate_api
from agentrl_jax.evaluate.api_models.level_task import level_task
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.evaluate.baselines import success_intervals
from agentrl_jax.evaluate.leaderboard import make_leaderboard, row_of
from agentrl_jax.evaluate.level_set import level_set
from agentrl_jax.evaluate.panels import get_panel
from agentrl_jax.evaluate.records import Record
from agentrl_jax.evaluate.scripted import evaluate_on_panel
from agentrl_jax.evaluate.statistics import success_interval
from agentrl_jax.rollout.trajectory import hexadecimal
from agentrl_jax.setup import build
from agentrl_jax.text.tokenizer import load_small
from envs_jax import registry

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
