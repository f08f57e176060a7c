"""A run that its validations end."""

import tiny_run

STOP = "train: {stop: {patience: 1}, best: {metric: validation/FrozenLake/return, mode: min}, "


def test_a_run_ends_by_its_validations_at_the_same_iteration_after_a_stop(tmp_path):
    text = tiny_run.CONFIG.replace("train: {", STOP).replace("iterations: 4", "iterations: 40")
    file, whole, again = tiny_run.write_config(tmp_path, text), tmp_path / "whole", tmp_path / "again"
    tiny_run.trained(whole, file)
    found = tiny_run.summary(whole)
    assert found["stopped_by"] == "patience"
    assert found["iterations"] < 40
    rows = [row for row in tiny_run.metrics(whole) if "validation/success" in row]
    values = [row["validation/FrozenLake/return"] for row in rows]
    assert values[-1] >= min(values[:-1])
    assert all(later < min(values[: i + 1]) for i, later in enumerate(values[1:-1]))
    tiny_run.resumed(whole, again, file)
    assert tiny_run.metrics(again) == tiny_run.metrics(whole)
    assert tiny_run.summary(again) == found
