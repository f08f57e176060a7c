"""Resampled groups in the program of a run, on one device and on two."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from same_bits import assert_same
from toy_agent import GROUP_SIZE
from toy_rollouts import GROUPED, KEY

from agentrl_jax.learner.measures import groups_of, measure
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.returns import Penalties, penalized_returns
from agentrl_jax.setup.programs import Programs, played_metrics, total_stats

GROUPS, ROUNDS, PENALTIES = 16, 3, Penalties(-0.1)
NAMES = ("short", "long")
# One turn at a low temperature, so that members of a group often act the same.
SETTINGS = dataclasses.replace(
    toy_agent.settings(64), horizon=jnp.int32(1), temperature=jnp.full(64, 0.3), format_penalty=jnp.float32(-0.1)
)


def spread(trajectory):
    returns = np.asarray(trajectory.returns - 0.1 * jnp.sum(trajectory.turn.format_error, axis=1), np.float64)
    return np.ptp(returns.reshape(-1, GROUP_SIZE), axis=1) > 1e-6


def numbered(ids, number):
    return ids.replace(group=ids.group + number * GROUPS)


@pytest.fixture(scope="module")
def by_hand(compiled, policy, batch):
    """Plays three rounds one by one, and finds in plain Python which group of which round ends up at which index."""
    program = compiled(GROUPED)
    ids = batch[0]
    rounds = [program(policy, KEY, numbered(ids, number), SETTINGS)[0] for number in range(ROUNDS)]
    task = np.asarray(ids.task)[::GROUP_SIZE]
    places = [(0, place) for place in range(GROUPS)]
    filled = spread(rounds[0]).tolist()
    played = 1
    for number in range(1, ROUNDS):
        if all(filled):
            break
        played += 1
        for group in np.flatnonzero(spread(rounds[number])):
            empty = [place for place in range(GROUPS) if not filled[place] and task[place] == task[group]]
            if empty:
                places[empty[0]], filled[empty[0]] = (number, group), True
    parts = [toy_agent.rows(rounds[n], np.arange(GROUP_SIZE) + g * GROUP_SIZE) for n, g in places]
    expected = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return expected, rounds[:played], filled


@pytest.fixture(scope="module")
def play():
    """The program of several rounds."""
    programs = Programs(make_mesh(1))
    return programs.rollout("rollout", toy_agent.MODEL, toy_agent.BATCHED_ENV, GROUPED, rounds=ROUNDS, task_names=NAMES)


def test_places_are_filled_as_by_hand(policy, batch, by_hand, play):
    expected, rounds, filled = by_hand
    assert 0 < sum(spread(rounds[0])) < GROUPS < GROUPS + sum(filled)
    trajectory, stats = play({"policy": policy}, KEY, batch[0], SETTINGS)
    assert_same(trajectory, expected)
    np.testing.assert_array_equal(trajectory.ids.group, expected.ids.group)
    np.testing.assert_array_equal(trajectory.ids.task, batch[0].task)
    # Discarded groups count too.
    counters = total_stats(stats)
    assert counters["rounds"] == len(rounds)
    assert counters["episodes"] == 64 * len(rounds)
    assert counters["solved"] == sum(int(np.sum(r.success)) for r in rounds)
    assert counters["environment_steps"] == sum(int(np.sum(np.asarray(r.turn.actions) >= 0)) for r in rounds)
    assert counters["sampled_tokens"] == sum(int(np.sum(r.response.length)) for r in rounds)


def all_of(rounds):
    """Metrics of one trajectory with the episodes of all rounds."""
    everything = jax.tree.map(lambda *x: jnp.concatenate(x), *rounds)
    returns = penalized_returns(everything, PENALTIES)
    means = measure(everything, groups_of(everything, returns, GROUP_SIZE), NAMES, PENALTIES)
    return {name: float(mean.value) for name, mean in means.items()}


def test_metrics_speak_of_all_that_was_played(policy, batch, by_hand, play):
    expected, rounds, _ = by_hand
    _, stats = play({"policy": policy}, KEY, batch[0], SETTINGS)
    found, known, kept = played_metrics(stats), all_of(rounds), all_of([expected])
    assert found == pytest.approx(known, abs=1e-5)
    assert found["train/long/episodes"] == sum(np.sum(r.ids.task == toy_agent.LONG) for r in rounds)
    for name in ("train/return", "rollout/in_group_std", "rollout/zero_std_share"):
        assert abs(found[name] - kept[name]) > 0.01, name


def test_an_overlong_penalty_makes_a_spread(policy, batch, play):
    """Groups are judged by the learner's returns, so members that differ only in length do vary."""
    ids = batch[0]
    _, stats = play({"policy": policy}, KEY, ids, SETTINGS)
    long = SETTINGS.replace(overlong_buffer=jnp.float32(1.0), overlong_penalty=jnp.float32(0.5))
    trajectory, punished = play({"policy": policy}, KEY, ids, long)
    length = np.asarray(trajectory.response.length, np.float64)
    paid = np.where(trajectory.turn_mask, 0.5 * length / toy_agent.MAX_RESPONSE_TOKENS, 0.0).sum(axis=1)
    returns = np.asarray(trajectory.returns - 0.1 * jnp.sum(trajectory.turn.format_error, axis=1), np.float64) - paid
    varied = np.ptp(returns.reshape(-1, GROUP_SIZE), axis=1) > 1e-6
    assert varied.sum() > spread(trajectory).sum()
    before, found = played_metrics(stats), played_metrics(punished)
    assert found["rollout/zero_std_share"] < before["rollout/zero_std_share"]
    assert int(jnp.sum(punished.rounds)) < int(jnp.sum(stats.rounds)) or varied.all()
    assert found["train/return"] < found["train/raw_return"] - 0.01


def test_metrics_speak_of_all_that_every_device_played(policy, batch):
    programs = Programs(make_mesh(2))
    play = programs.rollout("rollout", toy_agent.MODEL, toy_agent.BATCHED_ENV, GROUPED, rounds=ROUNDS, task_names=NAMES)
    _, stats = play({"policy": policy}, KEY, batch[0], SETTINGS)
    counters, found = total_stats(stats), played_metrics(stats)
    assert counters["rounds"] > 2
    assert found["train/success"] == pytest.approx(counters["solved"] / counters["episodes"], abs=1e-6)
    assert found["train/short/episodes"] + found["train/long/episodes"] == counters["episodes"]
