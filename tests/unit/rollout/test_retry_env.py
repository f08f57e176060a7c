import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from prompt_texts import given_responses, message_text, prefix_text
from toy_rollouts import assert_same, differing

from agentrl_jax.rollout import engine
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.retry import ATTEMPT, RetryEnv
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.rollout.recording import empty_response
from agentrl_jax.rollout.trajectory import TRUNCATIONS
from agentrl_jax.setup import build, build_inputs
from agentrl_jax.text.grammar import ParsedResponse
from agentrl_jax.text.styles import FEEDBACK

KEY = jax.random.key(7)
TURNS, ATTEMPTS, ACTIONS, LENGTH = 2, 3, 2, 5
SOLVE, SPEND, STAY, TALK = "Up||Up</answer><|end|>", "Down||Down</answer><|end|>", "Down</answer><|end|>", "Down<|end|>"


class SureLadder(toy_agent.Ladder):
    """Nobody slips, and the goal is rung 2."""

    def reset_env(self, key, params):
        goal, state = super().reset_env(key, params)
        return 0 * goal + 2, state.replace(goal=0 * goal + 2)

    def step_env(self, key, state, action, params):
        height = jnp.maximum(state.height + jnp.where(action == 0, 1, -1), 0)
        after = state.replace(height=height, time=state.time + 1, terminated=height == state.goal)
        info = {"success": after.terminated, "height": height}
        return height, after, jnp.float32(-0.5), after.terminated, info


SCRIPTS = {
    "solved at once": [[SOLVE]],
    "solved by the second attempt": [[STAY, STAY], [SOLVE]],
    "solved by the last turn": [[STAY, STAY], [STAY, STAY], [TALK, SOLVE]],
    "never solved": [[STAY, STAY], [STAY, STAY], [STAY, STAY]],
    "short attempts": [[SPEND], [SPEND], [TALK, TALK]],
}
"""The responses of each attempt of an episode."""
SAID = [[text for attempt in attempts for text in attempt] for attempts in SCRIPTS.values()]


def retry_env(tasks, attempts, turns=TURNS, prompt=toy_agent.CONFIG.prompt):
    tasks = tuple(
        build.make_task(task.name, task.env, task.env_params, prompt, toy_agent.TOKENIZER, feedback=FEEDBACK)
        for task in tasks
    )
    return RetryEnv(CompiledEnv(tasks), turns, attempts)


def played(policy, env, config, ids, settings, responses=None):
    def play(params, key, ids, settings, responses):
        return engine.rollout(params, toy_agent.MODEL.decoder, env, config, key, ids, settings, responses=responses)[0]

    return jax.tree.map(np.asarray, jax.jit(play)(policy, KEY, ids, settings, responses))


@functools.cache
def sure():
    prompt = toy_agent.CONFIG.prompt.replace(style="ragen", max_turns=TURNS, max_actions=ACTIONS)
    env = SureLadder(100)
    task = build.make_task("Sure", env, env.default_params, prompt, toy_agent.TOKENIZER)
    return retry_env((task,), ATTEMPTS, prompt=prompt)


def play_scripts(policy, context, **changes):
    count, env = len(SCRIPTS), sure()
    ids = build_inputs.episode_ids(
        group=np.arange(count), member=0 * np.arange(count), task=[0] * count, level=[-1] * count
    )
    settings = toy_agent.settings(
        count, horizon=jnp.int32(TURNS * ATTEMPTS), max_actions=jnp.int32(ACTIONS), env_params=env.env_params
    )
    config = toy_agent.engine_config(max_turns=TURNS * ATTEMPTS, max_response_tokens=LENGTH, context=context, **changes)
    return played(policy, env, config, ids, settings, given_responses(toy_agent.TOKENIZER, SAID, LENGTH))


def near_levels(count):
    ids = toy_agent.mixed_ids(256, 1)
    state, _ = jax.jit(toy_agent.BATCHED_ENV.reset)(KEY, toy_agent.settings(256), ids)
    near = np.flatnonzero(np.where(ids.task == 0, state.envs[0].goal, state.envs[1].goal) == 1)
    return toy_agent.rows(ids, near[:count])


def check_texts(trajectory, context):
    """All that the policy reads, by string joins; heights stay 0, so that every observation is the same."""
    (task,), rows = sure().tasks, pack_trajectories(trajectory, context)
    for row, attempts in enumerate(SCRIPTS.values()):
        if context == FULL:
            found = toy_agent.TOKENIZER.decode(rows.tokens[row, : rows.length[row]].tolist(), skip_special=False)
        else:
            turns = [row * TURNS * ATTEMPTS + turn for turn in range(len(SAID[row]))]
            lines = [rows.tokens[turn, : rows.length[turn]].tolist() for turn in turns]
            found = "".join(toy_agent.TOKENIZER.decode(line, skip_special=False) for line in lines)
        text, reward, prefix = "", 0.0, prefix_text(task.prompt, toy_agent.TOKENIZER)
        for number, responses in enumerate(attempts):
            left = ACTIONS
            for turn, response in enumerate(responses):
                first = context == SINGLE_TURN or number == turn == 0
                text += prefix if first else ""
                now = {"turn": turn, "actions_left": left, "reward": reward, "first": first}
                again = number > 0 and turn == 0
                text += message_text(task.prompt, "0 of 2", **now, response_ended=True, retry=again) + response
                taken = {SOLVE: 2, SPEND: 2, STAY: 1, TALK: 0}[response]
                left, reward = left - taken, -0.5 * taken
        assert found == text
        assert found.count(FEEDBACK) == len(attempts) - 1


@pytest.fixture(scope="module")
def scripted(policy):
    return play_scripts(policy, FULL, slots=2)


def attempts_of(trajectory, row):
    return trajectory.turn.info[ATTEMPT][row, : trajectory.num_turns[row]].astype(int).tolist()


def test_a_failed_attempt_is_repeated_until_one_succeeds(scripted):
    check_texts(scripted, FULL)
    assert scripted.num_turns.tolist() == list(map(len, SAID))
    for row, attempts in enumerate(SCRIPTS.values()):
        assert attempts_of(scripted, row) == [n for n, turns in enumerate(attempts) for _ in turns]
    assert scripted.success.tolist() == [True, True, True, False, False]
    # Success is that of the last turn alone: an attempt that is repeated has failed.
    assert scripted.turn.success.sum() == 3
    # At the engine's horizon, and before it.
    assert scripted.truncation.tolist() == [0, 0, 0] + [1 + TRUNCATIONS.index("actions")] * 2


def test_every_attempt_begins_on_the_same_level(scripted):
    for row in range(len(SCRIPTS)):
        numbers = attempts_of(scripted, row)
        firsts = [numbers.index(number) for number in sorted(set(numbers))]
        hashes = scripted.turn.state_hash[row, firsts]
        np.testing.assert_array_equal(hashes, np.broadcast_to(hashes[0], hashes.shape))


def test_limits_count_within_an_attempt(scripted):
    actions = scripted.turn.actions
    row = list(SCRIPTS).index("solved by the last turn")
    assert (actions[row] >= 0).sum(axis=1).tolist() == [1, 1, 1, 1, 0, 2]
    row = list(SCRIPTS).index("short attempts")
    assert (actions[row] >= 0).sum(axis=1).tolist() == [2, 2, 0, 0, 0, 0]


def test_an_attempt_has_the_noise_of_its_number(monkeypatch):
    env, settings, ids = toy_agent.BATCHED_ENV, toy_agent.settings(4), toy_agent.mixed_ids(4, 1)
    monkeypatch.setattr(CompiledEnv, "_messages", lambda *_: None)
    start, _ = env.reset(KEY, settings, ids)
    every, nothing = jnp.ones(4, bool), jnp.zeros(4)
    second, _ = env.restart_level(settings, start, start, every, nothing, every)
    third, _ = env.restart_level(settings, second, start, every, nothing, every)
    keys = {tuple(jax.random.key_data(state.noise_key).ravel().tolist()) for state in (start, second, third)}
    assert len(keys) == 3
    chex.assert_trees_all_equal(second.envs, start.envs)


@pytest.mark.nightly
def test_a_full_context_ends_the_attempts(policy):
    limit = int(sure().prefix_length[0]) + 3 * (sure().observation_tokens + LENGTH)
    trajectory, whole = play_scripts(policy, FULL, context_tokens=limit), play_scripts(policy, FULL)
    full = trajectory.truncation == 1 + TRUNCATIONS.index("context")
    assert full.tolist() == [False, False, True, True, False]
    assert trajectory.success.tolist() == [True, True, False, False, False]
    assert set(trajectory.num_turns[full].tolist()) <= {3, 4}
    np.testing.assert_array_equal(trajectory.num_turns[~full], whole.num_turns[~full])


@pytest.mark.nightly
def test_one_attempt_is_the_plain_episode(compiled, policy):
    ids, settings = near_levels(16), toy_agent.settings(16, horizon=jnp.int32(toy_agent.TURNS))
    env = RetryEnv(toy_agent.BATCHED_ENV, toy_agent.TURNS, 1)
    once = played(policy, env, toy_agent.engine_config(), ids, settings)
    plain, _ = compiled(toy_agent.engine_config())(policy, KEY, ids, settings)
    assert not once.turn.info.pop("attempt").any()
    assert differing(once, plain) == []


@pytest.mark.nightly
def test_a_retry_depends_neither_on_the_batch_nor_on_slots(policy):
    turns, ids = 2 * toy_agent.TURNS, near_levels(16)
    env = retry_env(toy_agent.BATCHED_ENV.tasks, 2, toy_agent.TURNS)
    settings = toy_agent.settings(16, horizon=jnp.int32(turns))
    trajectory = played(policy, env, toy_agent.engine_config(max_turns=turns), ids, settings)
    rows = np.random.default_rng(0).permutation(16)[:12]
    config, some = toy_agent.engine_config(max_turns=turns, slots=4), toy_agent.rows(ids, rows)
    few = played(policy, env, config, some, settings.replace(temperature=settings.temperature[:12]))
    assert_same(few, toy_agent.rows(trajectory, rows))


@pytest.mark.nightly
def test_single_turns_read_the_feedback(policy):
    check_texts(play_scripts(policy, SINGLE_TURN), SINGLE_TURN)


@pytest.mark.nightly
def test_attempts_have_other_noise():
    env, settings, count = retry_env(toy_agent.BATCHED_ENV.tasks, 3, turns=1), toy_agent.settings(64), 64
    ids = build_inputs.episode_ids(group=np.arange(count), member=[0] * count, task=[1] * count, level=[-1] * count)
    up, every = jnp.zeros((count, 2), jnp.int32), jnp.ones(count, bool)
    parsed = ParsedResponse(up, num_valid=jnp.full(count, 2), num_parsed=jnp.full(count, 2), format_ok=every)
    response = empty_response(count, 1)

    @jax.jit
    def heights(key):
        plain, _ = toy_agent.BATCHED_ENV.reset(key, settings, ids)
        _, result, _ = toy_agent.BATCHED_ENV.step(settings, plain, response, parsed, every)
        state, _ = env.reset(key, settings, ids)
        found = []
        for _ in range(3):
            state, news, _ = env.step(settings, state, response, parsed, ~state.solved)
            found.append(news.info["height"])
        return result.info["height"], jnp.stack(found), state.solved

    plain, found, solved = jax.tree.map(np.asarray, heights(KEY))
    np.testing.assert_array_equal(found[0], plain)
    first, second, third = found[:, ~solved]
    assert first.shape[0] > 20
    for a, b in ((first, second), (first, third), (second, third)):
        assert 0.2 < np.mean(a != b) < 0.9
