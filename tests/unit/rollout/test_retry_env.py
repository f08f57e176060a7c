"""Retries with scripted and sampled responses: when an attempt is repeated, on which level, and what is read."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from prompt_texts import message_text, prefix_text
from retry_scripts import (
    ACTIONS,
    ATTEMPTS,
    KEY,
    SAID,
    SCRIPTS,
    SOLVE,
    SPEND,
    STAY,
    TALK,
    TURNS,
    near_levels,
    play_scripts,
    played,
    retry_env,
    sure,
)

from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.rollout.recording import empty_response
from agentrl_jax.rollout.trajectory import TRUNCATIONS
from agentrl_jax.setup import build
from agentrl_jax.text.grammar import ParsedResponse
from agentrl_jax.text.styles import FEEDBACK


@pytest.fixture(scope="module")
def scripted(policy):
    """With the whole conversation, and with a context for each turn."""
    return {context: play_scripts(policy, context) for context in ("full", "single_turn")}


def attempts_of(trajectory, row):
    """The number of the attempt of each played turn."""
    return trajectory.turn.info["attempt"][row, : trajectory.num_turns[row]].astype(int).tolist()


def test_a_failed_attempt_is_repeated_until_one_succeeds(scripted):
    for trajectory in scripted.values():
        assert trajectory.num_turns.tolist() == list(map(len, SAID))
        for row, attempts in enumerate(SCRIPTS.values()):
            assert attempts_of(trajectory, row) == [n for n, turns in enumerate(attempts) for _ in turns]
        assert trajectory.success.tolist() == [True, True, True, False, False]
        # Success is that of the last turn alone: an attempt that is repeated has failed.
        assert trajectory.turn.success.sum() == 3
        # At the engine's horizon, and before it.
        assert trajectory.truncation.tolist() == [0, 0, 0] + [1 + TRUNCATIONS.index("actions")] * 2


def test_every_attempt_begins_on_the_same_level(scripted):
    for trajectory in scripted.values():
        for row in range(len(SCRIPTS)):
            numbers = attempts_of(trajectory, row)
            firsts = [numbers.index(number) for number in sorted(set(numbers))]
            hashes = trajectory.turn.state_hash[row, firsts]
            np.testing.assert_array_equal(hashes, np.broadcast_to(hashes[0], hashes.shape))


def test_limits_count_within_an_attempt(scripted):
    """The third response of an episode has its actions, although two attempts of two actions came before."""
    actions = scripted["full"].turn.actions
    row = list(SCRIPTS).index("solved by the last turn")
    assert (actions[row] >= 0).sum(axis=1).tolist() == [1, 1, 1, 1, 0, 2]
    row = list(SCRIPTS).index("short attempts")
    assert (actions[row] >= 0).sum(axis=1).tolist() == [2, 2, 0, 0, 0, 0]


@pytest.mark.parametrize("context", ["full", "single_turn"])
def test_the_feedback_is_read_once_at_the_beginning_of_a_retry(scripted, context):
    """All that the policy reads, by string joins; heights stay 0, so that every observation is the same."""
    (task,), rows = sure().tasks, pack_trajectories(scripted[context], context)
    for row, attempts in enumerate(SCRIPTS.values()):
        if context == "full":
            found = toy_agent.TOKENIZER.decode(rows.tokens[row, : rows.length[row]].tolist(), skip_special=False)
        else:
            turns = [row * TURNS * ATTEMPTS + turn for turn in range(len(SAID[row]))]
            lines = [rows.tokens[turn, : rows.length[turn]].tolist() for turn in turns]
            found = "".join(toy_agent.TOKENIZER.decode(line, skip_special=False) for line in lines)
        text, reward, prefix = "", 0.0, prefix_text(task.prompt, toy_agent.TOKENIZER)
        for number, responses in enumerate(attempts):
            left = ACTIONS
            for turn, response in enumerate(responses):
                first = context == "single_turn" or number == turn == 0
                text += prefix if first else ""
                text += message_text(
                    task.prompt,
                    "0 of 2",
                    turn=turn,
                    actions_left=left,
                    reward=reward,
                    first=first,
                    response_ended=True,
                    retry=number > 0 and turn == 0,
                )
                text += response
                taken = {SOLVE: 2, SPEND: 2, STAY: 1, TALK: 0}[response]
                left, reward = left - taken, -0.5 * taken
        assert found == text
        assert found.count(FEEDBACK) == len(attempts) - 1


@pytest.fixture(scope="module")
def retried(policy):
    """8 sampled episodes with a retry, in slots that are refilled: (ids, settings, environment, trajectory)."""
    turns, ids = toy_agent.TURNS, near_levels(8)
    env = retry_env(toy_agent.BATCHED_ENV.tasks, 2, turns)
    settings = toy_agent.settings(8, horizon=jnp.int32(2 * turns))
    return ids, settings, env, played(policy, env, toy_agent.engine_config(max_turns=2 * turns, slots=4), ids, settings)


def test_the_first_attempt_is_the_plain_episode(compiled, policy, retried):
    ids, settings, _, trajectory = retried
    program = compiled(toy_agent.engine_config(), whole_state=True)
    plain = program(policy, KEY, ids, settings).trajectory
    first = (trajectory.turn.info["attempt"] == 0) & np.asarray(trajectory.turn_mask)
    np.testing.assert_array_equal(first.sum(axis=1), plain.num_turns)
    for turn in range(toy_agent.TURNS):
        shown = first[:, turn]
        for name in ("tokens", "length"):
            mine, theirs = getattr(trajectory.response, name), np.asarray(getattr(plain.response, name))
            np.testing.assert_array_equal(mine[shown, turn], theirs[shown, turn])
    again = trajectory.turn.info["attempt"].max(axis=1) > 0
    np.testing.assert_array_equal(again, ~np.asarray(plain.success))
    assert 0 < again.sum() < 8


def test_attempts_have_other_noise(retried):
    """Which upward actions slip differs between attempts; in the first it is what it is without retries."""
    _, settings, env, _ = retried
    env = dataclasses.replace(env, turns=1, attempts=3)
    count = 64
    ids = build.episode_ids(group=np.arange(count), member=[0] * count, task=[1] * count, level=[-1] * count)
    up, every = jnp.zeros((count, 2), jnp.int32), jnp.ones(count, bool)
    parsed = ParsedResponse(up, num_valid=jnp.full(count, 2), num_parsed=jnp.full(count, 2), format_ok=every)
    response = empty_response(count, 1)

    @jax.jit
    def heights(key):
        plain, _ = toy_agent.BATCHED_ENV.reset(key, settings, ids)
        _, result, _ = toy_agent.BATCHED_ENV.step(settings, plain, response, parsed, every, new_context=False)
        state, _ = env.reset(key, settings, ids)
        found = []
        for _ in range(3):
            state, news, _ = env.step(settings, state, response, parsed, ~state.solved, new_context=False)
            found.append(news.info["height"])
        return result.info["height"], jnp.stack(found), state.solved

    plain, found, solved = jax.tree.map(np.asarray, heights(KEY))
    np.testing.assert_array_equal(found[0], plain)
    first, second, third = found[:, ~solved]
    assert first.shape[0] > 20
    for a, b in ((first, second), (first, third), (second, third)):
        assert 0.2 < np.mean(a != b) < 0.9
