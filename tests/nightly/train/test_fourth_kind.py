"""A kind of environments that the product does not know is trained, evaluated, shown and exported."""

import json

import fourth_kind
import pytest
import tiny_run
from fourth_kind import CONFIG


@pytest.fixture(autouse=True)
def kind(monkeypatch):
    fourth_kind.register(monkeypatch)


def test_a_fourth_kind_is_trained_evaluated_shown_and_exported(tmp_path):
    folder, file = tmp_path / "run", tiny_run.write_config(tmp_path, CONFIG)
    tiny_run.trained(folder, file)
    summary = tiny_run.summary(folder)
    assert [summary["success"][name]["mean"] for name in ("null", "optimal")] == [0, 1]
    assert "Say 8x0" not in (text := (folder / "trajectories.jsonl").read_text())
    assert "Say " in text
    found = json.loads(tiny_run.done("eval", str(folder), "--json"))
    assert found["success"] == summary["success"]["trained"]
    tiny_run.done("view", str(folder), "--export", str(tmp_path / "page.html"))
    tiny_run.done("export", str(folder), str(tmp_path / "model"))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["max_position_embeddings"] > 2 * 6
