"""Test-time scaling of an API model: every point is an evaluation, and nothing is asked twice."""

import json

import pytest
import tiny_run
from fake_api import FakeApi, completion

from agentrl_jax.evaluate.api_models.scaling import scale_api
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


def test_success_grows_with_the_budget(scaled):
    axes = scaled[0]["axes"]
    assert [point["success_all"]["mean"] for point in axes["turns"]] == [0.25, 0.5, 0.75]
    assert [point["optimal"]["mean"] for point in axes["turns"]] == [0.25, 0.5, 1.0]
    cut, whole = axes["tokens"]
    assert cut["success_answered"] is None
    assert cut["success_all"]["mean"] == 0
    assert whole["success_answered"]["mean"] == 0.75
    assert [point["pass_at"]["mean"] for point in axes["samples"]] == [0.75, 0.75]
    assert [point["best_of"]["mean"] for point in axes["samples"]] == [0.75, 0.75]
    assert [point["retry_all"]["mean"] for point in axes["attempts"]] == [0.75, 1.0]
    assert [point["pass_at_all"]["mean"] for point in axes["attempts"]] == [0.75, 0.75]
    assert scaled[0]["retry"]["feedback"] == FEEDBACK


def test_samples_cost_what_all_of_them_do(scaled):
    once, twice = scaled[0]["axes"]["samples"]
    for name in ("mean_turns", "mean_tokens"):
        assert twice[name] == 2 * once[name] > 0
    assert once["gap_closed"] == (0.75 - once["random"]["mean"]) / (once["optimal"]["mean"] - once["random"]["mean"])
    assert "gap_closed" not in twice, "single plays of a scripted policy are no probabilities"


def test_a_table_and_a_figure(scaled):
    _, out, _, _, printed = scaled
    assert (out / "scaling.png").read_bytes().startswith(b"\x89PNG")
    for title in ("Success by turns", "Success by tokens", "Success by samples", "Success by attempts", "figure: "):
        assert title in printed
    assert "75.0" in printed


def test_what_is_unfinished_is_said_and_asked_again(tmp_path):
    down = FakeApi(lambda body: (503, {}, b"{}"))
    with down.running() as url:
        words = ("scaling", "--api", "m", "--base_url", url, *WORDS, "--turns", "1", "--retries", "0")
        code, _, err = tiny_run.command(*words, "--out", str(tmp_path / "out"))
    assert code == 1
    assert "4 episodes are unfinished; give the same command again" in err
    assert (tmp_path / "out" / "scaling.png").exists()


@pytest.mark.parametrize("attempts", [(1,), (1, 2)])
def test_one_attempt_is_the_first_sample(tmp_path, attempts):
    """Of two samples of an item only the second one solves it; the point is the same with and without retries."""
    first = []

    def answer(body):
        if any(FEEDBACK in message["content"] for message in body["messages"]):
            return "Action: stay"
        first.append(len(first) % 2 == 0)
        return "Action: stay" if first[-1] else walks(body)

    options = TaskOptions(env="maze", items="18", turns=1, concurrency=1)
    with FakeApi(answer).running() as url:
        found = scale_api(options, tmp_path, samples=(1, 2), attempts=attempts, model="m", base_url=url)
    once = found["axes"]["attempts"][0]
    names = ("retry_answered", "retry_all", "pass_at_all", "difference", "retry_turns", "retry_tokens")
    assert [once[name]["mean"] for name in names] == [0, 0, 0.5, -0.5, 1, 10]
    assert "pass@k here" in found["retry"]["note"]


def test_further_numbers_go_on(tmp_path):
    api = FakeApi(walks)
    with api.running() as url:
        words = ("scaling", "--api", "m", "--base_url", url, "--env", "maze", "--items", "16-18")
        words = (*words, "--out", str(tmp_path / "out"))
        asked = []
        for axes in (
            ("--samples", "1,2"),
            ("--samples", "1,2,3", "--turns", "1"),
            ("--samples", "2", "--turns", "1,2"),
        ):
            before = len(api.requests)
            assert tiny_run.command(*words, *axes)[0] == 0
            asked.append(len(api.requests) - before)
    sample = asked[0] // 2
    assert asked == [2 * sample, sample + 3, 5]  # one turn of each of three items, and two of all but the nearest


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_limit_that_is_sent_is_the_axis(tmp_path, name):
    api = FakeApi(lambda body: completion("Action: s", finish="length"))
    with api.running() as url:
        words = ("scaling", "--api", "m$_x^{$", "--base_url", url, *WORDS, "--turns", "1", "--tokens", "10,30")
        extra = json.dumps({"max_tokens": None, name: 512})
        code, _, err = tiny_run.command(*words, "--extra", extra, "--out", str(tmp_path / "out"))
    assert code == 0, err
    assert [body[name] for body in api.requests].count(10) > 0
    assert {body[name] for body in api.requests} == {512, 10, 30}


def test_a_selector_is_refused_before_anything_is_asked(tmp_path):
    api = FakeApi(walks)
    with api.running() as url:
        words = ("scaling", "--api", "m", "--base_url", url, *WORDS, "--turns", "1", "--samples", "1,2")
        code, _, err = tiny_run.command(*words, "--selector", "majority", "--out", str(tmp_path / "out"))
    assert code == 2
    assert "--selector is majority" in err
    assert api.requests == []


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("runs/x", "--turns", "1"), "--run is runs/x, which is read only without --api"),
        (("--turns", "1", "--record", "x"), "--record is x, which is read only without --api"),
        ((), "no axis is given"),
        (("--samples", "2", "--selector", "value"), "--selector is value, which reads a run's own model"),
        (("--turns", "1", "--max_tokens", "0"), "--max_tokens"),
        (("--tokens", "9", "--extra", '{"max_tokens": null}'), "--extra leaves max_tokens out"),
    ],
)
def test_mistakes_are_one_line(tmp_path, words, part):
    given = ("scaling", "--api", "m", "--base_url", "http://127.0.0.1:9", *WORDS, "--out", str(tmp_path / "out"))
    code, out, err = tiny_run.command(*given, *words)
    assert (code, out) == (2, "")
    assert part in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--turns", "1"), "a run is missing"),
        (("runs/x", "--turns", "1", "--items", "0-3"), "--items is '0-3', which is read only with --api"),
        (("runs/x", "--turns", "1", "--max_tokens", "9"), "--max_tokens is 9, which is read only with --api"),
        (("--api", "m", "--turns", "1"), "give --env ENV or --panel NAME"),
    ],
)
def test_options_without_their_agent_are_refused(words, part):
    code, out, err = tiny_run.command("scaling", *words)
    assert (code, out) == (2, "")
    assert part in err.splitlines()[-1]
