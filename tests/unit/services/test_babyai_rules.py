"""Rules of BabyAI's panel: those of AgentGym's server, whoever plays; and what threads share."""

import threading

import pytest

from agentrl_jax.config import Config, PromptConfig, ServiceConfig, TaskConfig
from agentrl_jax.errors import UserError
from agentrl_jax.evaluate import panels
from agentrl_jax.evaluate.api_models import on_panel
from agentrl_jax.rollout.envs.host_episodes import text_hash
from agentrl_jax.rollout.trajectory import hexadecimal
from agentrl_jax.services.environments import babyai
from agentrl_jax.setup.service_tasks import Services

ITEM = 1811
ACTION = "toggle and go through blue closed door 1"
"""It opens the blue door that the item asks for; by AgentGym's rules this does not count, as the agent walks on."""


@pytest.mark.parametrize("upstream", [True, False])
def test_a_run_on_the_service_has_the_rules_that_it_is_asked_for(tmp_path, upstream):
    task = TaskConfig(env="babyai", groups=1, items="0", held_out=str(ITEM))
    config = Config(tasks=(task,), env=ServiceConfig(url="local"), prompt=PromptConfig(style="chat"))
    services = Services(config, lambda: tmp_path, upstream=upstream)
    lease = services.tasks[0].pool.open(ITEM, 1e9)
    assert services.tasks[0].service.solved(lease.step(ACTION, 1e9)) != upstream
    services.close()


def test_items_of_another_server_have_no_record():
    panel = panels.get_panel("maze-v1")
    shown = panels.first_observations(panel)
    levels = [hexadecimal(text_hash(text)[None])[0] for text in shown]
    on_panel._check_levels(levels, "http://x", panel)
    levels[3] = levels[4]
    with pytest.raises(UserError, match="maze-v1, but item 3 begins with another text on the server at http://x"):
        on_panel._check_levels(levels, "http://x", panel)


def test_a_generator_is_compiled_once(monkeypatch):
    """All episodes of a group begin on one item at once."""
    made = []

    def make_generator(numbers, shape, *, upstream):
        made.append(numbers)
        return lambda key: key

    monkeypatch.setattr(babyai, "make_generator", make_generator)
    babyai._compile_generator.cache_clear()
    threads = [threading.Thread(target=babyai._generator, args=(12, True)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    babyai._compile_generator.cache_clear()
    assert made == [(12,)]
