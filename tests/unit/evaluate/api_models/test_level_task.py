"""Compiled environments in the words of their prompts, on the levels that runs play."""

import dataclasses

import numpy as np
import pytest
import tiny_run
from fake_api import FakeApi
from maze_model import played
from refusing import refusal

from agentrl_jax.config import Config, EvalConfig, PromptConfig, TaskConfig
from agentrl_jax.evaluate.api_models.evaluate import evaluate_api
from agentrl_jax.evaluate.api_models.level_task import level_task
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.evaluate.baselines import success_intervals
from agentrl_jax.evaluate.level_set import level_set
from agentrl_jax.rollout.trajectory import hexadecimal
from agentrl_jax.setup import build
from agentrl_jax.text.tokenizer import load_small
from envs_jax import registry

SOLUTIONS = {"#PXO_#": "Right", "#P_###": "Down"}
"""The action that solves each level of `tiny_run.LEVELS`, by a row of the level."""
LAKES = TaskOptions(env="FrozenLake", style="compact", turns=3, actions_per_turn=2, seed=9)


def solve(body):
    shown = body["messages"][-1]["content"]
    return f"<answer>{next(action for row, action in SOLUTIONS.items() if row in shown)}</answer>"


@pytest.fixture
def boxes(tmp_path):
    (tmp_path / "levels.txt").write_text(tiny_run.LEVELS)
    return TaskOptions(env="SimpleSokoban", levels=str(tmp_path / "levels.txt"), concurrency=1, max_tokens=40)


def test_the_levels_of_a_file_in_ragens_words(boxes, tmp_path):
    """The first reply of each episode has the wrong format, which takes a turn; the limit that is sent is shown."""

    def answer(body):
        return "Right" if len(body["messages"]) == 2 else solve(body)

    api, options = FakeApi(answer), dataclasses.replace(boxes, max_tokens=512)
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


def test_other_levels_in_the_file_are_not_added_to_those_before(boxes, tmp_path):
    first, second = tiny_run.LEVELS.strip("\n").split("\n\n")
    api, out = FakeApi(solve), tmp_path / "out"
    with api.running() as url:
        evaluate_api("m", url, dataclasses.replace(boxes, items="0"), out)
        both = dataclasses.replace(boxes, items="0,1")
        (tmp_path / "levels.txt").write_text(f"{second}\n\n{first}\n")
        assert "item 0 was played on another level" in str(refusal(evaluate_api, "m", url, both, out))
        (tmp_path / "levels.txt").write_text(f"{first}\n\n{second}\n\n{first}\n")
        result = evaluate_api("m", url, both, out)
    assert (len(api.requests), result["success_all"]["mean"]) == (2, 1.0)


def test_a_think_block_is_asked_for(boxes, tmp_path):
    def success(thought, **options):
        folder, options = tmp_path / str(len(thought)), dataclasses.replace(boxes, items="0", **options)
        result, api = played(lambda body: f"{thought}{solve(body)}", folder, options)
        asked.append("Response with <think> your reasoning" in api.requests[0]["messages"][1]["content"])
        return result["success_all"]["mean"]

    asked = []
    assert success("", think=True) == 0
    assert success("<think> push it </think>", think=True) == 1
    assert success("<think>perhaps <answer>Left</answer>?</think>") == 1
    assert asked == [True, True, False]


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
