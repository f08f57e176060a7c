"""The story of a run that learns from data: two stages, a resume in the middle of each, data that changed."""

import json
import shutil

import pytest
import tiny_run
from refusing import refusal

from agentrl_jax.config import load_config
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.formats.dialogs import message_format
from agentrl_jax.offline.conversations import Conversation, Message
from agentrl_jax.setup.policy import load_policy
from agentrl_jax.train.run import Run, train

SYSTEM, ENDS = "Push the box.", ("Up", "Down", "Left||Up", "Right", "Down||Down")
CONFIG = """
tasks: [{env: SimpleSokoban, groups: 1}]
prompt: {max_turns: 1, max_actions_per_turn: 2, max_actions: 10, max_response_tokens: 6}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
algo: {preset: grpo}
stages:
  - {kind: sft, data: [FOLDER/talk.jsonl], batch: 4, epochs: 28, lr: 0.01, validation: 0.3}
  - {kind: dpo, data: [FOLDER/pairs.jsonl], batch: 3, epochs: 30, lr: 0.001}
train: {checkpoint_every: 1, keep: 9, validation_episodes: 4}
evaluation: {episodes: 4}
run_dir: FOLDER/run
"""


def said(role, content):
    return {"role": role, "content": content}


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def trained(folder):
    """Writes data into the folder, and a run on them; returns the folder."""
    rows, pairs = [], []
    for number in range(8):
        prompt = [said("system", SYSTEM), said("user", f"{number} #_P_X_O#")]
        replies = [said("assistant", f"<answer>{ENDS[(number + k) % 5]}</answer>") for k in range(2)]
        rows.append({"messages": [*prompt, replies[0], said("user", "#_P#"), replies[1]]})
        if number < 5:
            pairs.append({"id": str(number), "prompt": prompt, "chosen": replies[:1], "rejected": replies[1:]})
    (folder / "talk.jsonl").write_text(lines(rows))
    (folder / "pairs.jsonl").write_text(lines(pairs))
    (folder / "data.yaml").write_text(CONFIG.replace("FOLDER", str(folder)))
    train(load_config(folder / "data.yaml"))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("data"))


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


@pytest.mark.nightly
def test_a_killed_run_goes_on_in_the_middle_of_an_epoch(folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    (run / "summary.json").unlink()
    for later in range(2, 5):
        shutil.rmtree(run / "checkpoints" / str(later), ignore_errors=True)
    train(load_config(folder / "data.yaml", {"run_dir": str(run)}))
    assert tiny_run.metrics(run) == tiny_run.metrics(folder / "run")
    assert tiny_run.checkpoint(run, 4) == tiny_run.checkpoint(folder / "run", 4)


@pytest.mark.nightly
def test_other_data_are_refused_where_the_run_needs_them(folder, tmp_path):
    run, config = tmp_path / "run", folder / "data.yaml"
    shutil.copytree(folder / "run", run)
    shutil.rmtree(run / "checkpoints" / "4")
    (run / "summary.json").unlink()
    changed = tmp_path / "talk.jsonl"
    changed.write_text("".join((folder / "talk.jsonl").read_text().splitlines(keepends=True)[1:]))
    digest = load_config(run).stages[0].sha256
    other = load_config(
        config, {"stages.0.data": [str(changed)], "stages.0.sha256": digest, "run_dir": str(tmp_path / "b")}
    )
    error = refusal(train, other)
    assert (error.key, error.value) == ("stages.0.sha256", digest)
    assert not (tmp_path / "b").exists()
    (folder / "talk.jsonl").rename(tmp_path / "gone.jsonl")
    try:
        train(load_config(config, {"run_dir": str(run)}))  # the first stage is done
    finally:
        (tmp_path / "gone.jsonl").rename(folder / "talk.jsonl")
    assert tiny_run.metrics(run) == tiny_run.metrics(folder / "run")
    assert tiny_run.checkpoint(run, 4) == tiny_run.checkpoint(folder / "run", 4)


@pytest.mark.nightly
def test_a_run_without_tasks_learns_the_same_and_another_one_starts_from_it(folder, tmp_path):
    """It ends where the first stage of the run with tasks ended, and plays nothing."""
    text = (folder / "data.yaml").read_text()
    stages = text[text.index("stages:") : text.index("  - {kind: dpo")]
    run, config = tmp_path / "run", tmp_path / "alone.yaml"
    shared = "\n".join(line for line in text.splitlines() if line.startswith(("model:", "prompt:")))
    config.write_text(f"tasks: []\n{shared}\n{stages}")
    tiny_run.trained(run, str(config))
    learned, known = tiny_run.metrics(run), tiny_run.metrics(folder / "run")
    assert [row["sft/loss"] for row in learned] == [row["sft/loss"] for row in known[:2]]
    summary = tiny_run.summary(run)
    steps = load_config(run).stages[0].steps
    assert (summary["success"], summary["stages"], summary["gradient_steps"]) == ({}, ["sft"], steps)
    assert tiny_run.checkpoints(run)[-1] == 2
    (row,) = [json.loads(line) for line in (run / "levels.jsonl").read_text().splitlines()]
    assert not row["known"]
    assert "--env" in tiny_run.refusal("eval", str(run))
    assert "tasks is []" in tiny_run.refusal("plan", str(config))
    found = json.loads(tiny_run.done("eval", str(run), "--env", "SimpleSokoban", "--episodes", "4", "--json"))
    assert (found["success"]["n"], found["seen"]["seen_levels"]) == (4, None)
    tiny_run.done("export", str(run), str(tmp_path / "model"))
    # A process that was killed before the summary was written.
    (run / "summary.json").unlink()
    tiny_run.trained(run, str(config))
    assert tiny_run.summary(run) | {"seconds": 0} == summary | {"seconds": 0}
    begun = tiny_run.trained(
        tmp_path / "rl", str(folder / "data.yaml"), "--stages", "[]", "--train.iterations", "0", "--from", str(run)
    )
    assert "starting from the checkpoint of step 2" in begun
