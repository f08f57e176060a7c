"""The learner's rows against row-by-row concatenation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from toy_agent import MAX_RESPONSE_TOKENS, TURNS

from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.setup.play_plans import split_plans
from agentrl_jax.setup.play_responses import demonstrate


def joined(trajectory, row: int, turns: list[int]):
    """Tokens of some turns of an episode by list concatenation, and (sampled positions, logprobs) of each turn."""
    tokens = trajectory.prompt[row, : trajectory.prompt_length[row]].tolist()
    drawn = []
    for turn in turns:
        positions, logprobs = [], []
        if turn < trajectory.num_turns[row]:
            tokens += trajectory.observation[row, turn, : trajectory.observation_length[row, turn]].tolist()
            for i in range(trajectory.response.length[row, turn]):
                positions.append(len(tokens))
                logprobs.append(trajectory.response.logprob[row, turn, i])
                tokens.append(int(trajectory.response.tokens[row, turn, i]))
        drawn.append((positions, logprobs))
    return tokens, drawn


@pytest.fixture(scope="module")
def assembled(batch):
    trajectory = batch[1]

    def run(context):
        return jax.tree.map(np.asarray, jax.jit(pack_trajectories, static_argnums=1)(trajectory, context))

    return jax.tree.map(np.asarray, trajectory), run


def check_rows(rows, trajectory, which):
    """Checks rows; `which` gives the episode and the turns of every row."""
    for index, (episode, turns) in enumerate(which):
        tokens, drawn = joined(trajectory, episode, turns)
        assert rows.episode[index] == episode
        assert rows.length[index] == len(tokens)
        assert rows.tokens[index, : len(tokens)].tolist() == tokens
        assert not rows.tokens[index, len(tokens) :].any()
        for slot, (positions, logprobs) in enumerate(drawn):
            begin, end = slot * MAX_RESPONSE_TOKENS, (slot + 1) * MAX_RESPONSE_TOKENS
            gap = MAX_RESPONSE_TOKENS - len(positions)
            assert rows.response_mask[index, begin:end].tolist() == [True] * len(positions) + [False] * gap
            assert rows.position[index, begin:end].tolist() == positions + [1] * gap
            assert rows.logprob[index, begin:end].tolist() == logprobs + [0.0] * gap
            assert rows.turn[index, begin:end].tolist() == [turns[slot]] * MAX_RESPONSE_TOKENS


def test_full_rows_are_the_conversation(assembled):
    trajectory, run = assembled
    rows = run("full")
    assert rows.tokens.shape[0] == 64
    check_rows(rows, trajectory, [(episode, list(range(TURNS))) for episode in range(64)])


def test_single_turn_rows_start_from_the_prompt(assembled):
    trajectory, run = assembled
    rows = run("single_turn")
    assert rows.tokens.shape[0] == 64 * TURNS
    check_rows(rows, trajectory, [(episode, [turn]) for episode in range(64) for turn in range(TURNS)])


def test_demonstration_is_what_a_rollout_would_record():
    """The actions of a plan are executed, its response is canonical, and noise can be shared by a group."""
    plans = [np.array([0, 0, 0, 0]), np.array([1]), np.array([0, 1, 0]), np.array([0] * 6)] * 4
    actions = jnp.asarray(split_plans(plans, TURNS, 2))
    ids = toy_agent.mixed_ids(4, 4).replace(task=jnp.full(16, toy_agent.LONG))
    settings = toy_agent.settings(16, max_actions=jnp.int32(10))
    trajectory = jax.tree.map(
        np.asarray,
        demonstrate(
            toy_agent.BATCHED_ENV, MAX_RESPONSE_TOKENS, jax.random.key(5), settings, ids, actions, context="full"
        ),
    )
    expected = ["Up||Up</answer><|end|>", "Down</answer><|end|>"]
    for row, text in zip((0, 1), expected):
        said = trajectory.response.tokens[row, 0, : trajectory.response.length[row, 0]].tolist()
        assert toy_agent.TOKENIZER.decode(said, skip_special=False) == text
    executed = np.where(trajectory.turn.terminated.cumsum(axis=1)[..., None] <= 1, trajectory.turn.actions, -1)
    wanted = np.where(trajectory.turn_mask[..., None], np.asarray(actions), -1)
    unsolved = ~trajectory.success
    np.testing.assert_array_equal(executed[unsolved], wanted[unsolved])
    assert trajectory.turn.reward[1].tolist() == [-0.5, 0.0, 0.0]


def test_shared_noise_makes_equal_actions_equal():
    """With the option, members with the same actions see the same states; without it, the slips differ."""
    ids = toy_agent.mixed_ids(4, 4).replace(task=jnp.full(16, toy_agent.LONG))
    actions = jnp.zeros((16, TURNS, 2), jnp.int32)
    settings = toy_agent.settings(16, max_actions=jnp.int32(10))

    def observations(shared):
        batched_env = toy_agent.make_batched_env(shared_noise=shared)
        played = demonstrate(
            batched_env, MAX_RESPONSE_TOKENS, jax.random.key(5), settings, ids, actions, context="full"
        )
        return np.asarray(played.observation).reshape(4, 4, -1)

    shared, own = observations(True), observations(False)
    assert (shared == shared[:, :1]).all()
    assert (own != own[:, :1]).any()


def test_plan_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="7 actions does not fit in 3 turns of 2"):
        split_plans([np.zeros(7)], 3, 2)
