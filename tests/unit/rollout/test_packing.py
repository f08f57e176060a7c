import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from made_up import EPISODES, SAID, SEEN, TURNS, make_trajectory

from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN, Join
from agentrl_jax.rollout.packing import final_states, pack_trajectories
from agentrl_jax.rollout.recall import recalled_parts
from agentrl_jax.setup.play_plans import split_plans


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
def trajectory():
    """Prompts, observations and responses of several lengths, with more room than they need; a third is truncated."""
    made, number = make_trajectory(3, seen=SEEN + 1, said=SAID + 2), np.arange(EPISODES)
    draw = np.random.default_rng(4)
    return jax.tree.map(
        np.asarray,
        made.replace(
            prompt=draw.integers(1, 19, (EPISODES, 3)),
            prompt_length=1 + number % 3,
            final_observation=draw.integers(1, 19, (EPISODES, SEEN + 1)),
            final_observation_length=np.where(number % 3 == 0, 1 + number % SEEN, 0),
        ),
    )


@pytest.mark.parametrize("context", [FULL, SINGLE_TURN])
def test_rows_are_the_prompt_and_the_turns(trajectory, context):
    rows = jax.tree.map(np.asarray, jax.jit(pack_trajectories, static_argnums=1)(trajectory, context))
    size = trajectory.response.tokens.shape[2]
    of_episode = [list(range(TURNS))] if context == FULL else [[turn] for turn in range(TURNS)]
    which = [(episode, turns) for episode in range(EPISODES) for turns in of_episode]
    assert len(rows.tokens) == len(which)
    for index, (episode, turns) in enumerate(which):
        tokens, drawn = joined(trajectory, episode, turns)
        assert rows.episode[index] == episode
        assert rows.length[index] == len(tokens)
        assert rows.tokens[index, : len(tokens)].tolist() == tokens
        assert not rows.tokens[index, len(tokens) :].any()
        for slot, (positions, logprobs) in enumerate(drawn):
            begin, end = slot * size, (slot + 1) * size
            gap = size - len(positions)
            assert rows.response_mask[index, begin:end].tolist() == [True] * len(positions) + [False] * gap
            assert rows.position[index, begin:end].tolist() == positions + [1] * gap
            assert rows.logprob[index, begin:end].tolist() == logprobs + [0.0] * gap
            assert rows.turn[index, begin:end].tolist() == [turns[slot]] * size


def test_another_prompt_gives_a_second_view_of_the_same_sampled_tokens(trajectory):
    """Position k of a row is the same token in both: so scores under a privileged prompt are compared one by one."""
    other = trajectory.replace(prompt=np.full((EPISODES, 7), 5, np.int32), prompt_length=7 - trajectory.prompt_length)
    for context in (FULL, SINGLE_TURN):
        one, two = (pack_trajectories(x, context) for x in (trajectory, other))
        mask = np.asarray(one.response_mask)
        for name in ("response_mask", "logprob", "turn", "episode"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
        at = [np.take_along_axis(np.asarray(x.tokens), np.asarray(x.position), axis=1) for x in (one, two)]
        np.testing.assert_array_equal(at[0][mask], at[1][mask])
        moved = np.broadcast_to((7 - 2 * trajectory.prompt_length)[np.asarray(one.episode)][:, None], mask.shape)
        np.testing.assert_array_equal((two.position - one.position)[mask], moved[mask])


@pytest.mark.parametrize(("context", "limit"), [(FULL, 0), (FULL, "longest"), (SINGLE_TURN, 0)])
def test_final_states_end_with_the_observation_that_was_not_answered(trajectory, context, limit):
    if limit == "longest":  # of what was answered
        limit = max(len(joined(trajectory, row, range(turns))[0]) for row, turns in enumerate(trajectory.num_turns))
    found = jax.tree.map(np.asarray, jax.jit(final_states, static_argnums=(1, 2))(trajectory, context, limit))
    count = trajectory.final_observation_length
    np.testing.assert_array_equal(found.known[:, 0], count > 0)
    np.testing.assert_array_equal(found.position[count == 0, 0], 1)
    for row in np.flatnonzero(count):
        turns = range(trajectory.num_turns[row]) if context == FULL else []
        tokens = joined(trajectory, row, turns)[0] + trajectory.final_observation[row, : count[row]].tolist()
        assert found.tokens[row, : len(tokens)].tolist() == tokens
        assert found.position[row, 0] == len(tokens)


def test_only_what_follows_the_prefix_directly_is_read_again_without_its_lead(trajectory):
    both = np.flatnonzero(trajectory.num_turns == TURNS)[:3]
    lead = np.minimum(1, trajectory.observation_length)
    recall = np.array([[0, 1, 2, 3], [2, 3, -1, -1], [1, 2, -1, -1]])
    join = trajectory.join.replace(lead=lead)
    asked = Join(np.ones(3, bool), recall, np.zeros(3, np.int32), np.zeros(3, np.int32))
    made, asked = jax.tree.map(jnp.asarray, (trajectory.replace(join=join), asked))
    parts = jax.tree.map(np.asarray, recalled_parts(made, jnp.asarray(both), asked))
    for row, episode in enumerate(both):
        seen = [trajectory.observation[episode, t, : trajectory.observation_length[episode, t]] for t in range(2)]
        said = [trajectory.response.tokens[episode, t, : trajectory.response.length[episode, t]] for t in range(2)]
        expected = ([seen[0][1:], said[0], seen[1], said[1]], [seen[1][1:], said[1]], [said[0], seen[1]])[row]
        assert parts.tokens[row][parts.real[row]].tolist() == np.concatenate(expected).tolist()
    nothing = recalled_parts(made, jnp.asarray(both), asked.replace(restart=jnp.zeros(3, bool)))
    assert not np.any(nothing.real), "a message that goes on recalls nothing"


def test_shared_noise_is_that_of_the_group():
    ids, settings = toy_agent.mixed_ids(4, 4), toy_agent.settings(16)

    def distinct(shared):
        env = toy_agent.make_batched_env(shared_noise=shared)
        state = jax.jit(lambda key: env.reset(key, settings, ids)[0].noise_key)(jax.random.key(5))
        return len(np.unique(jax.random.key_data(state), axis=0))

    assert (distinct(True), distinct(False)) == (4, 16)


def test_plan_that_does_not_fit_is_refused():
    with pytest.raises(BadValue):
        split_plans([np.zeros(7)], 3, 2)
