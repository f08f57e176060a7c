"""agentrl sft, dpo, evolve and distill are agentrl train with a stage or a teacher."""

import pytest
from refusing import refusal

from agentrl_jax.cli import train
from agentrl_jax.config.stages import DpoStage, EvolveStage, SftStage


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """What would be trained by a command."""
    file, found = tmp_path / "base.yaml", []
    file.write_text(
        "seed: 7\nimitation: {levels: 4, steps: 2}\nstages: [imitation, {kind: dpo, data: [own.jsonl], beta: 0.3}, rl]"
    )
    monkeypatch.setattr(train, "_train", lambda config: found.append(config))

    def command(kind, *words):
        train.run_stage(kind, [str(file), *words])
        return found.pop()

    return command


def test_a_command_is_a_run_with_one_stage(trained):
    none = ("--imitation.levels", "0", "--imitation.steps", "0")
    config = trained("sft", "--data", "a.jsonl,b.jsonl", "--epochs=3", "--max-tokens", "64", *none, "--seed", "9")
    (stage,) = config.stages
    assert isinstance(stage, SftStage)
    assert (stage.data, stage.epochs, stage.max_tokens) == (("a.jsonl", "b.jsonl"), 3, 64)
    assert (config.seed, config.train.iterations, config.run_dir) == (9, 0, "runs/base-sft")
    (stage,) = trained("dpo", "--beta", "0.5", *none).stages  # that of the file, with another strength
    assert isinstance(stage, DpoStage)
    assert (stage.data, stage.beta) == (("own.jsonl",), 0.5)
    (stage,) = trained("evolve", "--steps", "50", "--rounds", "2", "--imitation.steps", "0").stages
    assert isinstance(stage, EvolveStage)
    assert stage.total == 150


def test_distill_is_a_run_with_a_teacher(trained):
    config = trained("distill", "--loss", "full", "--stages", "[imitation, rl]", "--algo.preset", "grpo")
    assert (config.algo.distillation.kind, config.algo.distillation.loss) == ("self", "full")
    assert config.algo.distillation.context == "plan"
    assert config.run_dir == "runs/base-distill"


def test_a_file_is_needed_and_other_keys_are_refused(trained):
    assert refusal(train.run_stage, "sft", ["--data", "a"]).key == "FILE.yaml"
    assert "betas" in refusal(trained, "dpo", "--stages.0.betas", "1").key
