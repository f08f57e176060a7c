"""A recorded evaluation on a panel."""

import tiny_run

from agentrl_jax.evaluate.panels import get_panel
from agentrl_jax.runs.rollout_records import read_record, record_path
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.viewer.data import RunData


def test_a_panel_is_named(finished, tmp_path):
    """Its episodes have one action, fewer than the run allows in a turn; the configuration can be read all the same."""
    folder = tmp_path / "new"
    words = ("eval", str(finished.folder), "--panel", "bandit-v1", "--record", str(folder))
    assert tiny_run.command(*words)[0] == 0
    evaluation = read_record(record_path(folder, 1)).header.evaluation
    panel = get_panel("bandit-v1")
    assert (evaluation.panel, evaluation.panel_sha256, evaluation.seed) == (panel.name, panel.sha256, panel.seed)
    assert read_config(folder).prompt.max_actions == panel.max_actions
    index, _ = RunData(folder, boards=False).refresh()
    assert index["about"] == f"Evaluation of {finished.folder}, iteration 4 on bandit-v1."
