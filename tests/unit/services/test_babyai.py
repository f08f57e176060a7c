"""BabyAI over HTTP: the recorded play of AgentGym's server, its routes, and where the default differs from it."""

import base64
import dataclasses
import io
import json

import babyai_fixtures as recorded
import httpx
import numpy as np
import pytest
from babyai_play import check_plans, check_recorded_answers, play
from PIL import Image

from agentrl_jax.config.schema import NAMED_LEVELS
from agentrl_jax.errors import UserError
from agentrl_jax.evaluate import scripted
from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.evaluate.scripted_report import as_table
from agentrl_jax.services.action_parsing import react_response
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.environment import ItemError
from agentrl_jax.services.environments import babyai, common
from agentrl_jax.services.protocol import ROUTES
from envs_jax.babyai import items
from envs_jax.babyai.render import TILE

SERVICE = get_service("babyai")


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    """Programs of few episodes; 1,024 take a second each time."""
    monkeypatch.setattr(babyai, "_ROWS", 90)


class AgentGymClient:
    """What AgentGym's client (agentenv/envs/babyai.py) sends and reads, written down from its source."""

    def __init__(self, url):
        self.url = url
        self.handle = self._checked(httpx.post(f"{url}/create"))["id"]

    def _checked(self, answer):
        assert answer.status_code == 200
        return answer.json()

    def _post(self, route, **fields):
        return self._checked(httpx.post(f"{self.url}/{route}", json=fields | {"id": self.handle}))

    def reset(self, item):
        return self._post("reset", data_idx=item)

    def step(self, response):
        found = SERVICE.read(response)
        if found.action is None:
            return found.complaint, 0, False
        answer = self._post("step", action=found.action)
        return answer["observation"], answer["score"], answer["done"]


@pytest.mark.parametrize("upstream", [False, True])
def test_a_session_of_agentgyms_client(serve, upstream):
    SERVICE.make(upstream).close()  # compiles it, as `agentrl serve` does before it listens
    url = serve(SERVICE, ROUTES["babyai"], upstream=upstream)
    assert httpx.get(url).json() == "This is environment BabyAI."
    client = AgentGymClient(url)

    def view():
        return httpx.get(f"{url}/observation?id={client.handle}").json()

    start = {"reward": 0, "score": 0, "deleted": False, "done": False}
    assert view() == start | {"observation": "Environment not initialized"}
    assert "no episode yet" in client._post("render")["error"]
    answer = client.reset(0)
    assert answer == start | {"observation": answer["observation"]}
    assert answer["observation"].startswith("Your goal: go to the red ball\nIn front of you in this room,")
    assert view() == answer
    refusal = "Error: Only one 'Action' is allowed per response. Please adjust your response."
    assert client.step("Action: turn left\nAction: turn left") == (refusal, 0, False)
    text, score, done = client.step(react_response("move forward"))
    assert (score, done) == (0, False)
    assert "Your goal" not in text
    assert view()["observation"] == f"Your goal: go to the red ball\n{text}"
    text, score, done = client.step(react_response("[Go to red ball 1]."))
    assert (score, done) == (0.8875, True)
    assert "\n The task is completed.\nAvailable actions: [" in text
    ended = {"error": f"The task with environment {client.handle} has finished."}
    assert client._post("step", action="turn left") == ended
    assert client.reset(3)["observation"].startswith("Your goal: go to the blue key\n")
    assert client.step("Action:\ngo to blue key 1")[1:] == (0.8875, True)
    assert client.reset(-1) == {"error": "The data_idx -1 is not valid: expected 0 to 2147483647."}
    assert client._post("close") is True
    assert client._post("step", action="toggle") == {"error": f"The id {client.handle} is not valid."}
    assert httpx.post(f"{url}/render", json={"id": 12345}).json() == {"error": "The id 12345 is not valid."}


def test_a_door_that_is_opened_and_gone_through():
    """AgentGym's server loses the reward, because only the last primitive action counts."""
    action = ["toggle and go through red closed door 1"]
    (start, there), (same, here) = (play(12, action, upstream=upstream) for upstream in (True, False))
    assert start == same
    assert start.observation.startswith("Your goal: open the red door\n")
    assert (there.reward, there.score, there.done) == (0, 0, False)
    assert here.reward == here.score > 0.9
    assert here.done
    assert SERVICE.solved(here)
    assert SERVICE.strict(here)
    assert not SERVICE.solved(there)


def test_late_successes():
    """AgentGym's server goes on, repeats the reward after an action that is not possible, and pays again."""
    actions = ["turn left"] * 8 + ["go to blue key 1", "jump", "turn left", "turn right"]
    there, here = (play(3, actions, upstream=upstream)[9:] for upstream in (True, False))
    reward = 1 - 0.9 * (10 / 16)
    assert [answer.reward for answer in there] == [reward, reward, 0, 1 - 0.9 * (12 / 16)]
    assert [answer.done for answer in there] == [False] * 4
    assert there[1].score == 2 * reward
    assert "The action is not recognized" in there[1].observation
    assert "The task is completed" in there[0].observation
    assert SERVICE.solved(there[-1])
    assert not SERVICE.strict(there[-1])
    assert (here[0].reward, here[0].done) == (reward, True)
    assert not SERVICE.strict(here[0])
    assert here[1] == here[3]
    assert (here[1].reward, here[1].score, here[1].done) == (0, reward, True)


def test_the_limit_of_primitive_actions():
    there, here = (play(3, ["turn left"] * 20, upstream=upstream) for upstream in (True, False))
    assert [answer.done for answer in here] == [False] * 16 + [True] * 5
    assert not any(answer.done for answer in there)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", "No change in state."),
        ("  \n", "No change in state."),
        ("jump", "The action is not recognized. Please check valid actions."),
        ("go to red ball 10", "The action is not recognized. Please check valid actions."),
        ("CHECKMATE", "You can take the following actions: turn left, turn right, "),
        ("drop", "You cannot drop the object, as you are not carrying anything."),
        (" Turn LEFT ", "In front of you in this room, you can see several objects: "),
        *((odd, "The action is not recognized.") for odd in ("\ud800", "\0", "İ", "go to " * 10_000, "移动", '"]')),
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_texts_of_any_kind(text, answer):
    for upstream in (False, True):
        found = play(0, [text], upstream=upstream)[1]
        assert found.observation.startswith(answer)
        assert found.observation.count("\nAvailable actions: [") == 1
        assert (found.reward, found.score, found.done) == (0, 0, False)


@pytest.mark.parametrize("item", [-1, 2**31, 2**70])
def test_other_items_are_refused(item):
    with pytest.raises(ItemError, match="not valid: expected 0 to 2147483647"):
        SERVICE.make(False).reset(item)


def test_items():
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
    assert play(made, [], upstream=True)[0].observation.startswith("Your goal: go to the ")


def test_a_picture(serve):
    SERVICE.make(False).close()
    client = AgentGymClient(serve(SERVICE, ROUTES["babyai"]))
    for item, side in ((0, 8), (3, 4), (35, 22)):
        client.reset(item)
        told = client._post("render")
        head, _, data = told.partition(",")
        assert head == "data:image/png;base64"
        image = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
        assert (image.format, image.mode, image.size) == ("PNG", "RGB", (side * TILE, side * TILE))
    assert client._post("close") is True


def test_the_level_of_a_picture_is_not_padded():
    from envs_jax.babyai.scene import extent

    data = recorded.read("levels")
    for row, level in enumerate(recorded.all_levels()):
        assert extent(level[: items.SHAPE.height]) == (data["height"][row], data["width"][row]), data["index"][row]


def test_a_picture_shows_what_is_where():
    import jax

    from envs_jax.babyai.render import picture

    instance = SERVICE.make(False)
    instance.reset(0)
    world = jax.device_get(instance._state.world)
    pixels = np.asarray(picture(instance._state)).reshape(8, TILE, 8, TILE, 3).transpose(0, 2, 1, 3, 4)
    middle = pixels[:, :, TILE // 2, TILE // 2].astype(int)
    red = (middle[..., 0] > middle[..., 1] + 100) & (middle[..., 1] == middle[..., 2])
    rows, columns = np.nonzero(red)
    balls = np.argwhere(world.cells[:8, :8] == recorded.codes.cell_of(recorded.codes.BALL, 0)).tolist()
    assert sorted(zip(rows.tolist(), columns.tolist())) == sorted([(world.y, world.x), *map(tuple, balls)])


def test_pick_up_is_what_agentgyms_client_calls_pickup():
    name = "pickup red ball 1"
    item = next(
        item for item in items.panel() if name in common.listed_actions(play(item, [], upstream=False)[0].observation)
    )
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


def test_named_levels_are_sets_of_stored_items():
    assert tuple(items.NAMED) == NAMED_LEVELS


def test_altered_levels_are_noticed(monkeypatch):
    monkeypatch.setattr(items, "PANEL_DIGEST", "0" * 64)
    with pytest.raises(UserError) as refused:
        evaluate_scripted("babyai", "null")
    assert (refused.value.key, len(refused.value.value)) == (str(items.FILE), 64)


def test_recorded_answers_of_the_original():
    check_recorded_answers(200)


def test_plans_reach_their_goals_by_either_rule():
    check_plans(60)


def test_the_panel_has_agentgyms_rules_and_baselines(monkeypatch):
    monkeypatch.setattr(scripted, "get_service", lambda name: dataclasses.replace(SERVICE, random_plays=2))
    found = evaluate_scripted("babyai", "null")
    assert (found["panel_digest"], found["items"], found["compat"]) == (items.PANEL_DIGEST, 90, "upstream")
    assert (found["turns"], found["baseline_turns"]["null"], found["mean_tokens"]) == (20, 20, 0)
    assert found["success"]["mean"] == found["score"]["mean"] == found["null"]["mean"] == 0
    assert (found["optimal"]["mean"], found["optimal_is"]) == (1, "scripted")
    assert 0.3 < found["random"]["mean"] < 0.7
    sizes = {name: row["success"]["n"] for name, row in found["categories"].items()}
    assert sizes == {"GoTo": 55, "Pickup": 15, "ActionObjDoor": 5, "FindObj": 5, "OneRoom": 5, "SynthLoc": 5}
    assert as_table(found).row_count == 10, "all, null, random and optimal play, and the categories"


@pytest.mark.parametrize(
    ("policy", "action", "named"),
    [("constant", "move forwards", ("move forwards", "move forward")), ("random", "drop", ("--policy", "drop"))],
)
def test_actions_that_no_policy_takes_are_refused(policy, action, named):
    with pytest.raises(UserError) as refused:
        evaluate_scripted("babyai", policy, action=action)
    assert all(part in str(refused.value) for part in named)
