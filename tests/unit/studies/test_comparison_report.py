import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from refusing import refusal
from rich.console import Console

from agentrl_jax.config import to_dict
from agentrl_jax.config.comparison import load_comparison
from agentrl_jax.evaluate.statistics import seeds_needed
from agentrl_jax.studies import compare as comparisons
from agentrl_jax.studies.comparison_report import baselines_line, by_value, draw_values, findings, page

LEVELS, ITERATIONS = 8, 2


def record(seeds=2, success=0.5, **changes):
    outcomes = (np.arange(seeds * LEVELS).reshape(seeds, LEVELS) % LEVELS < success * LEVELS).tolist()
    names = ("environment_steps", "actor/entropy", "rollout/zero_std_share", "update/skipped")
    made = {"seeds": [*range(seeds)], "iteration": [1, 2], "alarms": [{}] * seeds, "levels": [], "seconds": [1.0, 1.0]}
    made |= {key: {"sampled": outcomes, "greedy": outcomes} for key in ("start", "end")}
    made |= {"metrics": dict.fromkeys(names, np.ones((ITERATIONS, seeds)).tolist()), "baselines": {"random": 0.1}}
    made |= {"validation": {"iteration": [0, 1, 2], "success": np.full((3, seeds), success).tolist()}}
    return made | {"machine": {"device": "cpu"}, "test_levels": "a digest"} | changes


@pytest.mark.parametrize("seeds", [1, 2, 5])
@pytest.mark.parametrize("success", [0.0, 1.0])
def test_no_interval_is_without_width(seeds, success):
    (found,) = findings({"a": record(seeds, success)})
    for one in (found.start, found.sampled, found.greedy, found.gain):
        assert one["low"] <= one["mean"] <= one["high"]
        assert one["high"] - one["low"] > 0.1
    assert (found.sampled["mean"], found.gain["mean"]) == (success, 0.0)


def test_turns_tokens_and_the_share_of_the_gap():
    used = {"mean_turns": [2.0, 3.0], "mean_tokens": [10.0, 21.0]}
    known, earlier = findings({"a": record(used=used), "earlier": record()})
    assert [(x.turns, x.tokens) for x in (known, earlier)] == [(2.5, 15.5), (None, None)]
    lines = {"random": 0.1, "optimal (closed loop)": 0.9, "null": 0.0}
    (found,) = findings({"a": record(baselines=lines)})
    assert found.gap_closed == pytest.approx(0.5)
    for part in ("random play 10.0%", "optimal (closed loop) play 90.0%", "null play 0.0%"):
        assert part in baselines_line(record(baselines=lines))
    assert known.gap_closed is None, "optimal play is not known"


def test_one_seed_has_no_interval_over_seeds():
    for seeds in (1, 2):
        words = page({"a": record(seeds)}, (), "title", "figure.png")
        assert ("over levels alone" in words) == (seeds == 1)
        row = next(line for line in words.splitlines() if line.startswith("| a |"))
        assert row.split(" | ")[7].partition(" [")[1] == ("" if seeds == 1 else " [")


def test_what_was_not_run_under_the_same_conditions_is_named():
    b, c = record(start=record(2, 0.25)["start"]), record(machine={"device": "another"})
    d = record(test_levels="another")
    pairs = ("b", "a"), ("c", "a"), ("d", "a")
    words = page({"a": record(), "b": b, "c": c, "d": d}, pairs, "title", "figure.png")
    assert "| b − a | not paired |" in words
    assert "| c − a | +0.0 [" in words
    assert "| d − a | not paired |" in words
    assert [line[-2:] for line in words.splitlines() if line.startswith("Not ")] == ["b.", "d.", "c."]
    assert "Not " not in page({"a": record(), "b": record()}, (), "title", "figure.png")


def test_stored_variants_that_cannot_be_compared_are_named_before_anything_runs(tmp_path, monkeypatch):
    run = {"tasks": [{"env": "Bandit", "groups": 2}], "algo": {"minibatches": 1}}
    run |= {"train": {"iterations": ITERATIONS, "validate_every": 1}}
    variants = {name: {"algo": {"preset": preset}} for name, preset in (("a", "grpo"), ("b", "rloo"))}
    (tmp_path / "variants.yaml").write_text(yaml.safe_dump({"seeds": 2, "run": run, "variants": variants}))
    comparison = load_comparison(str(tmp_path / "variants.yaml"))

    def store(**changes):
        made = record(**changes) | {"config": to_dict(comparison.variants["a"])}
        (tmp_path / "a.json").write_text(json.dumps({key: value for key, value in made.items() if value is not None}))

    def compare(shown, *only):
        return comparisons.compare(comparison, tmp_path, only=only, console=Console(file=shown))

    for lacks in ("metrics", "start", "machine", "baselines", "test_levels"):
        store(**{lacks: None})
        assert "a.json" in str(refusal(compare, io.StringIO(), "a"))
    store()
    shown = io.StringIO()

    def play(name):
        assert "a: is stored with other starts" in shown.getvalue()
        return record()

    made = SimpleNamespace(start=record(2, 0.25)["start"], test_levels="a digest", run=play)
    monkeypatch.setattr(comparisons, "Variants", lambda *_: made)
    assert set(compare(shown)) == {"a", "b"}
    assert "b: is stored" not in shown.getvalue()
    made.test_levels = "another"
    (tmp_path / "b.json").unlink()
    assert "a.json: was evaluated on other held-out levels" in str(refusal(compare, shown))


def test_the_cells_of_a_grid_of_one_number_are_lines_by_value(tmp_path):
    cells = {"a-lr=0.001": record(success=0.25), "a-lr=0.01": record(success=0.5), "b-lr=0.001": record()}
    key, found = by_value(cells)
    assert (key, {name: [*of] for name, of in found.items()}) == ("lr", {"a": [0.001, 0.01], "b": [0.001]})
    assert found["a"][0.001] is cells["a-lr=0.001"]
    assert {*by_value({"lr=0.1": record()})[1]} == {"all"}
    for names in (["a", "b"], ["a-lr=0.1", "b"], ["a-lr=0.1", "a-coef=0.1"]):
        assert by_value(dict.fromkeys(names, record())) == ("", {})
    draw_values(cells, tmp_path / "values.png", "cells")
    assert (tmp_path / "values.png").read_bytes()[:4] == b"\x89PNG"


def test_a_difference_says_how_many_seeds_it_needs():
    less, more = record(seeds=3, success=0.5), record(seeds=3, success=0.5)
    more["end"] = {"sampled": (np.array(less["end"]["sampled"]) | (np.arange(LEVELS) == [[7], [7], [0]])).tolist()}
    more["end"] |= {"greedy": more["end"]["sampled"]}
    text = page({"a": more, "b": less}, [("a", "b")], "t", "f")
    (row,) = [line.split(" | ") for line in text.splitlines() if line.startswith("| a − b")]
    assert row[2] == str(seeds_needed([1 / 8, 1 / 8, 0.0]))
