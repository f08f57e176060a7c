"""What counts as success is stated once, in the code, and the docs and the JSON repeat it."""

import re

from paths import ROOT

from agentrl_jax.evaluate import records
from agentrl_jax.evaluate.scripted import evaluate_on_panel, evaluate_scripted
from agentrl_jax.services.catalog import NAMES, get_service, success_rule
from agentrl_jax.services.environment import StepResult
from envs_jax import registry

PAGE = ROOT / "docs" / "guides" / "evaluation.md"


def test_the_docs_state_the_rule_of_every_environment_and_service():
    section = PAGE.read_text(encoding="utf-8").split("## What counts as success\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    found = [(name, rule) for names, rule, *_ in rows for name in re.findall("`([^`]+)`", names)]
    stated = dict(found)
    assert len(found) == len(stated), "a name is in two rows"
    levels = [name for name in registry.BUILT_IN if name.startswith("BabyAI-")]
    stated |= dict.fromkeys(levels, stated.pop("BabyAI-NAME"))
    assert stated == {name: success_rule(name) for name in (*registry.BUILT_IN, *NAMES)}
    strict = {name: get_service(name) for name in NAMES if get_service(name).strict is not None}
    assert list(strict) == ["babyai"]
    assert get_service("SimpleSokoban").success_rule == success_rule("SimpleSokoban")
    assert f"`strict_success` (`strict_rule` in words): {strict['babyai'].strict_rule}." in section


def test_services_judge_by_the_rule_that_they_state():
    """A change of a rule has to change its words, too: those of this list are in the docs."""
    for name, solved, unsolved in (
        ("textcraft", [StepResult("", reward=1.0, done=True)], [StepResult("", reward=1.0), StepResult("", done=True)]),
        ("sciworld", [StepResult("", score=100.0)], [StepResult("", score=99.0, done=True)]),
        ("maze", [StepResult("", reward=1.0)], [StepResult("", reward=-1.0, done=True), StepResult("", reward=0.5)]),
        ("wordle", [StepResult("", reward=1.0)], [StepResult("", done=True)]),
        ("babyai", [StepResult("", score=0.01)], [StepResult("", score=0.0, reward=1.0, done=True)]),
        ("webshop", [StepResult("", reward=1.0)], [StepResult("", reward=0.9, done=True)]),
    ):
        service = get_service(name)
        assert all(map(service.solved, solved))
        assert not any(map(service.solved, unsolved))


def test_the_strict_rule_of_babyai():
    strict = get_service("babyai").strict
    assert strict(StepResult("", reward=0.6, done=True))
    assert not strict(StepResult("", reward=0.5, done=True))
    assert not strict(StepResult("", reward=0.6))


def test_results_and_records_say_what_was_counted():
    result = evaluate_scripted("maze", "null", items="1", turns=2)
    assert result["success_rule"] == success_rule("maze")
    assert "strict_rule" not in result
    assert records.of_result(evaluate_on_panel("null", "maze-v1")).success_rule == success_rule("maze")
