import collections
import dataclasses
import threading

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_stage import BUDGET, EPISODES, GRAMMAR, IDS, KEY, SETTINGS, TOKENIZER, TURNS, Courier, Stage, policy
from prompt_texts import message_text, prefix_text
from toy_agent import text_of

from agentrl_jax.errors import BadValue
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout import rng
from agentrl_jax.rollout.envs import host
from agentrl_jax.text.reference import parse_response

SLOTS = 8


@pytest.fixture(scope="module")
def stage():
    return Stage()


@pytest.fixture(scope="module")
def program(stage):
    return stage.program(make_mesh(1), slots=SLOTS)


@pytest.fixture(scope="module")
def played(stage, program):
    return stage.run(program)


def responses_of(trajectory, row):
    return [
        TOKENIZER.decode_bytes(trajectory.response.tokens[row, t, : trajectory.response.length[row, t]].tolist())
        for t in range(trajectory.num_turns[row])
    ]


def test_a_trajectory_is_what_plain_python_plays(stage, played):
    trajectory, _ = played
    kinds = collections.Counter()
    drawn = np.asarray(jax.random.key_data(rng.level_key(KEY, IDS)))[:, 1]
    assert not trajectory.turn.failed.any()
    assert not trajectory.overflow.any()
    for row in range(EPISODES):
        env = Courier()
        level = int(IDS.level[row])
        seen = env.reset(level if level >= 0 else int(drawn[row]))
        prefix = text_of(trajectory.prompt[row], trajectory.prompt_length[row])
        assert prefix == prefix_text(stage.task.prompt, TOKENIZER)
        used, reward, ended, over = 0, 0.0, False, False
        for t, data in enumerate(responses_of(trajectory, row)):
            assert not over
            options = {"turn": t, "actions_left": BUDGET - used, "first": t == 0, "response_ended": ended}
            expected = message_text(stage.task.prompt, seen, reward=float(np.float32(reward)), **options)
            assert text_of(trajectory.observation[row, t], trajectory.observation_length[row, t]) == expected
            response = parse_response(data, GRAMMAR)
            executed = list(response.actions)[: BUDGET - used]
            step = env.step("<answer>" + data.decode("utf-8", "replace"), [Courier.actions[a] for a in executed])
            used += len(executed)
            turn = jax.tree.map(lambda x, row=row, t=t: x[row, t], trajectory.turn)
            assert turn.actions.tolist() == executed + [-1] * (2 - len(executed))
            assert turn.reward == np.float32(step.reward)
            assert turn.valid == (response.num_valid > 0)
            assert turn.format_error == (response.num_valid == 0 or response.num_valid < response.num_parsed)
            assert turn.terminated == step.terminated
            assert turn.truncated == (not step.terminated and used >= BUDGET)
            assert turn.success == step.success
            assert turn.info["delivered"] == np.float32(step.info.get("delivered", 0.0))
            over = step.terminated or used >= BUDGET
            seen, reward, ended = step.observation, step.reward, bool(trajectory.response.ended[row, t])
            kinds.update({"valid": turn.valid, "error": turn.format_error, "end": turn.terminated})
            kinds.update({"cut": turn.truncated, "success": turn.success})
        assert over or trajectory.num_turns[row] == TURNS
    assert min(kinds.values()) > 0, kinds


def test_one_callback_a_turn_and_one_environment_an_episode(stage, program, played):
    trajectory, calls = played
    left, waiting = trajectory.num_turns[:SLOTS].tolist(), trajectory.num_turns[SLOTS:].tolist()
    expected = collections.Counter(reset=1, made=EPISODES)
    while left:
        expected["step"] += 1
        left = [turns - 1 for turns in left if turns > 1]
        free = SLOTS - len(left) if waiting else 0
        left, waiting = left + waiting[:free], waiting[free:]
        expected["reset"] += free > 0
    assert calls == expected
    assert len(stage.batched_env.host_episodes._episodes) == 0
    text = program.lower(policy(), IDS, SETTINGS).as_text()
    # One call for the first reset, one for those of refilled slots, and one for steps.
    assert text.count("stablehlo.custom_call @xla_ffi_python_cpu_callback") == 3


def test_a_row_that_breaks_fails_alone(stage, program, played):
    target = {row: responses_of(played[0], row)[0] for row in range(EPISODES)}
    assert target[2] != target[3]
    release = threading.Event()

    class Troubled(Courier):
        def reset(self, seed):
            self.seed, self.asked = seed, 0
            if seed == 0:
                raise RuntimeError("no such shop")
            return super().reset(seed)

        def step(self, response, actions):
            step = super().step(response, actions)
            self.asked += 1
            data = response.removeprefix("<answer>").encode()
            if self.seed == 1 and self.asked == 1 and data == target[2]:  # only one member of the group
                raise SystemExit("the shop has closed")
            if self.seed == 2:
                release.wait()
            if self.seed == 3:
                return dataclasses.replace(step, reward=float("nan"))
            if self.seed == 4:
                return dataclasses.replace(step, info={"weather": 1.0})
            return step

    trajectory, _ = stage.run(program, Troubled)
    release.set()
    rows = np.array([0, 1, 2, 4, 5, 6, 7, 8, 9])
    assert np.flatnonzero(trajectory.turn.failed.any(axis=1)).tolist() == rows.tolist()
    assert trajectory.turn.failed[rows, 0].all()
    assert (trajectory.num_turns[rows] == 1).all()
    assert (trajectory.turn.reward[rows] == 0).all()
    others = np.setdiff1d(np.arange(EPISODES), rows)
    chosen = (jax.tree.map(lambda x: x[others], t) for t in (trajectory, played[0]))
    chex.assert_trees_all_equal(*chosen)
    assert len(stage.batched_env.host_episodes._episodes) == 0


def test_large_arguments_are_transferred_in_parts(monkeypatch):
    """A device may wait forever for an argument above 100 KiB."""
    rows, sizes, whole = 64, [], []

    def callback(on_host, shapes, *parts, ordered):
        sizes.extend(x.size * x.dtype.itemsize for x in parts)
        return on_host(*parts)

    monkeypatch.setattr(host, "io_callback", callback)
    big = jnp.arange(rows * host.PART_BYTES // 32).reshape(rows, -1)
    host._call(lambda *args: whole.extend(args), None, big, jnp.ones(rows))
    np.testing.assert_array_equal(whole[0], big)
    np.testing.assert_array_equal(whole[1], np.ones(rows))
    assert max(sizes) <= host.PART_BYTES


@pytest.mark.parametrize(("key", "value"), [("deadline", 0.0), ("workers", 0)])
def test_limits_are_checked(stage, key, value):
    with pytest.raises(BadValue, match=key):
        host.HostEnv((stage.task,), TOKENIZER, **{"deadline": 1.0, key: value})
