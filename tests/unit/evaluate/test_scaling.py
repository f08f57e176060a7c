"""Test-time scaling of a tiny run: its points are those of `agentrl eval`, and lines follow the budget."""

import io
import json
import re

import numpy as np
import pytest
import tiny_run
from rich.console import Console

from agentrl_jax.evaluate import scaling
from agentrl_jax.evaluate.axis_tables import axis_tables
from agentrl_jax.evaluate.eval_set import EvalSet, evaluate_run
from agentrl_jax.formats.episodes import read_episodes
from agentrl_jax.runs.rollout_records import read_record, record_path, recorded_iterations, write_record
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.text.styles import FEEDBACK
from agentrl_jax.viewer.columns import unpack
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.scenes import run_scenes
from envs_jax.budget import Budget

_INTERVALS = ("success", "retry", "retry_greedy", "pass_at", "difference", "null", "random", "optimal")
WORDS = ("--env", "FrozenLake", "--episodes", "8")


@pytest.fixture(scope="module")
def scaled(finished, tmp_path_factory):
    """The result with three turns besides the two of training, four samples, and two attempts, which are recorded."""
    out = tmp_path_factory.mktemp("scaled")
    axes = ("--turns", "2,3", "--samples", "1,2,4", "--selector", "logprob", "--attempts", "1,2")
    code, printed, err = tiny_run.command(
        "scaling", str(finished.folder), *WORDS, *axes, "--out", str(out), "--json", "--record", str(out / "new")
    )
    assert code == 0, err
    assert json.loads(printed) == json.loads((out / "scaling.json").read_text())
    return json.loads(printed), out


@pytest.fixture(scope="module")
def plain(finished):
    """The same levels and samples without any axis."""
    return evaluate_run(finished.folder, env="FrozenLake", episodes=8, samples=4)


def test_lines_follow_the_budget(plain, scaled):
    found, _ = scaled
    two, three = found["axes"]["turns"]
    assert three["random"]["mean"] > two["random"]["mean"]
    assert three["optimal"]["mean"] > two["optimal"]["mean"]
    # Three turns of two actions: the oracle of FrozenLake knows both numbers.
    assert Budget(15, 3, 2).reachable == 6
    random = np.array(plain["outcomes"]["random"])
    for point in found["axes"]["samples"]:
        assert point["random"]["mean"] == pytest.approx(np.mean(1 - (1 - random) ** point["samples"]))
    assert (two["baseline_turns"]["null"], three["baseline_turns"]["null"]) == (2, 3)
    reached = {"turns": "success", "samples": "pass_at", "attempts": "retry"}
    for axis, name in reached.items():
        for point in found["axes"][axis]:
            assert point["null"]["mean"] == 0
            random, optimal = (point[line]["mean"] for line in ("random", "optimal"))
            assert point["gap_closed"] == pytest.approx((point[name]["mean"] - random) / (optimal - random))


def test_turns_and_tokens_of_samples_are_of_all(plain, scaled):
    for point in scaled[0]["axes"]["samples"]:
        for name in ("mean_turns", "mean_tokens"):
            assert point[name] == pytest.approx(point["samples"] * plain[name])


def test_no_heading_breaks_within_a_word(scaled):
    """All tables in 80 columns, where numbers take more room than they have."""
    wide = {"mean": 1.0, "low": 0.9431, "high": 1.0, "n": 64}
    axes = scaled[0]["axes"]
    for axis, found in axes.items():
        points = [{name: wide if name in _INTERVALS else value for name, value in point.items()} for point in found]
        for table in axis_tables(axis, points):
            out = io.StringIO()
            Console(file=out, width=80).print(table)
            assert max(map(len, out.getvalue().splitlines())) <= 80
            words = {word for column in table.columns for word in column.header.split()}
            assert words <= set(re.findall(r"[a-z]+", out.getvalue().split("┡")[0]))
    titles = [table.title for table in axis_tables("attempts", axes["attempts"])]
    kinds = ("Success", "Null, random and optimal play", "Turns and tokens")
    assert titles == [f"{kind} by attempts" for kind in kinds]


def test_legends_cover_no_data(scaled, monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(scaling.Figure, "savefig", lambda figure, *args, **options: drawn.append(figure))
    scaling.plot_scaling(scaled[0], tmp_path / "figure.png")
    (figure,) = drawn
    figure.canvas.draw()
    for axis in figure.axes:
        legend = axis.get_legend().get_window_extent()
        assert legend.y1 < axis.get_window_extent().y0
        assert legend.y0 >= 0


def test_the_figure_is_written(scaled):
    _, out = scaled
    assert (out / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(file.name for file in out.iterdir()) == ["new", "scaling.json", "scaling.png"]


def test_a_record_is_refused_before_anything_is_played(finished, tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    asked, evaluate = [], scaling.evaluate_run
    monkeypatch.setattr(scaling, "evaluate_run", lambda run, **options: asked.append(1) or evaluate(run, **options))
    monkeypatch.setattr(EvalSet, "play", lambda *args: pytest.fail("played"))
    words = ("--turns", "2,3", "--tokens", "6", "--attempts", "1,2", "--record", str(tmp_path / "old"))
    code, _, err = tiny_run.command("scaling", str(finished.folder), *WORDS, *words, "--out", str(tmp_path))
    assert (code, len(asked)) == (2, 1)
    assert "exists and is not an empty folder" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "no axis is given"),
        (("--turns", "5,x"), "--turns is '5,x'"),
        (("--turns", "5,2"), "--turns is '5,2', expected ascending"),
        (("--turns", "2,2"), "expected ascending"),
        (("--turns", "0,2"), "from 1"),
        (("--tokens", "1,2"), "from 2"),
        (("--attempts", "1,65"), "from 1 to 64"),
        (("--samples", "9999999"), "--samples is '9999999'"),
        (("--turns", "2", "--selector", "value"), "only with --samples"),
        (("--turns", "2", "--out", "absent/absent"), "no folder 'absent'"),
        (("--turns", "2", "--env", "Bandits"), "did you mean Bandit"),
        (("--samples", "2", "--selector", "majority"), "without an answer in words"),
    ],
)
def test_mistakes_are_one_line(finished, words, part):
    code, out, err = tiny_run.command("scaling", str(finished.folder), *words)
    assert (code, out) == (2, "")
    assert part in err.splitlines()[-1]


LEVELS, ATTEMPTS, TURNS = 8, 2, 2


@pytest.fixture(scope="module")
def retried(scaled):
    """Folder, result and records (greedy and sampled) of the attempts."""
    found, out = scaled
    assert recorded_iterations(out / "new") == [1, 2]
    return out / "new", found, [read_record(record_path(out / "new", number)) for number in (1, 2)]


def played(record):
    return np.arange(record.reward.shape[1]) < record.num_turns[:, None]


def test_records_are_the_episodes_of_the_result(retried):
    _, result, (greedy, sampled) = retried
    point = result["axes"]["attempts"][-1]
    assert point["attempts"] == ATTEMPTS
    for record, name in ((greedy, "retry_greedy"), (sampled, "retry")):
        assert record.success.any(axis=1).mean() == pytest.approx(point[name]["mean"])
        assert (record.header.horizon, record.header.evaluation.attempts) == (ATTEMPTS * TURNS, ATTEMPTS)
    assert sampled.num_turns.mean() == pytest.approx(point["retry_turns"]["mean"])
    assert sampled.length.sum(axis=1).mean() == pytest.approx(point["retry_tokens"]["mean"])


def test_attempts_begin_after_a_failure_on_the_same_level(retried):
    for record in retried[2]:
        steps = np.diff(record.attempt, axis=1)[played(record)[:, 1:]]
        assert set(steps.tolist()) == {0, 1}
        assert record.attempt.max() == ATTEMPTS - 1
        for row in range(LEVELS):
            begins = [0, *(1 + np.flatnonzero(np.diff(record.attempt[row, : record.num_turns[row]])))]
            assert len({record.state_hash[row, turn].tobytes() for turn in begins}) == 1
            assert not record.success[row, : begins[-1]].any()


def test_boards_begin_again(retried):
    folder, _, records = retried
    config = read_config(folder)
    for record in records:
        drawn = run_scenes(folder, config, record)
        again = [int(record.attempt[row, : record.num_turns[row]].max()) for row in range(LEVELS)]
        executed = (record.actions >= 0).sum(axis=(1, 2))
        assert [len(scenes) for scenes in drawn] == (1 + executed + again).tolist()
        for row, scenes in enumerate(drawn):
            starts = [scene for scene in scenes if str(scene["action"]).startswith("the start of attempt")]
            names = [f"the start of attempt {number + 2}" for number in range(again[row])]
            assert [scene["action"] for scene in starts] == names
            assert all(scene["cells"] == scenes[0]["cells"] for scene in starts)
            first = [1 + np.flatnonzero(np.diff(record.attempt[row, : record.num_turns[row]]))][0]
            assert [scene["turn"] for scene in starts] == (first - 1).tolist()


def test_page_and_formats_know_the_attempt(retried):
    folder, _, (_, sampled) = retried
    entry, (_, _, block) = RunData(folder).refresh()
    assert f"with up to {ATTEMPTS} attempts at a level." in entry["about"]
    assert entry["recorded"] == "greedy play and 1 sample"
    _, columns = unpack(block)
    np.testing.assert_array_equal(columns["attempt"], sampled.attempt[played(sampled)])
    for row, episode in enumerate(read_episodes(folder, 2)):
        numbers = [turn.extra["attempt"] for turn in episode.turns]
        assert numbers == sampled.attempt[row, : sampled.num_turns[row]].tolist()
        for before, number, turn in zip([0, *numbers], numbers, episode.turns):
            assert (FEEDBACK.strip() in turn.message) == (number > before)


def test_files_of_before_have_one_attempt(retried, tmp_path):
    _, _, (greedy, _) = retried
    path = write_record(tmp_path, greedy)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if name != "attempt"}
    np.savez_compressed(path, **arrays)
    assert not read_record(path).attempt.any()


def test_record_needs_attempts(finished, tmp_path):
    words = ("--turns", "2", "--record", str(tmp_path / "new"))
    code, out, err = tiny_run.command("scaling", str(finished.folder), *words)
    assert (code, out) == (2, "")
    assert "the conversations of --attempts, which is missing" in err
    assert not (tmp_path / "new").exists()
