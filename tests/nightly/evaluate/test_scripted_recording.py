"""Recorded scripted play of BabyAI, whose programs take long to compile."""

import pytest

from agentrl_jax.evaluate.scripted import evaluate_scripted


def test_babyai_keeps_its_rules(tmp_path):
    """Recorded episodes are played on instances, by the rules that unrecorded ones are played by."""
    options = {"items": "0,18,1804", "turns": 12}
    for policy, action in (("oracle", None), ("constant", "move forward")):
        plain = evaluate_scripted("babyai", policy, action=action, **options)
        found = evaluate_scripted("babyai", policy, action=action, record=tmp_path / policy, **options)
        assert found.keys() == plain.keys()
        for name in ("success", "strict_success", "outcomes", "compat", "plays", "policy", "mean_turns", "random"):
            assert found[name] == plain[name]
        assert found["score"] == pytest.approx(plain["score"])  # without `record` in 32 bits
