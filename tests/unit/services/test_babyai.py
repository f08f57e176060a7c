"""BabyAI over HTTP: the recorded play of AgentGym's server, its routes, and where the default differs from it."""

import base64
import io
import json

import babyai_fixtures as recorded
import httpx
import numpy as np
import pytest
from PIL import Image

from agentrl_jax.config.schema import NAMED_LEVELS
from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.evaluate.scripted_report import as_table
from agentrl_jax.services.action_parsing import react_response
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.environment import ItemError
from agentrl_jax.services.environments import babyai, common
from agentrl_jax.services.protocol import ROUTES
from envs_jax.babyai import items, plans
from envs_jax.babyai.render import TILE

SERVICE = get_service("babyai")


def play(item, actions, *, upstream):
    """The answers to a reset and to actions."""
    instance = SERVICE.make(upstream)
    return [instance.reset(item), *(instance.step(action) for action in actions)]


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


def test_recorded_answers_of_the_original():
    traces, texts = recorded.read("traces"), recorded.action_texts()
    starts, instance = traces["sequence_start"], SERVICE.make(True)
    for row in range(0, len(starts) - 1, 25):
        item = traces["sequence_item"][row]
        first = instance.reset(int(traces["index"][item]))
        assert (recorded.digest(first.observation.encode()) == traces["first_text"][item]).all()
        for step in range(starts[row], starts[row + 1]):
            answer = instance.step(texts[traces["action"][step]])
            where = f"item {traces['index'][item]}, step {step - starts[row]}, {texts[traces['action'][step]]!r}"
            assert (recorded.digest(answer.observation.encode()) == traces["text"][step]).all(), where
            assert answer.reward == traces["reward"][step], where
            assert answer.score == pytest.approx(traces["score"][step], abs=1e-12), where
            assert answer.done == traces["done"][step], where


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


def test_the_oracle_plans_on_the_levels_that_are_played():
    """Generated levels of number 7 are others by AgentGym's rules, where a key may lie behind its own door."""
    item = 2006
    for upstream, oracle in ((False, SERVICE.oracle), (True, SERVICE.upstream_oracle)):
        answers = play(item, oracle(item).actions, upstream=upstream)
        assert SERVICE.solved(answers[-1])
    assert SERVICE.play_many("oracle", "", (item,), 20, 1, 0).solved.all()


@pytest.mark.parametrize("item", [33, 186])
def test_the_oracle_solves_items_that_a_full_search_gives_up(item):
    assert item not in plans.stored()
    for upstream, oracle in ((False, SERVICE.oracle), (True, SERVICE.upstream_oracle)):
        actions = oracle(item).actions
        assert 0 < len(actions) <= plans.ROUNDS
        assert SERVICE.solved(play(item, actions, upstream=upstream)[-1])
    assert SERVICE.play_many("oracle", "", (item,), plans.ROUNDS, 1, 0).solved.all()


def test_random_play_takes_listed_actions():
    start = play(0, [], upstream=False)[0].observation
    listed = common.listed_actions(start)
    assert json.loads(start[start.rindex("[") :]) == [*listed, "check available actions"]
    policies = [SERVICE.random(0, seed) for seed in (1, 1, 2)]
    walks = [[policy.act(start) for _ in range(200)] for policy in policies]
    assert walks[0] == walks[1] != walks[2]
    assert set(walks[0]) == set(listed)
    assert policies[0].act("nothing is listed") == "turn left"


def test_all_plans_reach_their_goals_by_either_rule():
    stored = plans.stored()
    assert {item for item in items.stored_indices() if items.number_of(item) in items.NUMBERS} == set(stored)
    assert all(stored[item] is not None for item in items.panel())
    for upstream, oracle in ((False, SERVICE.oracle), (True, SERVICE.upstream_oracle)):
        instance = SERVICE.make(upstream)
        failed = []
        for item, plan in stored.items():
            if item in items.UNSOLVABLE and not upstream:
                continue  # another level is played
            policy, answer = oracle(item), instance.reset(item)
            for _ in plan or ():
                answer = instance.step(policy.act(answer.observation))
            if plan is not None and not SERVICE.solved(answer):
                failed.append(item)
            assert len(plan or ()) <= plans.ROUNDS
        assert failed == []


@pytest.mark.parametrize("item", items.UNSOLVABLE)
def test_stored_levels_that_nobody_can_solve_are_replaced_by_default(item):
    there, here = (babyai.level_of(item, upstream=upstream) for upstream in (True, False))
    assert (there == items.load((item,))[0]).all()
    assert (here != there).any()
    assert here[items.SHAPE.height, 0] == there[items.SHAPE.height, 0] == items.number_of(item)
    assert (here == babyai.level_of(item, upstream=False)).all()
    assert SERVICE.solved(play(item, SERVICE.oracle(item).actions, upstream=False)[-1])
    assert item not in items.panel()


def test_the_oracle_opens_what_only_the_default_makes_possible():
    """No listed action of AgentGym's opens the box with the key (level 26); two doors in a strict order (level 16)."""
    for item in (25, 15):
        assert SERVICE.solved(play(item, SERVICE.oracle(item).actions, upstream=False)[-1])
    assert not SERVICE.upstream_oracle(25).actions


def test_the_panel_by_scripted_policies():
    random = evaluate_scripted("babyai", "random", plays=23)
    assert random["panel_digest"] == items.PANEL_DIGEST
    assert (random["items"], random["compat"], random["turns"]) == (90, "upstream", 20)
    assert random["success"]["standard_error"] == pytest.approx(0.009, abs=0.002)
    assert random["success"]["mean"] == pytest.approx(0.522, abs=0.03)
    assert random["strict_success"]["mean"] == pytest.approx(0.51, abs=0.03)
    sizes = {name: row["success"]["n"] for name, row in random["categories"].items()}
    assert sizes == {"GoTo": 55, "Pickup": 15, "ActionObjDoor": 5, "FindObj": 5, "OneRoom": 5, "SynthLoc": 5}
    assert random == evaluate_scripted("babyai", "random", plays=23)
    assert evaluate_scripted("babyai", "oracle")["success"]["mean"] == 1
    nothing = evaluate_scripted("babyai", "null")
    assert nothing["success"]["mean"] == nothing["score"]["mean"] == 0
    same = evaluate_scripted("babyai", "constant", action="move forward")
    assert same["policy"] == "constant move forward"
    assert 0 < same["success"]["mean"] < 0.3
    for result in (random, nothing, same):
        assert as_table(result).row_count == 10, "all, null, random and optimal play, and the categories"
        assert (result["null"]["mean"], result["optimal"]["mean"], result["optimal_is"]) == (0, 1, "scripted")
        assert (result["baseline_turns"]["null"], result["mean_tokens"]) == (20, 0)
    assert same["random"]["mean"] == pytest.approx(random["success"]["mean"], abs=0.03)
    assert same["gap_closed"] == pytest.approx(
        (same["success"]["mean"] - same["random"]["mean"]) / (1 - same["random"]["mean"])
    )
    with pytest.raises(
        UserError, match="there is no action 'move forwards' in babyai; expected one such as move forward"
    ):
        evaluate_scripted("babyai", "constant", action="move forwards")
    with pytest.raises(UserError, match="--policy is random and --action 'drop'"):
        evaluate_scripted("babyai", "random", action="drop")


def test_named_levels_are_sets_of_stored_items():
    assert tuple(items.NAMED) == NAMED_LEVELS


def test_scripted_policies_on_a_server(serve):
    url = serve(SERVICE, ROUTES["babyai"], upstream=True)
    found = {
        policy: evaluate_scripted("babyai", policy, items="1804-1808", plays=2, url=url)
        for policy in ("oracle", "random", "null")
    }
    same = evaluate_scripted("babyai", "constant", action="move forward", items="1804-1808", url=url)
    assert (
        same["success"] == evaluate_scripted("babyai", "constant", action="move forward", items="1804-1808")["success"]
    )
    assert [found[policy]["success"]["mean"] for policy in ("oracle", "null")] == [1, 0]
    assert found["oracle"]["strict_success"]["mean"] > 0
    assert found["random"]["plays"] == 2
    assert "compat" not in found["random"]
    assert "panel_digest" not in found["random"]
    with pytest.raises(UserError, match="2147483648"):
        evaluate_scripted("babyai", "oracle", items="2147483648")


def test_altered_levels_are_noticed(monkeypatch):
    monkeypatch.setattr(items, "PANEL_DIGEST", "0" * 64)
    with pytest.raises(UserError, match="the panel has digest"):
        evaluate_scripted("babyai", "null")
