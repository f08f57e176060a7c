"""Slow checks of what the quick tests of the same name check."""

import json

import pytest
import tiny_run
from fake_api import FakeApi, completion

from agentrl_jax.evaluate.api_models.evaluate import evaluate_api
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.services.environments.maze import STARTS, Oracle, describe
from agentrl_jax.text.styles import FEEDBACK

ITEMS = "15-18"
"""They start 4, 3, 2 and 1 moves from the goal."""


def walks(body):
    """Walks to the goal; from the farthest item only after a failure. A reply of less than 20 tokens is cut."""
    if body["max_tokens"] < 20:
        return completion("Thought: so lo", finish="length")
    texts = [message["content"] for message in body["messages"]]
    if texts[1] == describe(STARTS[15]) and not any(FEEDBACK in text for text in texts):
        return "Action: stay"
    return f"Action: {Oracle().act(texts[-1])}"


WORDS = ("--env", "maze", "--items", ITEMS, "--concurrency", "2")
AXES = ("--turns", "1,2,4", "--tokens", "10,30", "--samples", "1,2", "--attempts", "1,2", "--selector", "shortest")


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    """The result, its folder, and the numbers of requests of the command and of the same command again."""
    out, api = tmp_path_factory.mktemp("scaled"), FakeApi(walks)
    with api.running() as url:
        words = ("scaling", "--api", "m", "--base_url", url, *WORDS, *AXES, "--out", str(out))
        code, printed, err = tiny_run.command(*words, "--json")
        assert code == 0, err
        asked = len(api.requests)
        again = tiny_run.command(*words)
    assert again[0] == 0, again[2]
    return json.loads(printed), out, asked, len(api.requests) - asked, again[1]


def test_points_are_evaluations(scaled, tmp_path):
    found, out, asked, again, _ = scaled
    assert json.loads((out / "scaling.json").read_text()) == found
    assert (found["run"], found["env"], found["episodes"], found["unfinished"]) == ("m", "maze", 4, 0)
    with FakeApi(walks).running() as url:
        alone = evaluate_api("m", url, TaskOptions(env="maze", items=ITEMS, turns=2), tmp_path / "out")
    (two,) = [point for point in found["axes"]["turns"] if point["turns"] == 2]
    for name in ("success_answered", "success_all", "random", "null", "optimal", "baseline_turns", "gap_closed_all"):
        assert two[name] == alone[name]
    assert two["tokens_written"] == alone["tokens"]["completion_tokens"]
    assert (two["mean_turns"], two["mean_tokens"]) == (alone["turns_used"], two["tokens_written"] / 4)
    assert two["baseline_turns"]["null"] == 2
    assert asked > 40
    assert again == 0
    folders = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert folders == ["attempts-2", "tokens-10", "tokens-30", "turns-1", "turns-2", "turns-4"]
