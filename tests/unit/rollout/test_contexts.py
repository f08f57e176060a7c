"""Contexts other than whole conversations: windows, and agents that have turns with themselves."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import made_up
import numpy as np
import optax
import pytest
import toy_agent
from toy_agent import GROUP_SIZE, TURNS
from toy_rollouts import KEY, assert_same, forward_logprobs

from agentrl_jax.algos import masked
from agentrl_jax.algos.optimizers import Optimizer
from agentrl_jax.config.advantages import Grpo
from agentrl_jax.config.filters import NoFilter
from agentrl_jax.config.mismatch import NoCorrection
from agentrl_jax.errors import BadValue
from agentrl_jax.learner.settings import LearnerConfig
from agentrl_jax.learner.state import init_state
from agentrl_jax.learner.update import update
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout import engine
from agentrl_jax.rollout.contexts import ACT, FULL, Bounds, Context, Note, Window
from agentrl_jax.rollout.envs.context_env import in_context
from agentrl_jax.rollout.packing import context_ends, final_states, layout, pack_trajectories
from agentrl_jax.rollout.replay import replay_logprobs
from agentrl_jax.text.grammar import ResponseGrammar, compile_grammar

EPISODES = 64
ENV = toy_agent.make_batched_env(legends=((), (("0", "the ground"), ("9", "the top"))))
"""Tasks with prompts of different lengths, because a context begins after its prompt."""
REFILLED = {"slots": 16, "prefill_threshold": 0.4, "prefill_rows": 3, "chunk": 5}
PAIRS = toy_agent.engine_config(group_size=GROUP_SIZE, context=Window(2), **REFILLED)


def played(policy, config):
    ids, settings = toy_agent.mixed_ids(EPISODES // GROUP_SIZE, GROUP_SIZE), toy_agent.settings(EPISODES)
    play = jax.jit(lambda *of: engine.rollout(of[0], toy_agent.MODEL.decoder, ENV, config, KEY, *of[1:])[0])
    return play(policy, ids, settings)


ASKED = toy_agent.vocabulary("What happened?")


@dataclasses.dataclass(frozen=True)
class Summaries(Context):
    """Holds every observation back until the agent has written a note, with which the next context begins."""

    note: Note

    @property
    def notes(self):
        return (self.note,)

    @property
    def message_tokens(self):
        return len(ASKED)

    def turns_of(self, acts):
        return 2 * acts - 1

    def bounds(self, turns):
        return Bounds(turns=turns, segments=(turns + 1) // 2, sampled=2, recalled=1, longest=3)

    def start(self, message):
        return message

    def follow(self, state, seen):
        acted = seen.kind == ACT
        held = masked.where(acted, seen.message, state)
        rows, width = held.tokens.shape
        asked = jnp.broadcast_to(jnp.asarray(np.pad(ASKED, (0, width - len(ASKED)))), (rows, width))
        join = held.join.replace(
            restart=~acted,
            recall=jnp.where(acted, -1, 2 * seen.turn + 1)[:, None],
            lead=jnp.where(acted, 0, held.join.lead),
            kind=jnp.where(acted, 1, ACT),
        )
        message = held.replace(
            tokens=jnp.where(acted[:, None], asked, held.tokens),
            length=jnp.where(acted, len(ASKED), held.length),
            join=join,
        )
        return held, message


NOTE_TOKENS = 4
SUMMARIES = Summaries(
    Note(
        compile_grammar(
            ResponseGrammar(actions=("Note",), think=False, forced=True, max_actions=2), toy_agent.TOKENIZER
        ),
        NOTE_TOKENS,
    )
)


@pytest.fixture(scope="module")
def paired(policy):
    assert len(set(ENV.prefix_length.tolist())) == 2
    return played(policy, PAIRS)


def read_in_window(trajectory, episode: int, turn: int, turns: int) -> list[int]:
    """The tokens before a response, by joins of lists."""
    first = max(turn + 1 - turns, 0)
    tokens = trajectory.prompt[episode, : trajectory.prompt_length[episode]].tolist()
    for t in range(first, turn + 1):
        lead = trajectory.join.lead[episode, t] if t == first else 0
        tokens += trajectory.observation[episode, t, lead : trajectory.observation_length[episode, t]].tolist()
        tokens += said(trajectory, episode, t) if t < turn else []
    return tokens


def said(trajectory, episode: int, turn: int) -> list[int]:
    return trajectory.response.tokens[episode, turn, : trajectory.response.length[episode, turn]].tolist()


@functools.partial(jax.jit, static_argnums=1)
def places_of(trajectory, context):
    """Row and place in it of each turn of every episode."""
    places = layout(trajectory, context)
    return [places.place(jnp.full(EPISODES, turn)) for turn in range(places.turns)]


def check_rows(policy, trajectory, context, read_before) -> None:
    """Every sampled token is in one row, after what was read before it, and has the probability of a plain pass."""
    rows, expected = forward_logprobs(policy, trajectory, context, jnp.ones(EPISODES))
    rows, trajectory, found = jax.tree.map(np.asarray, (rows, trajectory, places_of(trajectory, context)))
    size = trajectory.response.tokens.shape[2]
    for episode in range(EPISODES):
        for turn in range(trajectory.num_turns[episode]):
            row, place = (x[episode] for x in found[turn])
            tokens = read_before(trajectory, episode, turn)
            assert rows.tokens[row, : len(tokens)].tolist() == tokens
            assert rows.position[row, place * size] == len(tokens)
            assert (rows.episode[row], rows.turn[row, place * size]) == (episode, turn)
    assert rows.response_mask.sum() == trajectory.response.length.sum()
    sampled = rows.response_mask
    np.testing.assert_allclose(rows.logprob[sampled], np.asarray(expected)[sampled], atol=1e-4)


def test_a_window_reads_its_last_turns_when_it_samples_and_when_it_learns(policy, paired):
    later = np.asarray(paired.turn_mask)[:, 1:]
    assert later[:, 1].sum() > 9
    # A message begins with the end of a response that did not end by itself.
    assert set(np.asarray(paired.join.lead)[:, 1:][later].tolist()) == {0, 1}
    check_rows(policy, paired, PAIRS.context, functools.partial(read_in_window, turns=2))


def test_values_of_rows_and_of_episodes_lead_to_each_other(paired):
    mask = np.asarray(paired.response_mask).reshape(EPISODES, -1)
    logprob = np.where(mask, np.asarray(paired.response.logprob).reshape(EPISODES, -1), 0)

    @jax.jit
    def both_ways(trajectory, logprob):
        rows, places = pack_trajectories(trajectory, PAIRS.context), layout(trajectory, PAIRS.context)
        there = places.of_episodes(rows.response_mask), places.of_episodes(rows.logprob)
        return *there, places.of_rows(logprob), rows.logprob

    of_mask, of_logprob, back, wanted = both_ways(paired, logprob)
    np.testing.assert_array_equal(of_mask, mask)
    np.testing.assert_array_equal(of_logprob, logprob)
    np.testing.assert_array_equal(back, wanted)


def test_final_states_and_ends_of_windows(paired):
    find = jax.jit(lambda trajectory: [f(trajectory, PAIRS.context) for f in (context_ends, final_states)])
    ends, final = jax.tree.map(np.asarray, find(paired))
    trajectory = jax.tree.map(np.asarray, paired)
    assert 3 < final.known.sum() < EPISODES
    for episode in range(EPISODES):
        last = trajectory.num_turns[episode] - 1
        before = read_in_window(trajectory, episode, last, 2)
        assert ends[episode, last] == len(before) + trajectory.response.length[episode, last]
        if final.known[episode]:
            # Of two turns, the message that nobody answers leaves the last.
            lead = trajectory.join.lead[episode, last]
            tokens = trajectory.prompt[episode, : trajectory.prompt_length[episode]].tolist()
            tokens += trajectory.observation[
                episode, last, lead : trajectory.observation_length[episode, last]
            ].tolist()
            tokens += said(trajectory, episode, last)
            tokens += trajectory.final_observation[episode, : trajectory.final_observation_length[episode]].tolist()
            assert final.tokens[episode, : len(tokens)].tolist() == tokens
            assert final.position[episode, 0] == len(tokens)


def test_a_window_has_at_least_a_turn():
    with pytest.raises(BadValue) as refused:
        Window(0)
    assert (refused.value.key, refused.value.value) == ("agent.turns", 0)


@pytest.fixture(scope="module")
def noted(policy):
    return played(policy, toy_agent.engine_config(group_size=GROUP_SIZE, context=SUMMARIES))


def test_an_agent_that_writes_notes_acts_as_often_and_forgets_all_but_them(policy, paired, noted):
    def read_before(trajectory, episode, turn):
        tokens = trajectory.prompt[episode, : trajectory.prompt_length[episode]].tolist()
        begin = turn - turn % 2
        tokens += said(trajectory, episode, begin - 1) if begin else []
        for t in range(begin, turn + 1):
            tokens += trajectory.observation[episode, t, : trajectory.observation_length[episode, t]].tolist()
            tokens += said(trajectory, episode, t) if t < turn else []
        return tokens

    check_rows(policy, noted, SUMMARIES, read_before)
    trajectory = jax.tree.map(np.asarray, noted)
    kind, played = trajectory.join.kind, np.asarray(noted.turn_mask)
    assert trajectory.num_turns.max() == 2 * TURNS - 1
    np.testing.assert_array_equal(kind[:, 0::2], 0)
    np.testing.assert_array_equal(kind[:, 1::2][played[:, 1::2]], 1)
    notes = played & (kind == 1)
    assert trajectory.response.length[notes].max() == NOTE_TOKENS
    assert (trajectory.turn.actions[notes] == -1).all()
    assert not trajectory.turn.reward[notes].any()
    # The first turn is that of any agent; the environment sees the responses to the observations that were held back.
    first = jax.tree.map(np.asarray, paired)
    np.testing.assert_array_equal(trajectory.response.tokens[:, 0], first.response.tokens[:, 0])
    second = played[:, 2]
    np.testing.assert_array_equal(
        toy_agent.text_of(trajectory.observation[second][0, 2], trajectory.observation_length[second][0, 2]),
        toy_agent.text_of(first.observation[second][0, 1], first.observation_length[second][0, 1]),
    )


def test_segments_beyond_the_bounds_are_counted_and_not_learned_from(paired):
    """A context that restarts in every turn, of which the learner knows windows of two turns."""

    @jax.jit
    def packed(trajectory):
        restart = jnp.ones_like(trajectory.join.restart).at[:, 0].set(False)
        every = trajectory.replace(join=trajectory.join.replace(restart=restart))
        mask = pack_trajectories(every, PAIRS.context).response_mask
        return mask, layout(every, PAIRS.context).of_episodes(mask)

    mask, of_episodes = jax.tree.map(np.asarray, packed(paired))
    length = np.asarray(paired.response.length)
    assert length.sum() - mask.sum() == length[:, 2].sum() > 0
    assert not of_episodes[:, 2 * 7 :].any()


def test_a_context_in_an_environment_has_its_bounds():
    env = in_context(toy_agent.BATCHED_ENV, SUMMARIES, TURNS)
    assert env.bounds.turns == 5
    assert len(env.grammars) == len(toy_agent.BATCHED_ENV.grammars) + 1
    assert in_context(toy_agent.BATCHED_ENV, FULL, TURNS).bounds == Bounds(TURNS, 1, TURNS, 0, TURNS)


PLAIN_PAIRS = toy_agent.engine_config(group_size=GROUP_SIZE, context=Window(2))


def played_by(compiled, policy, config):
    ids = toy_agent.mixed_ids(EPISODES // GROUP_SIZE, GROUP_SIZE)
    return compiled(config)(policy, KEY, ids, toy_agent.settings(EPISODES))[0]


@pytest.mark.nightly
def test_a_window_of_all_turns_is_the_whole_conversation(compiled, policy, batch):
    found = played_by(compiled, policy, dataclasses.replace(PLAIN_PAIRS, context=Window(TURNS)))
    assert_same(found.replace(join=batch[1].join, final_join=batch[1].final_join), batch[1])
    # The message after the last turn would begin a window.
    known, last = np.asarray(found.final_observation_length) > 0, np.asarray(found.num_turns) == TURNS
    np.testing.assert_array_equal(np.asarray(found.final_join.restart)[known], last[known])


@pytest.mark.nightly
def test_refilled_slots_of_windows_give_the_same_trajectories(compiled, policy):
    configs = (dataclasses.replace(PLAIN_PAIRS, **changes) for changes in (REFILLED, {}))
    assert_same(*(played_by(compiled, policy, config) for config in configs))


@pytest.mark.nightly
def test_notes_are_trained(compiled, policy):
    noted = played_by(compiled, policy, dataclasses.replace(PLAIN_PAIRS, context=SUMMARIES))
    config = LearnerConfig(
        task_names=("Short", "Long"),
        group_size=GROUP_SIZE,
        filter=NoFilter(),
        mismatch=NoCorrection(ratio_from="rollout"),
        aggregation="token_mean",
        advantage=Grpo(),
        context=SUMMARIES,
    )
    tx = Optimizer(*optax.sgd(1.0))
    params = toy_agent.talkative_params(5)
    state = init_state(jax.random.key(0), toy_agent.MODEL, tx).replace(params=params)
    learn = functools.partial(update, model=toy_agent.MODEL, config=config, tx=tx, shards=Shards())
    _, metrics = jax.jit(learn)(state, noted, jnp.ones(EPISODES), KEY, made_up.settings(entropy_coef=0.0))
    assert float(metrics["update/trained_tokens"]) == float(jnp.sum(noted.response.length))
    assert float(metrics["rollout/logprob_gap_max"]) < 1e-4
    assert float(metrics["actor/grad_norm"]) > 0
    assert (float(metrics["update/lost_tokens"]), float(metrics["update/skipped"])) == (0, 0)


@pytest.mark.nightly
def test_a_replay_has_the_log_probabilities_of_a_window(policy, paired):
    def replay(params, trajectory):
        return replay_logprobs(params, toy_agent.MODEL.decoder, PAIRS, trajectory, jnp.ones(EPISODES), tasks=2)

    np.testing.assert_allclose(jax.jit(replay)(policy, paired), paired.response.logprob, atol=1e-5)
