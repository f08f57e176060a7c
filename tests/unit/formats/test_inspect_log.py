"""Inspect logs, read again by Inspect's own reader."""

import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_run

from agentrl_jax.formats.episodes import read_episodes


def test_without_the_package(recorded_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    words = ("export", str(recorded_run[0]), str(tmp_path / "new"), "--trajectories", "inspect")
    code, out, err = tiny_run.command(*words)
    assert (code, out, err.count("\n"), "pip install 'inspect-ai" in err) == (2, "", 1, True)
    assert not any(tmp_path.iterdir())


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
