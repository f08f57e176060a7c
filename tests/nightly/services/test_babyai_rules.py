"""Slow checks of what the quick tests of the same name check."""

from agentrl_jax.evaluate import panels
from agentrl_jax.evaluate.api_models import on_panel
from agentrl_jax.evaluate.api_models.service_task import service_task
from agentrl_jax.evaluate.api_models.tasks import TaskOptions

ITEM = 1811
ACTION = "toggle and go through blue closed door 1"
"""It opens the blue door that the item asks for; by AgentGym's rules this does not count, as the agent walks on."""


def test_an_api_model_has_the_rules_of_the_panel():
    panel = panels.get_panel("babyai-agentgym-v1")
    options = on_panel.on_panel(TaskOptions(env=""), panel)
    assert (options.env, options.upstream) == ("babyai", True)
    solved = {}
    for upstream in (True, False):
        with service_task(TaskOptions(env="babyai", items=str(ITEM), upstream=upstream)) as task:
            assert ("compat" in task.facts) == upstream
            episode = task.open(ITEM, 0)
            episode.start()
            episode.step(f"Action: {ACTION}")
            solved[upstream] = episode.outcome().solved
            episode.close()
    assert solved == {True: False, False: True}
