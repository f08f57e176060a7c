"""SciWorld against values recorded from AgentGym's server and the package's wrapper; its Java processes end."""

import importlib.util
import json
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
from sciworld_texts import BORDERS, HALLWAY

from agentrl_jax.services.environment import ItemError, StepResult
from agentrl_jax.services.environments.sciworld.env import ITEMS, SERVICE, TASKS, SciWorld, find_item
from agentrl_jax.services.environments.sciworld.pool import Pool, Simulator
from agentrl_jax.services.environments.sciworld.scripted import Oracle
from agentrl_jax.services.protocol import routes_of

BOIL_WATER = (
    "Your task is to boil water. For compounds without a boiling point, combusting the substance is also acceptable. "
    "First, focus on the substance. Then, take actions that will cause it to change its state of matter."
)
UNKNOWN = "No known action matches that input."
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("scienceworld") is None or shutil.which("java") is None,
    reason="scienceworld or Java is not installed",
)
PAINT = 4168
PLANT = 3536


@pytest.fixture(scope="module")
def pool():
    pool = Pool(idle=2)
    yield pool
    pool.close()


@pytest.fixture
def world(pool):
    world = SciWorld(pool)
    yield world
    world.close()


@pytest.fixture(scope="module")
def gold_pool():
    pool = Pool(idle=1, heap=512)
    yield pool
    pool.close()


def java_children():
    return {child.pid for child in psutil.Process().children(recursive=True) if "java" in child.name()}


def play(world, item, actions):
    return [world.reset(item), *(world.step(action) for action in actions)]


def test_tasks_and_variations_are_those_of_the_package(pool):
    from scienceworld.constants import ID2TASK

    out = {"5-1", "5-2", "9-1", "9-2", "9-3", "10-1", "10-2"}
    assert [task for key, task in ID2TASK.items() if key not in out] == list(TASKS)
    simulator = pool.take()
    assert {task: simulator.ask("getTaskMaxVariations", task) for task in TASKS} == TASKS
    pool.give(simulator)


def test_a_reset_tells_task_and_room_apart(world):
    answer = world.reset(0)
    told = {"task_name": "boil", "var_num": 0, "task_description": BOIL_WATER, "deleted": False, "moves": 0}
    assert answer == StepResult(HALLWAY.rstrip("\n"), info=told)
    assert routes_of("sciworld").first_result(answer).observation == f"{BOIL_WATER}\n{answer.observation}"


def test_the_first_move_over_a_hundred_or_a_wrong_focus_ends_the_episode(world):
    answers = play(world, 0, ["wait1"] * 51)
    assert [answer.done for answer in answers] == [False] * 51 + [True]
    assert (answers[50].info["moves"], answers[51].info["moves"]) == (100, 102)
    assert not SERVICE.solved(answers[51])
    lost = play(world, 0, ["focus on agent"])[-1]  # a wrong focus loses at once
    assert (lost.reward, lost.score, lost.done) == (-100.0, -100.0, True)


def test_equal_actions_give_equal_answers_in_any_process(pool, world):
    actions = ["open door to art studio", "go to art studio", "look around", "look in table", "pick up red paint", "0"]
    first = play(world, PAINT, actions)
    other = SciWorld(pool)
    play(other, PLANT, ["wait"])
    assert play(other, PAINT, actions) == play(world, PAINT, actions) == first
    other.close()


def test_answers_are_those_of_the_package_s_own_wrapper(world, gold_pool, monkeypatch):
    from scienceworld import ScienceWorldEnv

    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UnlockExperimentalVMOptions -XX:hashCode=2")  # fixes the order
    wrapper = ScienceWorldEnv(envStepLimit=100)
    try:
        for item in (0, PLANT, PAINT):
            wrapper.load(*find_item(item))
            actions = ["look around", *Oracle(*find_item(item), gold_pool).actions]
            for action, answer in zip(actions, play(world, item, actions[1:])):
                observation, reward, done, info = wrapper.step(action)
                assert answer.observation == observation
                assert (answer.reward, answer.score, answer.done) == (reward, info["score"], done)
                assert answer.info["moves"] == info["moves"]
            assert answer.score == 100
            assert world.task_description()["task_description"] == wrapper.get_task_description()
    finally:
        wrapper.close()


@pytest.mark.parametrize("task", [task for task in TASKS if task != "change-the-state-of-matter-of"])
def test_gold_paths_score_a_hundred(world, gold_pool, task):
    item = next(first for (first, _), name in BORDERS.items() if name == task)
    oracle, last = Oracle(*find_item(item), gold_pool), world.reset(item)
    while not last.done:
        last = world.step(oracle.act(last.observation))
    assert last.score == 100
    assert SERVICE.solved(last)


def test_views_and_a_visual_step_are_json_and_tell_what_their_names_say(world):
    world.reset(0)
    world.step("wait1")
    views = {name: getattr(world, name)() for name in SERVICE.views}
    assert json.loads(json.dumps(views)) == views
    assert "open OBJ" in views["action_hint"]["possible_actions"]
    assert "picture" in views["action_hint"]["possible_objects"]
    assert "focus on substance" in views["goals"]["goals"]
    assert views["task_description"] == {"task_description": BOIL_WATER}
    assert views["object_tree"]["object_tree"]["name"] == "universe"
    state = views["state"]
    assert (state["observation"], state["current_moves"]) == (HALLWAY, 2)
    assert state["inventory"] == "In your inventory, you see:\n\tan orange\n"
    world.reset(0)
    answer = world.step_visual("Thought: It is shut.\n\nAction: open door to kitchen</s>")
    assert (answer.observation, answer.score, answer.done) == ("The door is now open.", 0.0, False)
    assert json.loads(json.dumps(answer.info)) == answer.info
    assert answer.info["moves"] == 1
    assert "go to kitchen" in answer.info["info"]["valid"]
    assert answer.info["object_tree"]["name"] == "universe"


def test_any_text_is_answered(world):
    world.reset(0)
    for action in ("\ud800", "\n", "open door\r\nx", "\x00", "é😀", "'\"\\", "a" * 100_000, "-1", "9" * 30):
        answer = world.step(action)
        assert (answer.observation, answer.info["moves"]) == (UNKNOWN, 0)


def test_making_an_instance_starts_nothing_and_closing_it_keeps_the_process(pool):
    before = java_children()
    one = SciWorld(Pool())
    assert java_children() == before
    one.close()
    with pytest.raises(RuntimeError, match="call reset first"):
        one.step("look around")
    with pytest.raises(ItemError):
        one.reset(ITEMS)
    assert java_children() == before
    lent = [pool.take() for _ in range(2)]
    for simulator in lent:
        pool.give(simulator)
    again = [pool.take() for _ in range(2)]
    assert set(again) == set(lent)
    for simulator in again:
        pool.give(simulator)


def test_a_simulator_that_failed_costs_its_episode_and_is_not_lent_again(pool):
    world = SciWorld(pool)
    world.reset(0)
    lost = world._simulator
    psutil.Process(lost._process.pid).kill()
    with pytest.raises(RuntimeError, match="reset"):
        world.step("look around")
    with pytest.raises(RuntimeError, match="has ended; call reset"):
        world.step("look around")
    assert world.reset(0).observation.startswith("This room")
    failed = world._simulator
    assert failed._process.pid != lost._process.pid
    with pytest.raises(RuntimeError, match="failed in noSuchMethod"):
        failed.ask("noSuchMethod")
    world.close()
    assert not psutil.pid_exists(failed._process.pid)


def test_a_closed_pool_leaves_no_process_and_lends_none():
    before = java_children()
    pool = Pool(idle=1)
    idle, lent = pool.take(), pool.take()
    pool.give(idle)
    assert java_children() - before == {idle._process.pid, lent._process.pid}
    pool.close()
    assert java_children() == before
    pool.give(lent)
    with pytest.raises(RuntimeError, match="closed"):
        pool.take()
    with pytest.raises(RuntimeError, match=r"ended with status 1 .*heap"):
        Simulator(heap=0)


SCRIPT = """
import sys
from agentrl_jax.services.environments.sciworld.pool import Pool
pool = Pool()
one = pool.take()
print(one._process.pid, flush=True)
sys.stdin.readline()
"""


def test_no_java_is_left_when_python_ends():
    ends = (None, signal.SIGTERM, signal.SIGKILL)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    pythons = [subprocess.Popen([sys.executable, "-c", SCRIPT], **pipes) for _ in ends]
    javas = [psutil.Process(int(python.stdout.readline())) for python in pythons]
    for python, end in zip(pythons, ends):
        if end is not None:
            python.send_signal(end)
        python.communicate("\n" if end is None else None, timeout=30)
        assert python.returncode == -(end or 0)
    left = psutil.wait_procs(javas, timeout=30)[1]
    assert all(java.status() == psutil.STATUS_ZOMBIE for java in left)  # if no process reaps orphans
