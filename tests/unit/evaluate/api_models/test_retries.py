"""Retries of API models: what is read after a failure, that first attempts stay what they are, and costs by attempt."""

import dataclasses
import itertools

import pytest
import tiny_run
from fake_api import completion
from maze_model import STAY, ended, failures, lines_in, maze, played, walk
from refusing import refusal

from agentrl_jax.evaluate.api_models.evaluate import evaluate_api
from agentrl_jax.evaluate.api_models.retries import summarize_retries
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.services.environments.maze.env import SERVICE, STARTS, Maze, describe
from agentrl_jax.text.styles import FEEDBACK

ATTEMPTS = 3
MAZE = maze("16-18", turns=3, concurrency=1, attempts=ATTEMPTS)
PRICES = {"price_in": 1.0, "price_out": 1.0}


def start(body):
    text = body["messages"][1]["content"]
    return next(item for item, cell in enumerate(STARTS) if text == describe(cell))


def learning(body):
    """Solves item 18 at once, 17 at the second attempt, and 16 never."""
    return STAY if failures(body) < 18 - start(body) or start(body) == 16 else walk(body)


def means(points, name):
    return [point[name]["mean"] for point in points.values()]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    out = tmp_path_factory.mktemp("learned")
    return out, *played(learning, out, MAZE, **PRICES)


def test_a_retry_goes_on_in_the_conversation(learned):
    """After the last answer and the feedback the item begins again; what stands once is not repeated."""
    last = [body["messages"] for body in learned[2].requests if start(body) == 17][-1]
    first, moved = describe(STARTS[17]), describe((7, 6))
    assert last[0]["content"] == SERVICE.instruction
    shown = [message["content"] for message in last[1::2]]
    assert shown == [first, first, first, f"{first}\n{FEEDBACK}{first}", moved]
    # Rows have every attempt, and are those of the first.
    rows = {row["item"]: row for row in lines_in(learned[0], "episodes")}
    attempts = {item: [(a["status"], a["turns"], a["solved"]) for a in row["attempts"]] for item, row in rows.items()}
    failed = ("answered", 3, False)
    assert attempts == {16: [failed] * 3, 17: [failed, ("answered", 2, True)], 18: [("answered", 1, True)]}
    assert all((row["status"], row["turns"], row["solved"]) == attempts[item][0] for item, row in rows.items())
    assert {row["turn"] for row in lines_in(learned[0], "replies") if row["item"] == 16} == set(range(9))


def test_success_and_costs_by_attempt_and_all_else_is_the_evaluation_without_retries(learned, tmp_path):
    out, result, _ = learned
    found, points = result["retry"], result["retry"]["attempts"]
    assert list(points) == ["1", "2", "3"]
    for name in ("retry_answered", "retry_all"):
        assert means(points, name) == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    for name, of_turn in (("retry_turns", 1), ("retry_tokens", 10), ("retry_tokens_read", 100)):
        assert means(points, name) == pytest.approx([of_turn * turns / 3 for turns in (7, 12, 15)])
    assert (found["feedback"], found["cut"], found["tokens"]["replies"]) == (FEEDBACK, 0, 8)
    assert found["cost"] == pytest.approx(8 * 110 / 1e6)
    assert "because only single plays of them are known" in found["note"]
    lines = {"random", "null", "optimal"}
    assert not {*lines, "pass_at_all", "difference"} & {*points["1"], *points["2"]}
    plain, _ = played(learning, tmp_path, dataclasses.replace(MAZE, attempts=1), **PRICES)
    own = ("requests", "base_url")
    assert {x: result[x] for x in result if x not in ("retry", *own)} == {x: plain[x] for x in plain if x not in own}
    assert plain["requests"] == result["requests"] - result["retry"]["tokens"]["replies"]
    rows = lines_in(out, "episodes")
    assert all(row.pop("attempts") for row in rows)
    assert rows == lines_in(tmp_path, "episodes")
    refused = refusal(evaluate_api, "m", result["base_url"], dataclasses.replace(MAZE, attempts=2), out)
    assert "holds an evaluation with attempts 3, not" in str(refused)


def test_a_cut_reply_and_another_start_end_the_attempts(tmp_path, monkeypatch):
    """In the first attempt at item 18; in a retry at 17, where the context is full, it is a failure."""

    def answer(body):
        if start(body) == 18:
            return completion("Action: move down", "length")
        if start(body) == 17 and failures(body):
            return 400, {}, {"error": {"code": "context_length_exceeded", "message": "too long"}}
        return STAY

    result, _ = played(answer, tmp_path, MAZE)
    assert (ended(result), result["retry"]["cut"]) == ((3, 2, 1, 0, 0, 0), 1)
    points = result["retry"]["attempts"]
    assert [(point["retry_answered"]["n"], point["retry_all"]["n"]) for point in points.values()] == [(2, 3)] * 3
    assert means(points, "retry_all") == [0, 0, 0]
    assert points["3"]["retry_tokens"] is None  # the server gave no number for the reply that was refused
    # A service may not begin as before.
    starts, reset = itertools.count(), Maze.reset
    monkeypatch.setattr(Maze, "reset", lambda self, item: reset(self, item + next(starts)))
    result, _ = played(lambda body: STAY, tmp_path / "other", dataclasses.replace(MAZE, items="4"))
    ((_, why),) = result["unfinished"].items()
    assert why.startswith("the environment began again with 'The goal is at position 8, 6. Your current position is at")
    assert result["retry"]["attempts"]["1"]["retry_all"] is None


def test_samples_are_the_control(tmp_path):
    """Of three samples without feedback, item 18 is solved by all, 17 by the second, and 16 by none."""
    seen = []

    def answer(body):
        if start(body) == 17 and not failures(body):
            seen.extend([None] if len(body["messages"]) == 2 else [])
            if len(seen) == 2:
                return walk(body)
        return learning(body)

    result, _ = played(answer, tmp_path, MAZE, samples=3, temperature=1.0)
    assert [bool(row.get("attempts")) for row in lines_in(tmp_path, "episodes")] == [True, False, False] * 3
    points = result["retry"]["attempts"]
    assert means(points, "pass_at_all") == pytest.approx([4 / 9, 5 / 9, 2 / 3])
    assert [points[k]["pass_at_all"] for k in ("1", "2")] == [result["pass_at"][k] for k in ("1", "2")]
    assert means(points, "difference") == pytest.approx([-1 / 9, 1 / 9, 0])
    # By hand: 16 takes 30 tokens a sample, 18 takes 10 until its success, and 17 takes 30, 20 and 30.
    costs = [(30 + 80 / 3 + 10) / 3, (60 + 20 / 3 + 2 / 3 * (30 + (30 + 20) / 2) + 10) / 3]
    assert [points[k]["pass_at_tokens"]["mean"] for k in ("1", "2")] == pytest.approx(costs)
    # Item 18 is solved by the retry; of its two samples the first fails, and the second is cut before its move.
    seen = []

    def last_is_cut(body):
        seen.append(body["seed"])
        if failures(body):
            return walk(body)
        return completion("Action: move down", "length") if len(seen) == 5 else STAY

    options = dataclasses.replace(MAZE, items="18", attempts=2, seed=1)
    result, _ = played(last_is_cut, tmp_path / "cut", options, samples=2)
    assert (result["episodes"]["length"], "pass_at" in result) == (1, False)
    second = result["retry"]["attempts"]["2"]
    assert (second["retry_all"]["mean"], second["pass_at_all"]["mean"], second["difference"]["mean"]) == (1, 0, 1)
    assert second["pass_at_tokens"]["mean"] == second["retry_tokens"]["mean"] == 30 + 10


@pytest.mark.nightly
def test_a_compiled_environment_says_what_it_says_to_runs(tmp_path):
    (tmp_path / "levels.txt").write_text(tiny_run.LEVELS)

    def answer(body):
        shown = body["messages"][-1]["content"]
        return f"<answer>{'Left' if FEEDBACK not in shown else 'Right' if '#PXO_#' in shown else 'Down'}</answer>"

    options = TaskOptions(env="SimpleSokoban", levels=str(tmp_path / "levels.txt"), turns=2, attempts=3)
    result, api = played(answer, tmp_path / "out", options)
    last = max((body["messages"] for body in api.requests), key=len)
    first, _, again = (message["content"] for message in last if message["role"] == "user")
    before, after = again.split(FEEDBACK)
    assert before.startswith("Reward:\n")
    # The instruction stands once; turns and actions are counted from the start again.
    assert after == first[first.index("Turn 1:") :]
    points = result["retry"]["attempts"]
    assert (means(points, "retry_all"), means(points, "retry_turns")) == ([0, 1, 1], [2, 3, 3])
    assert result["score_answered"]["mean"] < 0
    assert all(points["1"][line] == result[line] for line in ("random", "null", "optimal"))
    assert 0 < points["1"]["random"]["mean"] < points["2"]["random"]["mean"] < points["3"]["random"]["mean"] < 1
    none = summarize_retries([], [], 2, 1, lambda k: {})["attempts"]["2"]
    assert set(none.values()) == {None}, "without finished items there are no rates"
