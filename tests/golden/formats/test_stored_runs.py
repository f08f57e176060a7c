"""Folders that an earlier version wrote, once, are read; fedfada.tar.xz is never made again.

It holds runs of a compiled environment, of a service and with an adapter, with the model that it is of, a recorded
evaluation, the replies of an API model, a record of a panel and a comparison.
"""

import re
import shutil
import tarfile

import pytest
import tiny_run
from page_runs import decode_page
from paths import GOLDEN

from agentrl_jax.evaluate.leaderboard import make_leaderboard
from agentrl_jax.runs.listing import find_runs
from agentrl_jax.runs.rollout_records import recorded_iterations
from agentrl_jax.runs.run_folder import read_config


def unpacked(home):
    with tarfile.open(GOLDEN / "formats" / "fedfada.tar.xz") as archive:
        archive.extractall(home, filter="data")
    file = home / "fedfada" / "lora" / "config.yaml"
    file.write_text(re.sub("(?<=pretrained: ).*", str(home / "fedfada" / "model"), file.read_text()))
    return home / "fedfada"


def check_it_goes_on(stored, run):
    shutil.copytree(stored, run)
    before = tiny_run.metrics(run)
    more = str(read_config(run).train.iterations + 1)
    tiny_run.done("train", str(run), "--train.iterations", more)
    after = tiny_run.metrics(run)
    assert after[:-1] == before
    assert (after[-1]["iteration"], tiny_run.summary(run)["iterations"]) == (int(more), int(more))
    assert {row["stage"] for row in before} == {"imitation", "rl"}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return unpacked(tmp_path_factory.mktemp("stored"))


def test_everything_is_listed(stored):
    found = {row.name: (row.kind, row.state, row.iteration) for row in find_runs(stored, pytest.fail)}
    assert found == {
        "api": ("api", "finished", None),
        "compare/grpo.json": ("comparison", "finished", 1),
        "compare/ppo.json": ("comparison", "finished", 1),
        "compiled": ("run", "finished", 3),
        "host": ("run", "finished", 2),
        "lora": ("run", "finished", 3),
        "recorded": ("evaluation", "recorded", 3),
    }


@pytest.mark.parametrize("name", ["compiled", "host", "lora"])
def test_a_policy_is_exported_and_its_episodes_are_shown(name, stored, tmp_path):
    tiny_run.done("export", str(stored / name), str(tmp_path / "model"))
    assert (tmp_path / "model" / "model.safetensors").exists()
    tiny_run.done("view", str(stored / name), "--export", str(tmp_path / "page.html"))
    index, _ = decode_page((tmp_path / "page.html").read_text())
    shown = [info["iteration"] for info in index["runs"][0]["iterations"]]
    assert shown == recorded_iterations(stored / name) != []


@pytest.mark.parametrize("name", ["recorded", "api"])
def test_an_evaluation_is_shown(name, stored, tmp_path):
    tiny_run.done("view", str(stored / name), "--export", str(tmp_path / "page.html"))
    assert decode_page((tmp_path / "page.html").read_text())[0]["runs"]


def test_an_api_evaluation_and_a_comparison_are_complete_without_another_request_or_run(stored, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    api = shutil.copytree(stored / "api", tmp_path / "api")
    words = ("--base_url", "http://127.0.0.1:8123/v1", "--env", "maze", "--items", "0-1", "--turns", "2")
    before = (api / "replies.jsonl").read_bytes()
    tiny_run.done("eval", "--api", "compiled", *words, "--max_tokens", "8", "--out", str(api))
    assert (api / "replies.jsonl").read_bytes() == before
    compared = shutil.copytree(stored / "compare", tmp_path / "compare")
    before = {file.name: file.read_bytes() for file in compared.glob("*.json")}
    tiny_run.done("compare", str(stored / "compare.yaml"), "--out", str(compared))
    assert {file.name: file.read_bytes() for file in compared.glob("*.json")} == before


def test_the_record_of_a_panel_is_in_the_table(stored, tmp_path):
    shutil.copy(stored / "panel.json", tmp_path)
    found = make_leaderboard(str(tmp_path))
    (rows,) = found.tables.values()
    assert (found.left_out, "compiled, 3" in [row.agent for row in rows]) == ([], True)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["compiled", "lora"])
def test_a_run_goes_on(name, tmp_path):
    check_it_goes_on(unpacked(tmp_path) / name, tmp_path / "run")
