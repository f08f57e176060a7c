"""Files for other tools: ATIF by our own checks and, if it is there, by Harbor's; Inspect logs by Inspect's reader."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_run
from evaluating import refusal

from agentrl_jax.formats.episodes import read_episodes

HARBOR = os.environ.get("HARBOR_PYTHON", "")
"""A Python 3.12 or newer with the package harbor 0.25.0, as `make test-tools` makes it."""

ROOT = {
    *("schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "final_metrics"),
    *("continued_trajectory_ref", "extra", "subagent_trajectories"),
}
STEP = {
    *("step_id", "timestamp", "source", "model_name", "reasoning_effort", "message", "reasoning_content"),
    *("tool_calls", "observation", "metrics", "is_copied_context", "llm_call_count", "extra"),
}
METRICS = {
    *("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "prompt_token_ids"),
    *("completion_token_ids", "logprobs", "extra"),
}
"""The fields that ATIF 1.7 and 1.8 know; others are forbidden there."""


@pytest.fixture(scope="module")
def exported(recorded_run, tmp_path_factory):
    home = tmp_path_factory.mktemp("atif")
    for version in ("1.7", "1.8"):
        words = ("--trajectories", "atif", "--iteration", "4", "--version", version)
        out = tiny_run.done("export", str(recorded_run[0]), str(home / version), *words)
        assert f"12 episodes of {recorded_run[0]}, iteration 4, ATIF {version}" in " ".join(out.split())
    return home


def files(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


def test_the_fields_of_the_format(exported, recorded_run):
    made = files(exported / "1.7")
    for data, episode in zip(made, read_episodes(recorded_run[0]), strict=True):
        assert set(data) <= ROOT
        assert data["schema_version"] == "ATIF-v1.7"
        assert [step["step_id"] for step in data["steps"]] == [*range(1, len(data["steps"]) + 1)]
        assert set().union(*data["steps"]) <= STEP
        system, user, *agent = data["steps"]
        assert (system["source"], user["source"], {step["source"] for step in agent}) == ("system", "user", {"agent"})
        assert (system["message"], user["message"]) == (episode.system, episode.turns[0].message)
        assert data["final_metrics"]["total_steps"] == len(data["steps"])
        observed = [*(turn.message for turn in episode.turns[1:]), episode.unanswered]
        for step, turn, following in zip(agent, episode.turns, observed, strict=True):
            metrics = step["metrics"]
            assert set(metrics) <= METRICS
            assert metrics["completion_token_ids"] == turn.token_ids
            assert metrics["prompt_token_ids"] == turn.prompt_token_ids
            numbers = (metrics["logprobs"], *metrics["extra"].values())
            assert {len(values) for values in numbers} == {metrics["completion_tokens"]} == {len(turn.token_ids)}
            assert step["extra"]["reward"] == turn.extra["reward"]
            content = [result["content"] for result in step.get("observation", {"results": []})["results"]]
            assert content == ([] if following is None else [following])
        extra = data["extra"]
        assert (extra["reward"], extra["success"], extra["failed"]) == (episode.reward, episode.success, episode.failed)
        assert extra["advantage"] == episode.extra["advantage"]
        assert extra["format_errors"] == sum(step["extra"]["format_error"] for step in agent)
        assert (extra["group"], extra["member"], extra["iteration"]) == (episode.group, episode.member, 4)
    assert len({data["trajectory_id"] for data in made}) == len(made) == 12
    for old, new in zip(made, files(exported / "1.8"), strict=True):
        assert new.pop("schema_version") == "ATIF-v1.8"
        assert new.items() <= old.items()
        assert old.keys() - new.keys() == {"schema_version"}


VALIDATE = """
import pathlib, sys
from harbor.models.trajectories import Trajectory
for name in sys.argv[1:]:
    print(Trajectory.model_validate_json(pathlib.Path(name).read_text(encoding="utf-8")).schema_version)
"""


@pytest.mark.skipif(not HARBOR, reason="HARBOR_PYTHON names no Python with the package harbor")
@pytest.mark.parametrize("version", ["1.7", "1.8"])
def test_harbor_accepts_the_files(exported, version):
    names = [str(path) for path in sorted((exported / version).iterdir())]
    done = subprocess.run([HARBOR, "-c", VALIDATE, *names], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {*done.stdout.splitlines()} == {f"ATIF-v{version}"}


def test_what_is_refused_and_leaves_what_is_there(recorded_run, tmp_path, monkeypatch):
    for words, key in (
        ("--iteration 4", "--iteration"),
        ("--trajectories atif --dtype float16", "--dtype"),
        ("--trajectories atif --log_format json", "--log_format"),
        ("--trajectories inspect --version 1.8", "--version"),
        ("--trajectories atif --iteration 9", "--iteration"),
    ):
        assert refusal("export", recorded_run[0], tmp_path / "new", *words.split()).key == key
        assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("kept")
    assert refusal("export", recorded_run[0], tmp_path, "--trajectories", "atif").key == str(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    words = ("export", str(recorded_run[0]), str(tmp_path / "new"), "--trajectories", "inspect")
    code, out, err = tiny_run.command(*words)
    assert (code, out, err.count("\n"), "pip install 'inspect-ai" in err) == (2, "", 1, True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("log_format", ["eval", "json"])
def test_the_log_that_inspect_reads(recorded_run, tmp_path, log_format):
    logs = pytest.importorskip("inspect_ai.log")
    run, record = recorded_run
    words = ("--trajectories", "inspect", "--log_format", log_format)
    out = tiny_run.done("export", str(run), str(tmp_path / "new"), *words)
    (file,) = (tmp_path / "new").iterdir()
    assert f"12 episodes of {run}, iteration 4, Inspect log {file.name}" in " ".join(out.split())
    assert [Path(found.name).name for found in logs.list_eval_logs(str(tmp_path / "new"))] == [file.name]
    log = logs.read_eval_log(str(file))
    assert (log.status, log.eval.task, log.eval.config.epochs) == ("success", "SimpleSokoban lake", 3)
    assert log.eval.model == "agentrl_jax/tiny"
    source = read_episodes(run)
    by_row = sorted(log.samples, key=lambda sample: sample.metadata["row"])  # Inspect sorts by epoch
    for sample, episode in zip(by_row, source, strict=True):
        assert (sample.id, sample.epoch) == (f"{episode.task}-{episode.group:06d}", episode.member + 1)
        assert [message.role for message in sample.input] == ["system", "user"]
        said = [message for message in sample.messages if message.role == "assistant"]
        assert [message.text for message in said] == [turn.response for turn in episode.turns]
        read = [message.text for message in sample.messages if message.role == "user"]
        last = [] if episode.unanswered is None else [episode.unanswered]
        assert read == [*(turn.message for turn in episode.turns), *last]
        usage = sample.model_usage["agentrl_jax/tiny"]
        assert usage.input_tokens == sum(len(turn.prompt_token_ids) for turn in episode.turns)
        assert usage.output_tokens == sum(len(turn.token_ids) for turn in episode.turns)
        assert sample.metadata["completion_tokens"] == usage.output_tokens
        assert (sample.limit.type if sample.limit else None) == {"turns": "turn", None: None}[episode.truncation]
        for event, turn in zip(sample.events, episode.turns, strict=True):
            (choice,) = event.output.choices
            assert [token.logprob for token in choice.logprobs.content] == turn.logprobs
            assert choice.stop_reason == ("stop" if turn.ended else "max_tokens")
        assert (sample.error is None, sample.scores is None) == (not episode.failed, episode.failed)
        if not episode.failed:
            assert sample.scores["success"].value == ("C" if episode.success else "I")
            assert sample.scores["return"].value == episode.reward
    # Inspect's metrics are means over the samples (groups) of means over the epochs (members) that have scores.
    known = ~record.failed.any(axis=1)
    for score, values in (("success", record.success.any(axis=1)), ("return", record.returns)):
        (found,) = [entry for entry in log.results.scores if entry.name == score]
        groups = [values[(record.group == group) & known].mean(dtype=np.float64) for group in range(4)]
        assert found.metrics["accuracy" if score == "success" else "mean"].value == pytest.approx(np.mean(groups))
    assert (log.results.total_samples, log.results.completed_samples) == (12, 11)
