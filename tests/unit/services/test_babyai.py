import base64
import dataclasses
import io
import itertools
import json

import babyai_fixtures as recorded
import jax
import numpy as np
import pytest
from PIL import Image
from refusing import refusal
from scene_lists import lists, scenes_of
from serving import HTTP

from agentrl_jax.config import Config, PromptConfig, ServiceConfig, TaskConfig
from agentrl_jax.config.tasks import NAMED_LEVELS
from agentrl_jax.evaluate import panels, scripted
from agentrl_jax.evaluate.api_models import on_panel
from agentrl_jax.evaluate.api_models.service_task import service_task
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.services.action_parsing import react_response
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.environment import ItemError
from agentrl_jax.services.environments import common
from agentrl_jax.services.environments.babyai import env as babyai
from agentrl_jax.services.protocol import routes_of
from agentrl_jax.setup.service_tasks import Services
from envs_jax.babyai import codes, items, plans
from envs_jax.babyai.render import TILE, picture

SERVICE = get_service("babyai")
LOST_ITEM, LOST_ACTION = 12, "toggle and go through red closed door 1"
"""The action opens the door that the item asks for, which by AgentGym's rules does not count: the agent walks on."""


def play(item, actions, *, upstream):
    instance = SERVICE.make(upstream)
    return [instance.reset(item), *(instance.step(action) for action in actions)]


@pytest.mark.parametrize("upstream", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_session_of_agentgyms_client(serve, upstream):
    SERVICE.make(upstream).close()  # compiles it, as `agentrl serve` does before it listens
    url = serve(SERVICE, routes_of("babyai"), upstream=upstream)
    assert HTTP.get(url).json() == "This is environment BabyAI."
    handle = HTTP.post(f"{url}/create").json()["id"]

    def post(route, **fields):
        return HTTP.post(f"{url}/{route}", json={"id": handle} | fields).raise_for_status().json()

    def step(response):
        answer = post("step", action=SERVICE.read(response).action)
        return answer["observation"], answer["score"], answer["done"]

    def view():
        return HTTP.get(f"{url}/observation?id={handle}").json()

    start = {"reward": 0, "score": 0, "deleted": False, "done": False}
    assert view() == start | {"observation": "Environment not initialized"}
    assert "no episode yet" in post("render")["error"]
    answer = post("reset", data_idx=0)
    assert answer == view() == start | {"observation": answer["observation"]}
    assert answer["observation"].startswith("Your goal: go to the red ball\nIn front of you in this room,")
    head, _, data = post("render").partition(",")
    image = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    assert (head, image.format, image.mode) == ("data:image/png;base64", "PNG", "RGB")
    assert image.size == (8 * TILE, 8 * TILE)
    centers = {image.getpixel((x * TILE + TILE // 2, y * TILE + TILE // 2)) for x in range(8) for y in range(8)}
    assert {(0, 0, 0), (76, 76, 76), (100, 100, 100), (146, 146, 146)} <= centers  # floor and wall, unseen and seen
    text, score, done = step(react_response("move forward"))
    assert (score, done) == (0, False)
    assert "Your goal" not in text
    assert view()["observation"] == f"Your goal: go to the red ball\n{text}"
    text, score, done = step(react_response("[Go to red ball 1]."))
    assert (score, done) == (0.8875, True)
    assert "\n The task is completed.\nAvailable actions: [" in text
    assert post("step", action="turn left") == {"error": f"The task with environment {handle} has finished."}
    assert post("reset", data_idx=3)["observation"].startswith("Your goal: go to the blue key\n")
    assert step("Action:\ngo to blue key 1")[1:] == (0.8875, True)
    assert post("reset", data_idx=-1) == {"error": "The data_idx -1 is not valid: expected 0 to 2147483647."}
    assert post("render", id=12345) == {"error": "The id 12345 is not valid."}


def test_a_door_that_is_opened_and_gone_through():
    """AgentGym's server loses the reward, because only the last primitive action counts."""
    (start, there), (same, here) = (play(LOST_ITEM, [LOST_ACTION], upstream=upstream) for upstream in (True, False))
    assert start == same
    assert start.observation.startswith("Your goal: open the red door\n")
    assert (there.reward, there.score, there.done, SERVICE.solved(there)) == (0, 0, False, False)
    assert here.reward == here.score > 0.9
    assert (here.done, SERVICE.solved(here), SERVICE.strict(here)) == (True, True, True)


def test_late_successes():
    """AgentGym's server repeats the reward after an action that is not possible, and pays again."""
    actions = ["turn left"] * 8 + ["go to blue key 1", "jump", "turn left", "turn right"]
    there, here = (play(3, actions, upstream=upstream)[9:] for upstream in (True, False))
    reward = 1 - 0.9 * (10 / 16)
    assert [answer.reward for answer in there] == [reward, reward, 0, 1 - 0.9 * (12 / 16)]
    assert not any(answer.done or SERVICE.strict(answer) for answer in there)
    assert there[1].score == 2 * reward
    assert "The action is not recognized" in there[1].observation
    assert "The task is completed" in there[0].observation
    assert SERVICE.solved(there[-1])
    assert (here[0].reward, here[0].done, SERVICE.strict(here[0])) == (reward, True, False)
    assert here[1] == here[3] == dataclasses.replace(here[0], reward=0.0)
    there, here = (play(3, ["turn left"] * 20, upstream=upstream) for upstream in (True, False))
    assert [answer.done for answer in (*here, *there)] == [False] * 16 + [True] * 5 + [False] * 21


TEXTS = {
    "  \n": "No change in state.",
    "CHECKMATE": "You can take the following actions: turn left, turn right, ",
    "drop": "You cannot drop the object, as you are not carrying anything.",
    " Turn LEFT ": "In front of you in this room, you can see several objects: ",
}
ODD = ("jump", "go to red ball 10", "\ud800", "İ", "go to " * 10_000)
TEXTS |= dict.fromkeys(ODD, "The action is not recognized. Please check valid actions.")


def test_texts_of_any_kind():
    for upstream, (text, answer) in itertools.product((True, False), TEXTS.items()):
        found = play(0, [text], upstream=upstream)[1]
        assert found.observation.startswith(answer), text[:20]
        assert found.observation.count("\nAvailable actions: [") == 1
        assert (found.reward, found.score, found.done) == (0, 0, False)


@pytest.mark.nightly
def test_items():
    for item in (-1, 2**31):
        with pytest.raises(ItemError, match=f"{item} .*2147483647"):
            SERVICE.make(False).reset(item)
    assert SERVICE.category(1804) == "GoTo"
    assert SERVICE.category(11) == "other"
    assert SERVICE.content(3) == items.digest(items.load((3,))[0]) != SERVICE.content(43)
    made = 40 * 1000 + 3  # level 4, of a seed that is not stored
    level = babyai.level_of(made, upstream=False)
    assert level.dtype == np.int8
    assert level.shape == (items.SHAPE.rows, items.SHAPE.width)
    assert level[items.SHAPE.height, 0] == 4
    assert (level == babyai.level_of(made, upstream=False)).all()
    assert (level != babyai.level_of(made + 40, upstream=False)).any()
    assert play(made, [], upstream=False)[0].observation.startswith("Your goal: go to the ")


def test_a_picture_shows_what_is_where():
    instance = SERVICE.make(False)
    instance.reset(0)
    world = jax.device_get(instance._state.world)
    pixels = np.asarray(picture(instance._state)).reshape(8, TILE, 8, TILE, 3).transpose(0, 2, 1, 3, 4)
    middle = pixels[:, :, TILE // 2, TILE // 2].astype(int)
    red = (middle[..., 0] > middle[..., 1] + 100) & (middle[..., 1] == middle[..., 2])
    rows, columns = np.nonzero(red)
    balls = np.argwhere(world.cells[:8, :8] == codes.cell_of(codes.BALL, 0)).tolist()
    assert sorted(zip(rows.tolist(), columns.tolist())) == sorted([(world.y, world.x), *map(tuple, balls)])


def test_scenes_show_what_the_agent_sees():
    actions = ["drop", "pickup grey key 1"]
    texts = [answer.observation for answer in play(0, actions, upstream=False)]
    box = "There is a red box 1 right in front of you 3 steps away."
    texts += ["You cannot see any objects. You are facing a wall 2 steps away."]
    texts += [f"In front of you in this room, you can see several objects: {box}"]
    start, dropped, taken, nothing, ahead = scenes_of("babyai", texts, [*actions, "turn left", "turn left"])

    def placed(scene):
        return [(name, y, x) for y, row in enumerate(scene["cells"]) for x, cell in enumerate(row) for name in cell]

    seen = [("wall", 0, 3), ("grey ball", 1, 4), ("grey key", 2, 5), ("red ball", 2, 6), ("grey key", 4, 2)]
    seen += [("grey key", 4, 4), ("grey box", 4, 5), ("grey key", 5, 2), ("grey ball", 5, 4)]
    seen += [("player facing up", 6, 3)]
    assert placed(start) == placed(dropped) == seen
    assert (placed(nothing), placed(ahead)) == ([("wall", 4, 3), seen[-1]], [("red box", 3, 3), seen[-1]])
    assert (start["text"], dropped["text"]) == ([], texts[1].strip().splitlines())
    assert lists(start) == {"Goal": [("go to the red ball", "")], "Inventory": [("nothing", "")]}
    assert lists(taken)["Inventory"] == [("grey key", "")]


def test_pick_up_is_what_agentgyms_client_calls_pickup():
    name, starts = "pickup red ball 1", ((item, play(item, [], upstream=False)[0]) for item in items.panel())
    item = next(item for item, start in starts if name in common.listed_actions(start.observation))
    words = name.replace("pickup", "Pick up ")
    assert play(item, [words], upstream=False)[-1] == play(item, [name], upstream=False)[-1]
    assert "not recognized" in play(item, [words], upstream=True)[-1].observation


def test_random_play_takes_listed_actions():
    start = play(0, [], upstream=False)[0].observation
    listed = common.listed_actions(start)
    assert json.loads(start[start.rindex("[") :]) == [*listed, "check available actions"]
    policies = [SERVICE.random(0, seed) for seed in (1, 1, 2)]
    walks = [[policy.act(start) for _ in range(200)] for policy in policies]
    assert walks[0] == walks[1] != walks[2]
    assert set(walks[0]) == set(listed)
    assert policies[0].act("nothing is listed") == "turn left"


def test_altered_levels_and_actions_that_no_policy_takes_are_refused(monkeypatch):
    for policy, action, key in (("constant", "forwards", "action"), ("random", "drop", "--policy")):
        refused = refusal(lambda: scripted.evaluate_scripted("babyai", policy, action=action))  # noqa: B023
        assert (refused.key, refused.value) == (key, action if key == "action" else policy)
    assert tuple(items.NAMED) == NAMED_LEVELS
    monkeypatch.setattr(items, "PANEL_DIGEST", "0" * 64)
    refused = refusal(scripted.evaluate_scripted, "babyai", "null")
    assert (refused.key, len(refused.value)) == (str(items.FILE), 64)


def test_recorded_answers_of_the_original():
    traces, texts = recorded.read("traces"), recorded.action_texts()
    starts = traces["sequence_start"]
    for row in range(0, len(starts) - 1, 200):
        item, steps = traces["sequence_item"][row], range(*starts[row : row + 2])
        index, actions = int(traces["index"][item]), [texts[traces["action"][step]] for step in steps]
        first, *answers = play(index, actions, upstream=True)
        assert (recorded.digest(first.observation.encode()) == traces["first_text"][item]).all(), index
        for step, answer in zip(steps, answers):
            where = f"item {index}, step {step - starts[row]}"
            assert (recorded.digest(answer.observation.encode()) == traces["text"][step]).all(), where
            assert (answer.reward, answer.done) == (traces["reward"][step], traces["done"][step]), where
            assert answer.score == pytest.approx(traces["score"][step], abs=1e-12), where


def test_stored_plans_solve_their_items():
    stored = plans.stored()
    assert {item for item in items.stored_indices() if items.number_of(item) in items.NUMBERS} == set(stored)
    assert all(stored[item] is not None for item in items.panel())
    for upstream, oracle in ((False, SERVICE.oracle), (True, SERVICE.upstream_oracle)):
        for item, plan in list(stored.items())[::60]:
            if plan and (upstream or item not in items.UNSOLVABLE):  # by default, another level is played
                assert len(plan) <= plans.ROUNDS
                assert SERVICE.solved(play(item, oracle(item).actions, upstream=upstream)[-1]), item


def test_a_run_on_the_service_has_the_rules_that_it_is_asked_for(tmp_path):
    task = TaskConfig(env="babyai", groups=1, items="0", held_out=str(LOST_ITEM))
    config = Config(tasks=(task,), env=ServiceConfig(url="local"), prompt=PromptConfig(style="chat"))
    for upstream in (True, False):
        services = Services(config, lambda: tmp_path, upstream=upstream)
        lease = services.tasks[0].pool.open(LOST_ITEM, 1e9)
        assert services.tasks[0].service.solved(lease.step(LOST_ACTION, 1e9)) != upstream
        services.close()


@pytest.mark.nightly
@pytest.mark.parametrize("item", [2006, 33, 186])
def test_the_oracle_of_each_mode_solves_an_item_in_it(item):
    """Item 2006 is generated, and another level by AgentGym's rules; a full search gives the others up."""
    assert item not in plans.stored()
    for upstream, oracle in ((False, SERVICE.oracle), (True, SERVICE.upstream_oracle)):
        actions = oracle(item).actions
        assert 0 < len(actions) <= plans.ROUNDS
        assert SERVICE.solved(play(item, actions, upstream=upstream)[-1])
    assert SERVICE.play_many("oracle", "", (item,), plans.ROUNDS, 1, 0).solved.all()


@pytest.mark.nightly
def test_the_oracle_opens_what_only_the_default_makes_possible():
    """No listed action of AgentGym's opens the box with the key (level 26); two doors in a strict order (level 16)."""
    for item in (25, 15):
        assert SERVICE.solved(play(item, SERVICE.oracle(item).actions, upstream=False)[-1])
    assert not SERVICE.upstream_oracle(25).actions


@pytest.mark.nightly
@pytest.mark.parametrize("item", items.UNSOLVABLE)
def test_stored_levels_that_nobody_can_solve_are_replaced_by_default(item):
    there, here = (babyai.level_of(item, upstream=upstream) for upstream in (True, False))
    assert (there == items.load((item,))[0]).all()
    assert (here != there).any()
    assert here[items.SHAPE.height, 0] == there[items.SHAPE.height, 0] == items.number_of(item)
    assert (here == babyai.level_of(item, upstream=False)).all()
    assert SERVICE.solved(play(item, SERVICE.oracle(item).actions, upstream=False)[-1])
    assert item not in items.panel()


@pytest.mark.nightly
def test_an_api_model_has_the_rules_of_the_panel():
    options = on_panel.on_panel(TaskOptions(env=""), panels.get_panel("babyai-agentgym-v1"))
    assert (options.env, options.upstream) == ("babyai", True)
    solved = {}
    for upstream in (True, False):
        with service_task(TaskOptions(env="babyai", items=str(LOST_ITEM), upstream=upstream)) as task:
            assert ("compat" in task.facts) == upstream
            episode = task.open(LOST_ITEM, 0)
            episode.start()
            episode.step(f"Action: {LOST_ACTION}")
            solved[upstream] = episode.outcome().solved
            episode.close()
    assert solved == {True: False, False: True}


@pytest.mark.nightly
def test_the_panel_has_agentgyms_rules_and_baselines(monkeypatch):
    monkeypatch.setattr(scripted, "get_service", lambda name: dataclasses.replace(SERVICE, random_plays=2))
    found = scripted.evaluate_scripted("babyai", "null")
    assert (found["panel_digest"], found["items"], found["compat"]) == (items.PANEL_DIGEST, 90, "upstream")
    assert (found["turns"], found["baseline_turns"]["null"], found["mean_tokens"]) == (20, 20, 0)
    assert found["success"]["mean"] == found["score"]["mean"] == found["null"]["mean"] == 0
    assert (found["optimal"]["mean"], found["optimal_is"]) == (1, "scripted")
    assert 0.3 < found["random"]["mean"] < 0.7
    sizes = {name: row["success"]["n"] for name, row in found["categories"].items()}
    assert sizes == {"GoTo": 55, "Pickup": 15, "ActionObjDoor": 5, "FindObj": 5, "OneRoom": 5, "SynthLoc": 5}
