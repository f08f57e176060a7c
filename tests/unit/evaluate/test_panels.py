"""Panels are what the code makes, other levels are refused, and what counts as success is stated once."""

import dataclasses
import re

import pytest
from evaluating import refusal
from paths import ROOT

from agentrl_jax.evaluate import make_panels, panels
from agentrl_jax.evaluate.limits import Limits, with_limits
from agentrl_jax.evaluate.panels import digest, get_panel, load_panels
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.services.catalog import NAMES, get_service, success_rule
from agentrl_jax.services.environment import StepResult
from envs_jax import registry
from envs_jax.babyai import items as babyai_items
from envs_jax.splits import Split, splits_of_levels

CHEAP = ("bandit-v1", "maze-v1", "wordle-v1")


@pytest.mark.nightly
def test_panels_are_made_again_of_the_test_split_or_of_the_published_items():
    assert make_panels.make(CHEAP) == load_panels()
    panel = get_panel("frozen-lake-4x4-slippery-v2")
    levels = panels.panel_levels(panel)
    assert digest(panel, panels.shown_at(panel, levels)) == panel.sha256
    splits = splits_of_levels(*panels.environment(panel), levels)
    assert (len(levels), set(splits.tolist())) == (len(panel), {Split.TEST})
    panel = get_panel("babyai-agentgym-v1")
    assert panel.numbers == babyai_items.panel()
    assert make_panels.ranges(panel.numbers) == panel.items
    assert len(panels.environment(panel)[0].test_levels) == len(panel)


def test_a_digest_tells_levels_rules_and_items_apart(finished, monkeypatch):
    panel = get_panel("maze-v1")
    shown = panels.first_observations(panel)
    assert digest(panel, shown) == panel.sha256
    changed = [
        (panel, [*shown[1:], shown[0]]),
        (panel, shown[:-1]),
        (dataclasses.replace(panel, max_actions=51), shown),
        (dataclasses.replace(panel, items="0-23,30"), shown),
        (dataclasses.replace(panel, options={"slip": 0.1}), shown),
    ]
    assert panel.sha256 not in {digest(*other) for other in changed}
    # Changed levels are refused.
    stored = load_panels()
    panel = dataclasses.replace(stored["bandit-v1"], sha256="0" * 64)
    monkeypatch.setattr(panels, "load_panels", lambda: {**stored, "bandit-v1": panel})
    for words in ((finished.folder,), ("--policy", "random")):
        assert "bandit-v1: what would be played" in str(refusal("eval", *words, "--panel", "bandit-v1"))


def test_a_run_plays_the_panels_levels_with_its_limits(finished):
    config = panels.on_panel(read_config(finished.folder), get_panel("sokoban-6x6-v2"), "run")
    assert (config.prompt.max_actions, config.prompt.max_turns) == (10, 2)
    assert (config.evaluation.episodes, config.evaluation.seed) == (512, 123)
    (task,) = config.tasks
    assert (task.levels, task.options) == ("", {"height": 6, "width": 6, "boxes": 1})
    # More turns raise the limits that would bind.
    config = read_config(finished.folder)
    lake = config.tasks[1].replace(options={"max_steps_in_episode": 4})
    config = config.replace(tasks=(lake,))
    more = with_limits(config, Limits(turns=4, tokens=9))
    assert (more.prompt.max_turns, more.prompt.max_actions, more.prompt.max_response_tokens) == (4, 20, 9)
    assert more.tasks[0].options == {"max_steps_in_episode": 8}
    fewer = with_limits(config, Limits(turns=1))
    assert (fewer.prompt.max_turns, fewer.prompt.max_actions) == (1, 10)
    assert fewer.tasks == config.tasks
    assert with_limits(config, Limits()) == config


def test_the_docs_state_the_rule_of_every_environment_and_service():
    page = (ROOT / "docs" / "guides" / "evaluation.md").read_text(encoding="utf-8")
    section = page.split("## What counts as success\n")[1].split("\n## ")[0]
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
    strict = get_service("babyai").strict
    assert strict(StepResult("", reward=0.6, done=True))
    assert not strict(StepResult("", reward=0.5, done=True))
    assert not strict(StepResult("", reward=0.6))
