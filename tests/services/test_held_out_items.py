"""What is held out from training in a service: by number, by content, and by what a foreign server shows first."""

import dataclasses

import pytest
from counting import counting

from agentrl_jax.config import load_config
from agentrl_jax.errors import UserError
from agentrl_jax.services.environments.textcraft.env import GOALS
from agentrl_jax.services.first_texts import FirstTexts
from agentrl_jax.train import service_tasks
from agentrl_jax.train.service_tasks import Services

CONFIG = """
tasks: [{{env: {env}, groups: 8, items: "{items}", held_out: "{held_out}"}}]
prompt: {{style: bare, max_turns: 3, reply_tokens: 10}}
env: {{url: local}}
"""


def made(tmp_path, env, items, held_out):
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG.format(env=env, items=items, held_out=held_out))
    return Services(load_config(str(path)), lambda: tmp_path)


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
    with pytest.raises(UserError, match=f"tasks.0.held_out names {seen} items that are trained on"):
        services.refuse_seen()
    assert services.seen_levels([len(services.tasks[0].held_out)]) == seen


def test_other_goals_are_not_refused(tmp_path):
    services = made(tmp_path, "textcraft", f"0-9,{GOALS}-{GOALS + 9}", f"10-19,{GOALS + 10}")
    services.refuse_seen()
    assert services.seen_levels([11]) == 0


def test_what_a_foreign_server_shows_twice_is_counted(tmp_path, monkeypatch):
    """Items 3 and 13 show one text, in other letters; the record outlives the process that wrote it."""
    service = dataclasses.replace(counting()[0], name="foreign")
    monkeypatch.setattr(service_tasks, "get_service", lambda name: service)

    def fresh():
        services = made(tmp_path, "maze", "0-9", "10-19")
        services.refuse_seen()
        return services

    trained = fresh()
    for item in range(5):
        trained._note_training(trained.tasks[0], item, f"Find  apple {item}")
    later = fresh()
    for item in range(10, 20):
        later._note_held_out(later.tasks[0], item, f"find apple {item - 10}\n")
    assert later.seen_levels([10]) == 5
    assert later.seen_levels([2]) == 2


def test_a_record_that_was_cut_in_the_middle_of_a_line_is_read_up_to_it(tmp_path):
    texts = FirstTexts(lambda: tmp_path)
    texts.add("a", 1, "x")
    texts.add("a", 2, "y")
    path = tmp_path / "first_texts.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    again = FirstTexts(lambda: tmp_path)
    assert set(again.of("a")) == {1}
    again.add("a", 3, "z")
    assert set(FirstTexts(lambda: tmp_path).of("a")) == {1, 3}
