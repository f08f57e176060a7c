"""Test-time scaling of an API model, whose points are evaluations; best-of-N and clustered intervals."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_run
from fake_api import FakeApi, completion
from maze_model import STAY, at, command, failures, maze, played, walk
from refusing import refusal

from agentrl_jax.evaluate.api_models.evaluate import evaluate_api
from agentrl_jax.evaluate.api_models.scaling import scale_api
from agentrl_jax.evaluate.api_models.summary import BestOfReplies
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.evaluate.statistics import success_interval
from agentrl_jax.text.styles import FEEDBACK

ITEMS = "15-18"


def walks(body):
    """Walks to the goal; from the farthest item only after a failure. A reply of less than 20 tokens is cut."""
    if body["max_tokens"] < 20:
        return completion("Thought: so lo", finish="length")
    return STAY if at(15, body, 1) and not failures(body) else walk(body)


WORDS = ("--env", "maze", "--items", ITEMS, "--concurrency", "2")
AXES = ("--turns", "1,2,4", "--tokens", "10,30", "--samples", "1,2", "--attempts", "1,2", "--selector", "shortest")


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    out, api = tmp_path_factory.mktemp("scaled"), FakeApi(walks)
    with api.running() as url:
        words = ("scaling", "--api", "m$_x^{$", "--base_url", url, *WORDS, *AXES, "--out", str(out))
        found = json.loads(tiny_run.done(*words, "--json"))
        asked = len(api.requests)
        assert "Success by attempts" in tiny_run.done(*words)
    assert len(api.requests) == asked
    assert (out / "scaling.png").exists()
    return found, out


@pytest.mark.nightly
def test_points_are_evaluations_and_success_grows_with_the_budget(scaled, tmp_path):
    found, out = scaled
    assert json.loads((out / "scaling.json").read_text()) == found
    assert (found["run"], found["env"], found["episodes"], found["unfinished"]) == ("m$_x^{$", "maze", 4, 0)
    alone, _ = played(walks, tmp_path, maze(ITEMS, turns=2))
    (two,) = [point for point in found["axes"]["turns"] if point["turns"] == 2]
    for name in ("success_answered", "success_all", "random", "null", "optimal", "baseline_turns", "gap_closed_all"):
        assert two[name] == alone[name]
    assert two["tokens_written"] == alone["tokens"]["completion_tokens"]
    assert (two["mean_turns"], two["mean_tokens"]) == (alone["turns_used"], two["tokens_written"] / 4)
    assert two["baseline_turns"]["null"] == 2
    folders = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert folders == ["attempts-2", "tokens-10", "tokens-30", "turns-1", "turns-2", "turns-4"]
    axes = found["axes"]
    for axis, name, means in (
        ("turns", "success_all", [0.25, 0.5, 0.75]),
        ("turns", "optimal", [0.25, 0.5, 1.0]),
        ("tokens", "success_all", [0, 0.75]),
        ("samples", "pass_at", [0.75, 0.75]),
        ("samples", "best_of", [0.75, 0.75]),
        ("attempts", "retry_all", [0.75, 1.0]),
        ("attempts", "pass_at_all", [0.75, 0.75]),
    ):
        assert [point[name]["mean"] for point in axes[axis]] == means
    cut, whole = axes["tokens"]
    assert (cut["success_answered"], whole["success_answered"]["mean"]) == (None, 0.75)
    assert found["retry"]["feedback"] == FEEDBACK
    once, twice = axes["samples"]
    for name in ("mean_turns", "mean_tokens"):
        assert twice[name] == 2 * once[name] > 0
    assert once["gap_closed"] == (0.75 - once["random"]["mean"]) / (once["optimal"]["mean"] - once["random"]["mean"])
    assert "gap_closed" not in twice, "single plays of a scripted policy are no probabilities"


def test_what_is_unfinished_is_said_and_asked_again(tmp_path):
    words = ("scaling", *WORDS, "--turns", "1", "--retries", "0", "--out", tmp_path)
    code, _, err, _ = command(lambda body: (503, {}, b"{}"), *words)
    assert (code, "4 episodes are unfinished; give the same command again" in err) == (1, True)
    assert (tmp_path / "scaling.png").exists()


@pytest.mark.parametrize("attempts", [(1,), (1, 2)])
def test_one_attempt_is_the_first_sample(tmp_path, attempts):
    """Of two samples of an item only the second one solves it; the point is the same with and without retries."""
    first = []

    def answer(body):
        if failures(body):
            return STAY
        first.append(len(first) % 2 == 0)
        return STAY if first[-1] else walks(body)

    with FakeApi(answer).running() as url:
        options = maze("18", turns=1, concurrency=1)
        found = scale_api(options, tmp_path, samples=(1, 2), attempts=attempts, model="m", base_url=url)
    once = found["axes"]["attempts"][0]
    names = ("retry_answered", "retry_all", "pass_at_all", "difference", "retry_turns", "retry_tokens")
    assert [once[name]["mean"] for name in names] == [0, 0, 0.5, -0.5, 1, 10]
    assert "pass@k here" in found["retry"]["note"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_limit_that_is_sent_is_the_axis(tmp_path, name):
    api = FakeApi(lambda body: completion("Action: s", finish="length"))
    with api.running() as url:
        call = {"model": "m", "base_url": url, "extra": {"max_tokens": None, name: 512}}
        scale_api(maze(ITEMS), tmp_path, turns=(1,), tokens=(10, 30), **call)
    assert {body[name] for body in api.requests} == {512, 10, 30}


# Of each item the samples: solved, tokens of each reply, last reply.
PLAYED = {
    3: [(True, [5, 9], "a"), (False, [2, 2], "b"), (True, [7], "a")],
    4: [(False, [1], "c"), (True, [8], ""), (False, [9], "c")],
    6: [(True, [4], "d"), (True, [4], "d"), (None, [500], "cut")],
}
CATEGORIES = {3: "x", 4: "y", 6: "y"}


def task(answer=None):
    return SimpleNamespace(env="maze", answer=answer)


def rows_and_replies():
    rows, replies = [], []
    for item, samples in PLAYED.items():
        for sample, (solved, tokens, text) in enumerate(samples):
            status = "length" if solved is None else "answered"
            key = {"item": item, "sample": sample}
            rows.append(key | {"status": status, "solved": bool(solved), "category": CATEGORIES[item]})
            for turn, count in enumerate(tokens):
                said = text if turn == len(tokens) - 1 else "on"
                replies.append(key | {"turn": turn, "reply": {"text": said, "completion_tokens": count}})
    return rows[::-1], replies[::-1]


def best(selector, k, answer=None, clusters=False):
    return BestOfReplies(selector, (k,), task(answer)).rates(*rows_and_replies(), 3, clusters=clusters)


def test_the_shortest_of_k_samples_the_oracle_and_the_most_frequent_answer():
    expected = []
    for item in (3, 4):
        pairs = list(itertools.combinations([(sum(tokens), solved) for solved, tokens, _ in PLAYED[item]], 2))
        expected.append(np.mean([min(pair)[1] for pair in pairs]))
    found = best("shortest", 2)
    assert found == {"selector": "shortest", "success": {"2": success_interval(expected)}}
    assert best("shortest", 3)["success"]["3"]["mean"] == 0.0
    assert best("oracle", 3)["success"]["3"] == success_interval([1.0, 1.0])
    assert best("oracle", 2)["success"]["2"]["mean"] == pytest.approx((1 + 2 / 3) / 2)
    assert best("majority", 3, answer=str.upper)["success"]["3"] == success_interval([1.0, 0.0])
    clustered = best("oracle", 2, clusters=True)["success"]["2"]
    assert (clustered["n"], clustered["clusters"]) == (2, 2)
    # Without an item that was answered whole there is no result.
    rows, replies = rows_and_replies()
    rows = [row | {"status": "refusal"} for row in rows if row["sample"] == 1]
    assert BestOfReplies("shortest", (2,), task()).rates(rows, replies, 3, clusters=False)["success"] == {}
    # Selectors that an API cannot have.
    for selector in ("value", "logprob", "majority"):
        refused = refusal(BestOfReplies, selector, (2,), task())
        assert (refused.key, refused.value) == ("--selector", selector)
    rows, replies = rows_and_replies()
    del replies[-1]["reply"]["completion_tokens"]
    uncounted = refusal(BestOfReplies("shortest", (2,), task()).rates, rows, replies, 3, clusters=False)
    assert "did not count the tokens of every reply" in str(uncounted)


def test_the_command_takes_one_of_two_samples(tmp_path):
    seeds = []

    def answer(body):
        seeds.append(body["seed"])
        first = body["seed"] == seeds[0]
        words = completion("Thought: on\n\nAction: " + ("stay" if first else "move down"))
        return words | {"usage": {"prompt_tokens": 9, "completion_tokens": 50 if first else 5}}

    words = "--env maze --items 18 --turns 1 --temperature 1 --seed 5 --concurrency 1 --best_of 2 --selector shortest"
    command(answer, "eval", *words.split(), "--out", tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert sorted(summary["outcomes"]["samples"][0]) == [0, 1]
    assert summary["best_of"]["success"]["2"]["mean"] == 1.0
    assert [summary[of][k]["mean"] for of in ("pass_at", "pass_all") for k in "12"] == [0.5, 1.0, 0.5, 0.0]


def test_intervals_of_clustered_items(tmp_path):
    def evaluated(items, folder, clusters=True):
        options = TaskOptions(env="textcraft", items=items, turns=1, attempts=2)
        return evaluate_api("m", url, options, tmp_path / folder, clusters=clusters, samples=2, plays=(1,))

    with FakeApi(lambda body: "Action: inventory").running() as url:
        plain = evaluated("0-2,125-127", "items", clusters=False)
        assert set(plain["outcomes"]["categories"]) == {"depth 1", "depth 2"}
        found = evaluated("0-2,125-127", "items")
        parts = [found[name] for name in ("success_all", "success_answered", "score_answered")]
        parts += [part[name] for part in (found, found["plays"]["1"]) for name in ("random", "null", "optimal")]
        assert {part["clusters"] for part in (*parts, *found["retry"]["attempts"]["2"].values())} == {2}
        for name in ("success_all", "null"):
            assert found[name]["high"] > plain[name]["high"]
        assert all("clusters" not in part["success_all"] for part in found["categories"].values())
        assert "at least two clusters" in str(refusal(evaluated, "3", "one"))
