"""Slow checks of what the quick tests of the same name check."""

from agentrl_jax.evaluate.eval_set import evaluate_run

WORDS = {"env": "FrozenLake", "episodes": 8}


def test_one_attempt_is_the_plain_evaluation(finished):
    found = evaluate_run(finished.folder, **WORDS, attempts=(1,))
    once = found["retry"]["attempts"]["1"]
    assert once["retry"] == once["pass_at"] == found["success"]
    assert once["retry_greedy"] == found["success_greedy"]
    assert once["retry_tokens"]["mean"] == once["pass_at_tokens"]["mean"] == found["mean_tokens"]
    assert once["retry_turns"]["mean"] == found["mean_turns"]
    assert (once["difference"]["mean"], found["retry"]["new_tokens"]) == (0.0, None)
