"""Retries of a run on a service, and of a pretrained model."""

import made_run
import tiny_run

from agentrl_jax.evaluate.eval_set import evaluate_run


def test_one_attempt_at_a_service_is_the_plain_evaluation(served):
    found = evaluate_run(served, attempts=(1,))
    once = found["retry"]["attempts"]["1"]
    assert once["retry"] == found["success"]
    assert once["retry_greedy"] == found["success_greedy"]
    assert once["retry_tokens"]["mean"] == found["mean_tokens"] > 0
    assert once["retry_turns"]["mean"] == found["mean_turns"]


def test_a_conversation_beyond_the_positions_of_the_model_is_refused(tmp_path):
    model = made_run.write_model(tmp_path / "model", positions=160)
    run = made_run.write_run(tmp_path / "run", f"pretrained: {model}")
    code, out, err = tiny_run.command("scaling", str(run), "--attempts", "4", "--episodes", "2")
    assert (code, out) == (2, "")
    assert "--attempts 4, in one conversation: the longest context of a rollout has" in err.splitlines()[-1]
    assert err.splitlines()[-1].endswith("or make fewer attempts")
