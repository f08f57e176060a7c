"""What lies below a folder is listed with its state, result and settings; nothing is written."""

import dataclasses
import fcntl
import json
import os
import shutil

import numpy as np
import page_runs
import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread
from paths import TESTS
from refusing import refusal

from agentrl_jax.config import decode, save_resolved
from agentrl_jax.runs import listing_plot
from agentrl_jax.runs.differing import differing, groups, titles
from agentrl_jax.runs.listing import as_records, find_runs, holds_runs
from agentrl_jax.runs.rollout_records import Evaluation, write_record

BOUNDS = {"mean": 0.75, "low": 0.5, "high": 0.9, "n": 20}


def write_run(folder, *, rows=4, summary=None, iterations=4, **settings):
    folder.mkdir(parents=True)
    config = {"tasks": [{"env": "FrozenLake", "groups": 8}], "train": {"iterations": iterations}, **settings}
    save_resolved(decode({**config, "run_dir": str(folder)}), folder / "config.yaml")
    logged = [{"step": 1, "stage": "imitation"}] if rows else []
    for i in range(1, rows + 1):
        row = {"step": i + 1, "stage": "rl", "iteration": i, "train/success": i / max(10, rows)}
        logged.append(row | ({"validation/success": i / max(20, 2 * rows)} if i % 2 == 0 else {}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in logged))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps({"iterations": iterations, "stopped_by": ""} | summary))
    return folder


def listed(folder):
    said = []
    return {row.name: row for row in find_runs(folder, said.append)}, said


def test_states_and_results_of_runs(tmp_path):
    assert not holds_runs(tmp_path)
    done = {"success": {"trained": BOUNDS}}
    write_run(tmp_path / "finished", summary=done)
    write_run(tmp_path / "went_on", summary={**done, "iterations": 2})
    write_run(tmp_path / "alarmed", rows=3, summary={**done, "iterations": 3, "stopped_by": "entropy_lost"})
    write_run(tmp_path / "killed", rows=1)
    write_run(tmp_path / "a" / "empty", rows=0)
    assert [holds_runs(tmp_path / part) for part in ("", "a", "a/empty", "c")] == [True, True, False, False]
    write_run(tmp_path / "held")
    with open(tmp_path / "killed" / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "stage": "rl", "iteration": 2, "train/success": 0.9')
    with open(tmp_path / "held" / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        rows, said = listed(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert said == []
    assert list(rows) == ["a/empty", "alarmed", "finished", "held", "killed", "went_on"]
    assert {row.iterations for row in rows.values()} == {4}
    held_out, validated = (0.75, "held-out", 0.5, 0.9), (0.2, "validation", None, None)
    assert {name: (row.state, row.iteration, row.result) for name, row in rows.items()} == {
        "a/empty": ("empty", None, None),
        "alarmed": ("stopped: entropy_lost", 3, held_out),
        "finished": ("finished", 4, held_out),
        "held": ("running", 4, validated),
        "killed": ("interrupted", 1, (0.1, "training", None, None)),
        "went_on": ("interrupted", 4, validated),
    }
    os.utime(tmp_path / "finished" / "summary.json", (10**9, 10**9))
    os.utime(tmp_path / "finished" / "metrics.jsonl", (0, 0))
    assert listed(tmp_path)[0]["finished"].modified == 10**9


def test_the_newest_values_are_found_in_a_long_file(tmp_path):
    write_run(tmp_path / "run", rows=3000, iterations=3000, train={"iterations": 3000})
    metrics = tmp_path / "run" / "metrics.jsonl"
    part = tmp_path / "run" / "metrics.jsonl.parts" / str(metrics.stat().st_size)  # as in a copy from an object store
    part.parent.mkdir()
    with open(part, "w") as file:
        rows = ({"step": i, "stage": "rl", "iteration": i, "text": "x" * 300} for i in range(3001, 3501))
        file.writelines(json.dumps(row) + "\n" for row in rows)
    row = listed(tmp_path)[0]["run"]
    assert (row.iteration, row.result[:2]) == (3500, (0.5, "validation"))


def test_damaged_files_and_loops_leave_the_others_listed(tmp_path):
    write_run(tmp_path / "10")
    write_run(tmp_path / "9", summary={"success": {"trained": {"mean": "high"}}})
    (tmp_path / "9" / "summary.json").write_text('{"iterations": NaN}')
    (write_run(tmp_path / "bad") / "config.yaml").write_text("seed: [1\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "up").symlink_to(tmp_path)
    (tmp_path / "inner" / "again").symlink_to(tmp_path / "10")
    (tmp_path / "inner" / "gone").symlink_to(tmp_path / "nothing")
    (tmp_path / "other.json").write_text('{"config": {"seed": 1}}')
    rows, said = listed(tmp_path)
    known = {name: (row.state, row.settings == {}) for name, row in rows.items()}
    assert known == {"9": ("interrupted", False), "10": ("interrupted", False), "bad": ("unreadable", True)}
    for name in ("bad/config.yaml", "9/summary.json", "other.json"):
        assert sum(name in line for line in said) == 1
    assert refusal(find_runs, tmp_path / "nowhere", said.append).key == str(tmp_path / "nowhere")


def test_evaluations_and_variants_are_listed(tmp_path):
    config = decode(page_runs.CONFIG)
    solved = []
    for sample, iteration in ((None, 1), (0, 2), (1, 3)):
        record = page_runs.make_record(iteration)
        evaluation = Evaluation(sample=sample, seed=5, split=1, run="runs/x", iteration=40, panel="p")
        header = dataclasses.replace(record.header, evaluation=evaluation)
        write_record(tmp_path, dataclasses.replace(record, header=header))
        solved.append(record.success.any(axis=1).mean())
    (tmp_path / "eval").mkdir()
    shutil.move(tmp_path / "rollouts", tmp_path / "eval")
    save_resolved(config, tmp_path / "eval" / "config.yaml")
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "replies.jsonl").write_text("{}\n")
    (tmp_path / "api" / "settings.json").write_text('{"model": "m", "env": "maze", "base_url": "http://secret"}')
    (tmp_path / "api" / "summary.json").write_text(json.dumps({"success_all": BOUNDS, "episodes": {"unfinished": 1}}))
    variant = {"config": {"seed": 3, "optim": {"lr": 0.1}}, "seeds": [3, 4], "iteration": [1, 2]}
    (tmp_path / "compare").mkdir()
    (tmp_path / "compare" / "grpo.json").write_text(json.dumps(variant | {"end": {"sampled": [[1, 0], [1, 1]]}}))
    rows, said = listed(tmp_path)
    assert said == []
    assert [(row.kind, name, row.state, row.iteration) for name, row in rows.items()] == [
        ("comparison", "compare/grpo.json", "finished", 2),
        ("evaluation", "eval", "recorded", 40),
        ("api", "api", "unfinished", None),
    ]
    assert rows["eval"].result == (pytest.approx(np.mean(solved[1:])), "sampled", None, None)
    assert rows["eval"].settings == {"run": "runs/x", "panel": "p", "env": "FrozenLake", "seed": 5}
    assert rows["api"].settings == {"model": "m", "env": "maze"}
    assert rows["api"].result == (0.75, "items", 0.5, 0.9)
    assert rows["compare/grpo.json"].settings == {"seed": 3, "optim.lr": 0.1, "seeds": 2}
    assert rows["compare/grpo.json"].result[:2] == (0.75, "held-out")


def test_runs_of_earlier_formats_differ_by_the_keys_of_today(tmp_path):
    for name in ("flat_rule", "no_format"):
        (tmp_path / name).mkdir()
        shutil.copy(TESTS / "golden" / "formats" / f"{name}.yaml", tmp_path / name / "config.yaml")
    rows, said = listed(tmp_path)
    assert said == []
    assert [row.state for row in rows.values()] == ["empty"] * 2
    found = as_records([*rows.values()])
    assert [row["algo.mismatch.ratio_from"] for row in found] == ["learner", "rollout"]
    assert not {"run_dir", "hosts.count", "format"} & found[0].keys()


def test_the_settings_that_tell_rows_apart_come_first():
    rows = [
        {"algo.preset": "grpo", "algo.gamma": 1, "optim.lr": lr, "seed": s, "x": 0} for lr in (1, 2) for s in (0, 1)
    ]
    rows += [{"algo.preset": "ppo", "algo.gamma": 2, "algo.lam": 1, "optim.lr": 2, "seed": s, "x": 0} for s in (0, 1)]
    assert differing(rows) == (["algo.preset", "optim.lr", "seed"], ["algo.gamma", "algo.lam"])
    assert groups(rows) == [[0, 1], [2, 3], [4, 5]]
    assert differing([]) == ([], [])
    keys = ["seed", "evaluation.seed", "algo.advantage.kind", "algo.kl.kind", "optim.lr", "algo.horizon.turns.0"]
    assert list(titles(keys).values()) == ["seed", "evaluation.seed", "advantage", "kl", "lr", "turns.0"]


def test_a_figure_has_a_line_and_a_band_for_each_group(tmp_path, monkeypatch):
    for seed, rows in ((0, 4), (1, 4), (2, 2)):
        write_run(tmp_path / f"s{seed}", rows=rows, seed=seed)
    write_run(tmp_path / "other", optim={"lr": 0.5})
    write_run(tmp_path / "empty", rows=0)
    found, lines, bands = find_runs(tmp_path, print), [], []
    for name, kept in (("plot", lines), ("fill_between", bands)):
        drawn = getattr(Axes, name)

        def draw(axis, x, *y, kept=kept, drawn=drawn, **options):
            kept.append(([*x], options.get("label")))
            return drawn(axis, x, *y, **options)

        monkeypatch.setattr(Axes, name, draw)
    listing_plot.plot_runs(found, "train/success", tmp_path / "f.png")
    assert [x for x, _ in bands] == [[1, 2]]
    assert sorted(x for x, label in lines if label) == [[1, 2], [1, 2, 3, 4]]
    assert [x for x, label in lines if not label] == [[2, 3, 4]] * 2
    listing_plot.plot_runs(found, "success", tmp_path / "two.png")
    assert imread(tmp_path / "two.png").shape[1] > imread(tmp_path / "f.png").shape[1]
    error = refusal(listing_plot.plot_runs, found, "succes", tmp_path / "f.png")
    assert (error.key, error.value) == ("--plot", "succes")
    assert "train/success" in str(error)
    variant = {"config": {"seed": 3}, "seeds": [3, 4], "iteration": [1, 2, 3], "end": {"sampled": [[1], [0]]}}
    variant |= {"validation": {"iteration": [0, 2], "success": [[0, 0], [0.5, 1.0]]}}
    file = tmp_path / "grpo.json"
    file.write_text(json.dumps(variant | {"metrics": {"train/success": [[0.25, None], [0.5, 0.5], [0.75, 1.0]]}}))
    lines.clear()
    listing_plot.plot_runs(found := find_runs(file.parent, print)[-1:], "success", tmp_path / "f.png")
    assert lines == [([2, 3], "all runs (2 seeds)"), ([2], "all runs (2 seeds)")]
    file.write_text(json.dumps(variant | {"metrics": {"train/success": [[0.25]]}}))
    assert refusal(listing_plot.plot_runs, found, "success", tmp_path / "f.png").key == str(file)
