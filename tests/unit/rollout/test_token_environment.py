"""Commands with free text, from the sampled tokens to the observation, in one program with a task of action ids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from echo_commands import Echo

from agentrl_jax.rollout import engine
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.metrics import trajectory_means
from agentrl_jax.rollout.returns import RewardRule
from agentrl_jax.rollout.trajectory import Response
from agentrl_jax.setup import build, build_inputs

LENGTH = 40
EPISODES = [
    (1, ["<say>abz a", "noise", "<say>abcdefgh a"]),
    (1, ["x<say> action <end>a</end>", "<end>c</end>", ""]),
    (1, ["<say>a<end>b</end>", "<end>ab</end>", ""]),
    (0, ["Up</answer>Up", "Down||Up</answer>", "Up"]),
]
"""Task and responses of each episode; task 0 has action ids."""


@pytest.fixture(scope="module")
def played():
    prompt = toy_agent.CONFIG.prompt.replace(max_actions_per_turn=2, max_actions=9, max_response_tokens=LENGTH)
    env = Echo()
    tasks = (toy_agent.make_task("Long", 100, prompt), build.make_task("Echo", env, env.default_params, prompt, TOKENS))
    batched_env = CompiledEnv(tasks=tasks)
    config = toy_agent.engine_config(max_response_tokens=LENGTH)
    count = len(EPISODES)
    ids = build_inputs.episode_ids(
        group=range(count), member=[0] * count, task=[task for task, _ in EPISODES], level=[-1] * count
    )
    rows = [[TOKENS.encode(text) for text in texts] for _, texts in EPISODES]
    tokens = np.zeros((count, toy_agent.TURNS, LENGTH), np.int32)
    for episode, turn in np.ndindex(tokens.shape[:2]):
        tokens[episode, turn, : len(rows[episode][turn])] = rows[episode][turn]
    length = jnp.array([[max(len(row), 1) for row in turns] for turns in rows])
    given = Response(jnp.asarray(tokens), length, jnp.zeros(tokens.shape, jnp.float32), jnp.zeros(length.shape, bool))
    settings = toy_agent.settings(count, max_actions=jnp.int32(9), env_params=batched_env.env_params)
    params = toy_agent.talkative_params(5)["policy"]

    @jax.jit
    def run(params, key, given):
        model = toy_agent.MODEL.decoder
        return engine.rollout(params, model, batched_env, config, key, ids, settings, responses=given)[0]

    return batched_env, jax.device_get(run(params, jax.random.key(0), given))


TOKENS = toy_agent.TOKENIZER


def responses(trajectory, episode):
    turns = trajectory.num_turns[episode]
    return [
        toy_agent.text_of(trajectory.response.tokens[episode, t], trajectory.response.length[episode, t])
        for t in range(turns)
    ]


def observations(trajectory, episode):
    turns = trajectory.num_turns[episode]
    texts = [
        toy_agent.text_of(trajectory.observation[episode, t], trajectory.observation_length[episode, t])
        for t in range(turns)
    ]
    return [text.rpartition("<|user|>")[2].partition("\n")[0] for text in texts]


def test_commands_reach_the_environment_as_bytes(played):
    trajectory = played[1]
    assert trajectory.turn.actions[:3, :, 0].tolist() == [[0, -1, 0], [0, 1, -1], [-1, 1, -1]]
    assert observations(trajectory, 0) == ["", "ab?", "none"]
    assert observations(trajectory, 1) == ["", ""]
    assert trajectory.turn.valid[0].tolist() == [True, False, True]
    assert trajectory.turn.format_error[0].tolist() == [0, 1, 0]
    assert trajectory.num_turns.tolist() == [3, 2, 2, 3]
    assert trajectory.success.tolist() == [False, True, False, False]
    assert trajectory.turn.reward[:3].sum(axis=1).tolist() == [0, 1, 0]


def test_a_turn_ends_with_the_token_that_closes_the_command(played):
    trajectory = played[1]
    texts = responses(trajectory, 1)
    # The token " action" crosses the end of the command: it is kept, and nothing after it.
    assert texts == ["x<say> action", "<end>c</end>"]
    ignored = trajectory.turn.info["ignored_bytes"]
    assert ignored.tolist() == [[0, 0, 0], [len("ction"), 0, 0], [0, 0, 0], [0, 0, 0]]
    assert not trajectory.response_mask[1, 0, trajectory.response.length[1, 0] :].any()
    # The same engine goes on after the answer of a task of action ids.
    assert responses(trajectory, 3)[0] == "Up</answer>Up"


def test_what_is_ignored_is_a_metric(played):
    batched_env, trajectory = played
    names = tuple(task.name for task in batched_env.tasks)
    found = trajectory_means(jax.tree.map(jnp.asarray, trajectory), names, 1, RewardRule(format_penalty=jnp.float32(0)))
    assert float(found["Echo/ignored_bytes"].value) == pytest.approx(len("ction") / 2 / 3)
    assert float(found["Long/ignored_bytes"].value) == 0
