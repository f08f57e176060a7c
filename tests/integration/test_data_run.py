"""The story of a run that learns from data: two stages, a resume in the middle of each, data that changed."""

import json

import data_run
import pytest
import tiny_run
from data_run import SYSTEM

from agentrl_jax.config import load_config
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.formats.dialogs import message_format
from agentrl_jax.offline.conversations import Conversation, Message
from agentrl_jax.setup.policy import load_policy
from agentrl_jax.train.run import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return data_run.trained(tmp_path_factory.mktemp("data"))


def test_stages_learn_one_after_the_other(folder):
    rows = tiny_run.metrics(folder / "run")
    steps = load_config(folder / "run").stages
    assert [(row["step"], row["stage"]) for row in rows] == [*enumerate(["sft"] * 2 + ["dpo"] * 2, 1)]
    assert [stage.chunks for stage in steps] == [2, 2]
    assert rows[1]["sft/validation_loss"] < rows[0]["sft/validation_loss_before"] / 2
    assert rows[1]["sft/loss"] < rows[0]["sft/loss"]
    assert rows[3]["dpo/margin"] > rows[2]["dpo/margin"] > 0
    assert rows[3]["dpo/accuracy"] == 1
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert (summary["stages"], summary["iterations"]) == (["sft", "dpo"], 0)
    assert summary["gradient_steps"] == sum(stage.steps for stage in steps)
    assert summary["seen_levels"] == 0


def test_levels_of_the_evaluation_are_not_learned_from(folder, tmp_path, monkeypatch):
    config = load_config(folder / "data.yaml", {"run_dir": str(tmp_path)})
    run = Run(config)
    (eval_set,) = run.held_out.eval_sets
    contents = run.held_out.contents(run.parts.tokenizer)
    assert len(contents) == 4
    trajectory = eval_set.play(load_policy(folder / "run", config).params, 4, 1.0)
    form = message_format(config.prompt, run.parts.tokenizer)
    shown = set()
    for row in range(4):
        ids = [*trajectory.prompt[row, : trajectory.prompt_length[row]]]
        ids += [*trajectory.observation[row, 0, : trajectory.observation_length[row, 0]]]
        system, user, _ = form.first(run.parts.tokenizer.decode(map(int, ids), skip_special=False))
        talk = Conversation((Message("system", system), Message("user", user), Message("assistant", "")))
        shown.add(talk.content())
    assert shown == contents
    known = Conversation((Message("system", SYSTEM), Message("user", "0 #_P_X_O#"), Message("assistant", ""))).content()
    monkeypatch.setattr(HeldOut, "contents", lambda held_out, tokenizer: frozenset({known}))
    data = Run(config)._read
    assert [found.counts["on a level of the evaluation"] for found in data.values()] == [1, 1]
    assert all(known not in found.contents for found in data.values())
