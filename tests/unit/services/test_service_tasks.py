import math
import types

import numpy as np
import pytest
from refusing import refusal

from agentrl_jax.config import load_config
from agentrl_jax.evaluate.baselines import success_intervals
from agentrl_jax.evaluate.service_report import failure_rows, service_metrics
from agentrl_jax.rollout.envs.host_episodes import Failure, Report
from agentrl_jax.services.environments.maze.env import STARTS, distances
from agentrl_jax.services.environments.textcraft.env import GOALS
from agentrl_jax.setup.service_tasks import Services

CONFIG = """
tasks: [{{env: {env}, groups: 8, items: "{items}", held_out: "{held_out}"{more}}}]
prompt: {{style: bare, max_turns: {turns}, max_response_tokens: 10}}
env: {{url: local}}
train: {{validate_every: {every}}}
"""


def made(tmp_path, env, items, held_out, more="", turns=3):
    path = tmp_path / "run.yaml"
    fields = {"env": env, "items": items, "held_out": held_out, "more": more, "turns": turns, "every": int(bool(more))}
    path.write_text(CONFIG.format(**fields))
    return Services(load_config(str(path)), lambda: tmp_path)


def test_a_run_that_trains_on_what_it_holds_out_is_refused_and_validation_items_are_kept_apart(tmp_path):
    for env, items, held_out, seen in (
        ("textcraft", "0-9", f"{GOALS + 3},{3 * GOALS + 12}", 1),
        ("textcraft", "0-9", "8-11", 2),
        ("textcraft", f"{2 * GOALS}", "0,1", 1),
        ("sciworld", "0-29", "29-40", 1),
        ("maze", "0-9", "9-12", 1),
        ("wordle", "0-9", "5", 1),
    ):
        services = made(tmp_path, env, items, held_out)
        refused = refusal(services.refuse_seen)
        assert (refused.key, len(refused.value)) == ("tasks.0.held_out", seen)
        assert services.seen_items([len(services.tasks[0].held_out)]) == {0: seen}
    # Other goals are not refused.
    services = made(tmp_path, "textcraft", f"0-9,{GOALS}-{GOALS + 9}", f"10-19,{GOALS + 10}")
    services.refuse_seen()
    assert services.seen_items([11]) == {0: 0}
    for items, words in (("5,20", "that are trained on"), (f"20,{GOALS + 11}", "of held_out")):
        services = made(tmp_path, "textcraft", "0-9", "10-19", f", validation: '{items}'")
        refused = refusal(services.refuse_seen)
        assert (refused.key, len(refused.value)) == ("tasks.0.validation", 1)
        assert words in str(refused)


@pytest.mark.parametrize("turns", [1, 6])
def test_baselines_have_the_turns_of_the_agent(tmp_path, turns):
    services = made(tmp_path, "maze", "0-9", "18,17,16,13,12", turns=turns)
    known, away = services.baselines(0, 4), np.array([1, 2, 3, 6])
    services.close()
    assert [distances()[STARTS[item]] for item in (18, 17, 16, 13)] == away.tolist()
    assert known.optimal.tolist() == (away <= turns).tolist()
    assert known.turns["optimal"].tolist() == np.minimum(away, turns).tolist()
    assert (known.null.tolist(), known.turns["null"].tolist()) == ([0.0] * 4, [turns] * 4)
    assert set(success_intervals(known)) == {"null", "random", "optimal"}


def played(*episodes, task=0):
    failed, success, turns, retries, group = map(np.array, zip(*episodes))
    turn = types.SimpleNamespace(info={"retries": retries * 1.0})
    ids = types.SimpleNamespace(group=group, task=np.full(len(group), task))
    return types.SimpleNamespace(failed=failed, success=success, num_turns=turns, turn=turn, ids=ids)


def test_retried_episodes_stand_beside_the_others_if_there_are_any():
    trajectory = played(  # failed, success, turns, retries, group
        *((False, True, 3, [0, 0], 4), (True, False, 1, [1, 0], 4), (False, False, 5, [2, 1], 7)),
        *((False, True, 2, [0, 0], 7), (True, False, 4, [0, 0], 9), (True, True, 4, [3, 0], 9)),
    )
    found = service_metrics(trajectory, [0], Report(calls=5, seconds=3.0), 12.0, 2)
    expected = {"failed_share": 0.5, "failed_turns": 3.0, "retries": 7.0, "restarts": 2.0, "calls": 5.0}
    expected |= {"retried_share": 1 / 6, "retried_success": 0.0, "other_success": 1.0, "retried_turns": 5.0}
    expected |= {"other_turns": 2.5, "wait_share": 0.25}
    expected |= {"lone_share": 1 / 6}  # the first episode, whose only partner failed
    assert found == {f"env/{name}": value for name, value in expected.items()}
    found = service_metrics(played((False, True, 1, [0], 0), (False, False, 1, [0], 1)), [0], Report(), 1.0, 0)
    assert found["env/failed_share"] == found["env/retries"] == found["env/lone_share"] == 0  # groups of one are whole
    assert math.isnan(found["env/retried_success"])
    assert math.isnan(found["env/failed_turns"])


def test_restarts_are_those_since_the_last_look_and_dropped_episodes_are_named():
    services = object.__new__(Services)
    services.processes, services._restarts = [types.SimpleNamespace(restarts=number) for number in (1, 2)], 0
    assert services.take_restarts() == 3
    services.processes[1].restarts = 4
    assert [services.take_restarts(), services.take_restarts()] == [2, 0]
    rows = failure_rows(7, [Failure("maze", 1, 2, "step", "Lost: gone")])
    assert rows == [{"step": 7, "task": "maze", "group": 1, "member": 2, "what": "step", "error": "Lost: gone"}]
