"""Items of a service that are held out from training, by number and by content."""

import pytest

from agentrl_jax.config import load_config
from agentrl_jax.errors import UserError
from agentrl_jax.services.environments.textcraft.env import GOALS
from agentrl_jax.setup.service_tasks import Services

CONFIG = """
tasks: [{{env: {env}, groups: 8, items: "{items}", held_out: "{held_out}"}}]
prompt: {{style: bare, max_turns: 3, max_response_tokens: 10}}
env: {{url: local}}
train: {{validate_every: 0}}
"""


def made(tmp_path, env, items, held_out, text=CONFIG):
    path = tmp_path / "run.yaml"
    path.write_text(text.format(env=env, items=items, held_out=held_out))
    return Services(load_config(str(path)), lambda: tmp_path)


def refusal(services):
    with pytest.raises(UserError) as refused:
        services.refuse_seen()
    return refused.value


@pytest.mark.parametrize(
    ("env", "items", "held_out", "seen"),
    [
        ("textcraft", "0-9", f"{GOALS + 3},{3 * GOALS + 12}", 1),
        ("textcraft", "0-9", "8-11", 2),
        ("textcraft", f"{2 * GOALS}", "0,1", 1),
        ("sciworld", "0-29", "29-40", 1),
        ("maze", "0-9", "9-12", 1),
        ("wordle", "0-9", "5", 1),
    ],
)
def test_a_run_that_trains_on_what_it_holds_out_is_refused(tmp_path, env, items, held_out, seen):
    services = made(tmp_path, env, items, held_out)
    refused = refusal(services)
    assert (refused.key, len(refused.value)) == ("tasks.0.held_out", seen)
    assert services.seen_items([len(services.tasks[0].held_out)]) == [seen]


def test_other_goals_are_not_refused(tmp_path):
    services = made(tmp_path, "textcraft", f"0-9,{GOALS}-{GOALS + 9}", f"10-19,{GOALS + 10}")
    services.refuse_seen()
    assert services.seen_items([11]) == [0]


def test_validation_items_are_kept_apart_too(tmp_path):
    text = CONFIG.replace("validate_every: 0", "validate_every: 1")
    for items, words in (("5,20", "that are trained on"), (f"20,{GOALS + 11}", "of held_out")):
        own = text.replace("held_out:", f"validation: '{items}', held_out:")
        refused = refusal(made(tmp_path, "textcraft", "0-9", "10-19", own))
        assert (refused.key, len(refused.value)) == ("tasks.0.validation", 1)
        assert words in str(refused)
