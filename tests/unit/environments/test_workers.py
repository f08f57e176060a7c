import os
import signal
import subprocess
import sys
import time

import pytest
from refusing import refusal

from agentrl_jax.environments import HostStep
from agentrl_jax.environments.pool import open_pool
from agentrl_jax.environments.threads import Failed, Hung

KINDS = {"threads": 0, "processes": 1}
DONE = HostStep("at 3", 1.0, terminated=True, success=True, info={"number": 3.0})


@pytest.fixture
def opened():
    pools = []

    def pool(kind, fault="", *, seconds=20.0, name="Count", **options):
        number = KINDS.get(kind, kind)
        pools.append(open_pool(f"python_worlds:{name}", {"fault": fault, **options}, processes=number, seconds=seconds))
        return pools[-1]

    yield pool
    for each in pools:
        each.close()


def play(env, seed=0, turns=3):
    return [env.reset(seed), *(env.step("up", ["up"]) for _ in range(turns))]


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_is_played_with_plain_values(opened, kind):
    env = opened(kind).open()
    first, *steps = play(env, 203)
    assert first == "level 3, at 0"
    assert steps[-1] == DONE
    assert {type(steps[-1].reward), type(steps[-1].info["number"])} == {float}
    assert type(steps[-1].success) is bool
    assert env.plan() == []
    assert env.content(203) == "start 3"
    assert play(env, 203)[1:] == steps, "a reset clears what was before"


WRONG = {
    "raise": "RuntimeError: broken [/step]",
    "exit": "SystemExit: 3",
    "nan": "reward is float nan",
    "none": "NoneType None; expected a HostStep",
    "tuple": "write HostStep(observation",
    "surrogate": "half of a surrogate pair",
    "info": "info other; add the names to info_keys",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", WRONG)
def test_a_fault_fails_its_episode_alone(opened, kind, fault):
    pool = opened(kind, fault, above=5)
    bad, good = pool.open(), pool.open()
    bad.reset(6), good.reset(0)
    bad.step("up", ["up"]), good.step("up", ["up"])
    with pytest.raises(Failed) as error:
        bad.step("up", ["up"])
    assert "Count.step" in str(error.value)
    assert WRONG[fault] in str(error.value)
    good.step("up", ["up"])
    assert good.step("up", ["up"]) == DONE


@pytest.mark.parametrize("kind", KINDS)
def test_faults_before_the_first_turn(opened, kind):
    with pytest.raises(Failed, match=r"Count.__init__: RuntimeError: no engine"):
        opened(kind, "init").open()
    with pytest.raises(Failed, match=r"Count.reset returned tuple"):
        opened(kind, "no text").open().reset(0)


@pytest.mark.parametrize(
    "name", ["python_worlds:None_", "no_such_module:Count", "python_worlds:np", "a b:C", "os:path"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_environment_is_refused(kind, name):
    assert name in str(refusal(open_pool, name, {}, processes=KINDS[kind]))


def test_a_hung_thread_is_abandoned(opened):
    pool = opened("threads", "hang", seconds=0.3)
    env = pool.open()
    env.reset(0), env.step("", [])
    with pytest.raises(Hung, match=r"Count.step did not return within 0.3 s"):
        env.step("", [])
    assert pool.abandoned == 1
    assert pool.open().reset(1)


def test_one_thread_is_shared_and_replaced_when_it_hangs(opened):
    pool = opened("threads", "hang", name="Shared", seconds=0.5, above=5)
    one, other = pool.open(), pool.open()
    one.reset(0), other.reset(6)
    before = one.step("", [])
    assert other.step("", []) == before
    with pytest.raises(Hung):
        other.step("", [])
    later = pool.open()
    later.reset(0)
    assert later.step("", []) != before


@pytest.mark.parametrize("fault", ["hang", "die"])
def test_a_process_is_replaced_and_others_go_on(opened, fault):
    pool = opened("processes", fault, seconds=2.0, above=5)
    bad, good = pool.open(), pool.open()
    bad.reset(6), good.reset(0)
    bad.step("up", ["up"]), good.step("up", ["up"])
    with pytest.raises((Failed, Hung)):
        bad.step("up", ["up"])
    good.step("up", ["up"])
    assert good.step("up", ["up"]) == DONE, "played again in another process"
    assert pool.open().reset(1)


def test_a_process_runs_its_environments_on_its_main_thread(opened):
    env = opened("processes", "alarm").open()
    env.reset(0), env.step("", [])
    assert env.step("", []).observation == "MainThread"


TRAINER = """
import sys
from agentrl_jax.environments.pool import open_pool
env = open_pool("python_worlds:Count", {"fault": "child"}, processes=1).open()
env.reset(0), env.step("", [])
print(env.step("", []).observation, flush=True)
sys.stdin.read()
"""


def test_processes_end_with_the_run_however_it_ends():
    words = [sys.executable, "-c", TRAINER]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as trainer:
        assert trainer.stdout is not None
        child = int(trainer.stdout.readline().decode().split()[-1])
        os.kill(child, 0)
        trainer.kill()
        assert trainer.wait() == -signal.SIGKILL
    assert gone(child)


KEEPS_LOCK = """
from agentrl_jax.environments import pool
pool.LOCK_SECONDS = 1.0
env = pool.open_pool("python_worlds:Count", {"fault": "lock"}, seconds=1.0).open()
env.reset(0), env.step("", [])
env.step("", [])
"""


def test_an_environment_that_keeps_pythons_lock_ends_the_run():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", KEEPS_LOCK], capture_output=True, text=True, env=environment)
    assert ended.returncode == -signal.SIGKILL
    assert "Count.step has kept Python's lock" in ended.stderr


def gone(process):
    for _ in range(100):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        with open(f"/proc/{process}/stat") as file:
            if file.read().split()[2] == "Z":
                return True
        time.sleep(0.1)
    return False
