"""Retries with scripted and sampled responses: when an attempt is repeated, on which level, and what is read."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from prompt_texts import message_text, prefix_text
from same_bits import assert_same, differing

from agentrl_jax.rollout import engine
from agentrl_jax.rollout.envs.retry import RetryEnv
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.rollout.recording import empty_response
from agentrl_jax.rollout.trajectory import TRUNCATIONS, Response
from agentrl_jax.setup import build
from agentrl_jax.text.grammar import ParsedResponse
from agentrl_jax.text.styles import FEEDBACK

KEY = jax.random.key(7)
TURNS, ATTEMPTS, ACTIONS, LENGTH = 2, 3, 2, 5
SOLVE, SPEND, STAY, TALK = "Up||Up</answer><|end|>", "Down||Down</answer><|end|>", "Down</answer><|end|>", "Down<|end|>"
"""Both steps to the goal, both actions of an attempt, one of them, and no action."""


class SureLadder(toy_agent.Ladder):
    """A ladder of which nobody slips, with its goal at rung 2."""

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
"""The attempts of each episode with the responses of each."""
SAID = [[text for attempt in attempts for text in attempt] for attempts in SCRIPTS.values()]
"""The responses of each episode, one after the other."""


def retry_env(tasks, attempts, turns=TURNS, prompt=toy_agent.CONFIG.prompt):
    """`RetryEnv` of given tasks, with feedback."""
    tasks = tuple(
        build.make_task(task.name, task.env, task.env_params, prompt, toy_agent.TOKENIZER, feedback=FEEDBACK)
        for task in tasks
    )
    return RetryEnv(tasks=tasks, turns=turns, attempts=attempts)


def played(policy, env, config, ids, settings, responses=None):
    """The trajectory of one rollout, compiled for this call."""

    def play(params, key, ids, settings, responses):
        return engine.rollout(params, toy_agent.MODEL.decoder, env, config, key, ids, settings, responses=responses)[0]

    return jax.tree.map(np.asarray, jax.jit(play)(policy, KEY, ids, settings, responses))


def scripted_responses():
    """Responses [E, T, L] of `SCRIPTS`."""
    shape = len(SCRIPTS), TURNS * ATTEMPTS
    tokens, length = np.zeros((*shape, LENGTH), np.int32), np.ones(shape, np.int32)
    for row, texts in enumerate(SAID):
        for turn, text in enumerate(texts):
            words = [*toy_agent.TOKENIZER.encode(text.removesuffix("<|end|>")), toy_agent.END]
            tokens[row, turn, : len(words)], length[row, turn] = words, len(words)
    return Response(
        tokens=jnp.asarray(tokens),
        length=jnp.asarray(length),
        logprob=jnp.zeros(tokens.shape),
        ended=jnp.ones(shape, bool),
    )


@pytest.fixture(scope="module")
def sure():
    """The environment of the scripts, whose prompts write the number of the turn."""
    prompt = toy_agent.CONFIG.prompt.replace(style="ragen", max_turns=TURNS, max_actions=ACTIONS)
    env = SureLadder(100)
    task = build.make_task("Sure", env, env.default_params, prompt, toy_agent.TOKENIZER)
    return retry_env((task,), ATTEMPTS, prompt=prompt)


@pytest.fixture(scope="module")
def play_scripts(policy, sure):
    """Function (context, limit of its tokens) -> the played scripts."""
    count = len(SCRIPTS)
    ids = build.episode_ids(group=np.arange(count), member=0 * np.arange(count), task=[0] * count, level=[-1] * count)
    settings = toy_agent.settings(
        count, horizon=jnp.int32(TURNS * ATTEMPTS), max_actions=jnp.int32(ACTIONS), env_params=sure.env_params
    )
    responses = scripted_responses()

    def play(context, context_tokens=0):
        config = toy_agent.engine_config(
            max_turns=TURNS * ATTEMPTS, max_response_tokens=LENGTH, context=context, context_tokens=context_tokens
        )
        return played(policy, sure, config, ids, settings, responses)

    return play


@pytest.fixture(scope="module")
def scripted(play_scripts):
    """With the whole conversation, and with a context for each turn."""
    return {context: play_scripts(context) for context in ("full", "single_turn")}


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
def test_the_feedback_is_read_once_at_the_beginning_of_a_retry(scripted, sure, context):
    """All that the policy reads, by string joins; heights stay 0, so that every observation is the same."""
    (task,), rows = sure.tasks, pack_trajectories(scripted[context], context)
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


def test_a_full_context_ends_the_attempts(play_scripts, sure, scripted):
    """There is room for three turns, whatever the lengths of their messages, and for less than five."""
    limit = int(sure.prefix_length[0]) + 3 * (sure.observation_tokens + LENGTH)
    trajectory, whole = play_scripts("full", limit), scripted["full"]
    full = trajectory.truncation == 1 + TRUNCATIONS.index("context")
    assert full.tolist() == [False, False, True, True, False]
    assert trajectory.success.tolist() == [True, True, False, False, False]
    assert set(trajectory.num_turns[full].tolist()) <= {3, 4}
    np.testing.assert_array_equal(trajectory.num_turns[~full], whole.num_turns[~full])


@pytest.fixture(scope="module")
def retried(policy):
    """16 sampled episodes with a retry, on levels with a near goal: (ids, settings, environment, trajectory)."""
    turns, ids, plain = toy_agent.TURNS, toy_agent.mixed_ids(256, 1), toy_agent.settings(256)
    state, _ = toy_agent.BATCHED_ENV.reset(KEY, plain, ids)
    near = np.flatnonzero(np.where(ids.task == 0, state.envs[0].goal, state.envs[1].goal) == 1)
    ids = toy_agent.rows(ids, near[:16])
    env = retry_env(toy_agent.BATCHED_ENV.tasks, 2, turns)
    settings = toy_agent.settings(16, horizon=jnp.int32(2 * turns))
    return ids, settings, env, played(policy, env, toy_agent.engine_config(max_turns=2 * turns), ids, settings)


def test_one_attempt_is_the_plain_episode(compiled, policy, retried):
    """Bit for bit, also where there are no attempts left: without feedback, since nothing can follow it."""
    ids, settings, _, _ = retried
    settings = settings.replace(horizon=jnp.int32(toy_agent.TURNS))
    env = RetryEnv(tasks=toy_agent.BATCHED_ENV.tasks, turns=toy_agent.TURNS, attempts=1)
    once = played(policy, env, toy_agent.engine_config(), ids, settings)
    plain, _ = compiled(toy_agent.engine_config())(policy, KEY, ids, settings)
    assert not once.turn.info.pop("attempt").any()
    assert differing(once, plain) == []


def test_the_first_attempt_is_the_plain_episode(compiled, policy, retried):
    ids, settings, _, trajectory = retried
    plain, _ = compiled(toy_agent.engine_config())(policy, KEY, ids, settings)
    first = (trajectory.turn.info["attempt"] == 0) & np.asarray(trajectory.turn_mask)
    np.testing.assert_array_equal(first.sum(axis=1), plain.num_turns)
    for turn in range(toy_agent.TURNS):
        shown = first[:, turn]
        for name in ("tokens", "length"):
            mine, theirs = getattr(trajectory.response, name), np.asarray(getattr(plain.response, name))
            np.testing.assert_array_equal(mine[shown, turn], theirs[shown, turn])
    again = trajectory.turn.info["attempt"].max(axis=1) > 0
    np.testing.assert_array_equal(again, ~np.asarray(plain.success))
    assert 2 < again.sum() < 16


def test_a_retry_depends_neither_on_the_batch_nor_on_slots(policy, retried):
    """Some of the episodes, in another order, in slots that are refilled."""
    ids, settings, env, trajectory = retried
    rows = np.random.default_rng(0).permutation(16)[:12]
    config = toy_agent.engine_config(max_turns=2 * toy_agent.TURNS, slots=4)
    few = played(
        policy, env, config, toy_agent.rows(ids, rows), settings.replace(temperature=settings.temperature[:12])
    )
    assert_same(few, toy_agent.rows(trajectory, rows))


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
