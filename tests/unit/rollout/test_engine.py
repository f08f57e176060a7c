"""A trajectory is a function of its key: not of its slot, its neighbors, the batch or refills."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from host_stage import Stage
from toy_agent import GROUP_SIZE, TURNS
from toy_rollouts import GROUPED, KEY, assert_same, differing, forward_logprobs

from agentrl_jax.errors import BadValue
from agentrl_jax.models import cached_decoder
from agentrl_jax.models.kv_cache import MAX_BLOCKS, blocks_allowed
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout import engine
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN
from agentrl_jax.rollout.engine_config import cache_length
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.rollout.prefill import empty_cache
from agentrl_jax.rollout.resampling import Resampling
from agentrl_jax.rollout.trajectory import TRUNCATIONS
from agentrl_jax.setup.programs import Programs, played_metrics, total_stats


def sum_of_positions(cache):
    return sum(key.shape[2] for key, _ in cache.blocks[0])


def test_the_toy_agent_is_worth_testing(batch):
    _, trajectory, stats = batch
    played = np.asarray(trajectory.turn_mask)
    assert len(np.unique(np.asarray(trajectory.response.length)[played])) >= 5
    assert set(np.asarray(trajectory.num_turns).tolist()) == {1, 2, 3}
    assert 0.2 < np.mean(np.asarray(trajectory.response.ended)[played]) < 0.95
    assert np.mean(np.asarray(trajectory.turn.valid)[played]) > 0.05
    assert total_stats(stats)["slot_steps"] == 64 * total_stats(stats)["decode_steps"]
    # Members of a group share their level and draw their own tokens.
    first = np.asarray(trajectory.observation[:, 0]).reshape(-1, GROUP_SIZE, trajectory.observation.shape[-1])
    assert (first == first[:, :1]).all()
    assert len(np.unique(first[:, 0], axis=0)) >= 6
    responses = np.asarray(trajectory.response.tokens[:, 0]).reshape(16, GROUP_SIZE, -1)
    assert (responses != responses[:, :1]).any(axis=(1, 2)).all()


def test_log_probabilities_are_those_of_a_plain_forward_pass(policy, batch):
    rows, expected = forward_logprobs(policy, batch[1], FULL, jnp.ones(64))
    sampled = np.asarray(rows.response_mask)
    np.testing.assert_allclose(np.asarray(rows.logprob)[sampled], np.asarray(expected)[sampled], atol=1e-4)


def test_a_trajectory_depends_neither_on_the_batch_nor_on_turns_that_are_given(policy, batch):
    """With the first turns of some episodes of a rollout, or of none, its other turns are as they were."""

    @jax.jit
    def program(params, ids, given):
        config, model, env = toy_agent.engine_config(), toy_agent.MODEL.decoder, toy_agent.BATCHED_ENV
        return engine.rollout(params, model, env, config, KEY, ids, toy_agent.settings(8), responses=given)[0]

    def play(rows, given):
        return program(policy, toy_agent.rows(batch[0], rows), given)

    rows = np.array([5, 4, 7, 6, 60, 1, 2, 3])
    whole = toy_agent.rows(batch[1], rows)
    said = jax.tree.map(lambda x: x[:, : TURNS - 1], whole.response)
    first, none = (said.replace(length=np.where(given[:, None], said.length, 0)) for given in np.arange(8) < [[6], [0]])
    found = play(rows, none)
    assert_same(found, whole)
    shuffle = np.array([5, 2, 7, 0, 1, 6, 3, 4])
    assert differing(toy_agent.rows(found, shuffle), play(rows[shuffle], none)) == []
    assert_same(play(rows, first), whole)
    # Another first turn has other turns after it.
    other = first.replace(tokens=np.roll(first.tokens, 1, axis=0), length=np.roll(first.length, 1, axis=0))
    found = play(rows, other)
    length = other.length[:, 0]
    np.testing.assert_array_equal(found.response.length[:, 0][length > 0], length[length > 0])
    np.testing.assert_array_equal(found.response.tokens[1, 0, : length[1]], other.tokens[1, 0, : length[1]])
    assert differing(found, whole)


def test_a_group_stores_its_first_observation_once():
    shape, batched_env = toy_agent.MODEL.decoder, toy_agent.BATCHED_ENV
    read = batched_env.observation_tokens

    def positions(**changes):
        cache = empty_cache(shape, batched_env, toy_agent.engine_config(**changes), 16)
        return sum_of_positions(cache), cache.opening

    alone, none = positions()
    together, opening = positions(group_size=GROUP_SIZE)
    assert none is None
    assert together == alone - read
    assert opening.layers[0][0].shape[::2] == (16 // GROUP_SIZE, read)
    for changes in ({"slots": 16}, {"context": SINGLE_TURN}, {"prefill_rows": 3}):
        assert positions(group_size=GROUP_SIZE, **changes)[1] is None
    # The only observation is that of the group.
    assert positions(group_size=GROUP_SIZE, max_turns=1)[0] == 1


def test_blocks_end_where_observations_end_and_many_are_always_skipped():
    def empty(**changes):
        config = toy_agent.engine_config(max_response_tokens=200, **changes)
        return empty_cache(toy_agent.MODEL.decoder, toy_agent.BATCHED_ENV, config, GROUP_SIZE)

    read = toy_agent.BATCHED_ENV.observation_tokens
    for group_size, first in ((1, [read]), (GROUP_SIZE, [])):
        cache = empty(max_turns=3, group_size=group_size)
        assert [key.shape[2] for key, _ in cache.blocks[0]] == [*first, 200 + read, 200 + read]
    one = empty(max_turns=3, context=SINGLE_TURN)
    assert sum_of_positions(one) == sum_of_positions(empty(max_turns=1)) == read
    few, many = (empty(max_turns=turns, skips_blocks=False) for turns in (3, 40))
    assert (few.skips, many.skips) == (False, True)
    assert sum_of_positions(few) < 4096 < sum_of_positions(many)
    assert (len(few.blocks[0]), len(many.blocks[0])) == (2, MAX_BLOCKS)


def test_an_episode_ends_where_its_context_is_full(compiled, policy, batch):
    """Also in refilled slots, with observations read in parts, and a cache that is always read, empty blocks too."""
    ids, trajectory, _ = batch
    whole = jax.tree.map(np.asarray, trajectory)
    prefix = int(whole.prompt_length.max())
    limit = prefix + toy_agent.BATCHED_ENV.observation_tokens + toy_agent.MAX_RESPONSE_TOKENS + 6
    refilled = {"slots": 16, "prefill_threshold": 0.3, "chunk": 3}
    config = toy_agent.engine_config(group_size=GROUP_SIZE, context_tokens=limit, skips_blocks=False, **refilled)
    cache = empty_cache(toy_agent.MODEL.decoder, toy_agent.BATCHED_ENV, config, 16)
    assert (len(cache.blocks[0]), cache.skips) == (min(2, blocks_allowed(sum_of_positions(cache))), False)
    program, seen, read = compiled(config), set(), cached_decoder.forward_with_cache

    def watched(params, model, cache, tokens, *rest, only_last):
        seen.add(tokens.shape)
        return read(params, model, cache, tokens, *rest, only_last=only_last)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached_decoder, "forward_with_cache", watched)
        short, stats = program(policy, KEY, ids, toy_agent.settings(64))
    assert whole.observation_length.max() > 6
    assert seen == {toy_agent.BATCHED_ENV.prefix.shape, (16 // GROUP_SIZE, 3), (16, 3)}
    counters, short = total_stats(stats), jax.tree.map(np.asarray, short)
    assert counters["sampled_tokens"] == np.sum(short.response.length)
    assert counters["slot_steps"] == 16 * counters["decode_steps"]
    sizes = whole.prompt_length[:, None] + np.cumsum(whole.observation_length + whole.response.length, axis=1)
    before = sizes - whole.response.length + toy_agent.MAX_RESPONSE_TOKENS  # what a turn might have needed
    fits = np.cumprod((before <= limit) & whole.turn_mask, axis=1).sum(axis=1)
    assert 0 < np.mean(fits < whole.num_turns) < 1
    assert_same(*(toy_agent.rows(x, fits == whole.num_turns) for x in (short, whole)))
    np.testing.assert_array_equal(short.num_turns, fits)
    cut, last = fits < whole.num_turns, (np.arange(64), fits - 1)
    np.testing.assert_array_equal(short.turn.truncated[last], cut | whole.turn.truncated[last])
    np.testing.assert_array_equal(short.truncation == 1 + TRUNCATIONS.index("context"), cut)
    # The observation that would have come next is the next observation of the whole episode.
    np.testing.assert_array_equal(short.final_observation[cut], whole.observation[cut, fits[cut]])
    np.testing.assert_array_equal(short.final_observation_length[cut], whole.observation_length[cut, fits[cut]])
    rows, roomy = (jax.jit(pack_trajectories, static_argnums=(1, 2))(short, FULL, size) for size in (limit, 0))
    assert rows.tokens.shape[1] == limit < roomy.tokens.shape[1]
    np.testing.assert_array_equal(rows.tokens, roomy.tokens[:, :limit])
    assert int(roomy.length.max()) <= limit
    played = np.arange(TURNS) < fits[:, None]
    np.testing.assert_array_equal(short.response.tokens[played], whole.response.tokens[played])
    np.testing.assert_allclose(short.response.logprob[played], whole.response.logprob[played], atol=1e-3)


@pytest.mark.parametrize(
    ("key", "value", "group_size"),
    [("slots", 6, 4), ("slots", 9, 1), ("context_tokens", 9, 1), *[("prefill_threshold", x, 1) for x in (0.0, 1.5)]],
)
def test_impossible_settings_are_refused(policy, key, value, group_size):
    def begin(**changes):
        config, env = toy_agent.engine_config(**changes), toy_agent.BATCHED_ENV
        cache_length(env, config)
        ids, settings = toy_agent.mixed_ids(8, 1), toy_agent.settings(8)
        engine.rollout(policy, toy_agent.MODEL.decoder, env, config, KEY, ids, settings)

    with pytest.raises(BadValue) as refused:
        begin(group_size=group_size, **{key: value})
    assert (refused.value.key, refused.value.value) == (key, value)


def test_settings_change_without_a_new_program(compiled, policy, batch):
    ids, trajectory, _ = batch
    program = compiled(GROUPED)

    def play(**changes):
        return jax.tree.map(np.asarray, program(policy, KEY, ids, toy_agent.settings(64, **changes))[0])

    one_turn = play(horizon=jnp.int32(1))
    before = program._cache_size()  # programs may have been given back since the batch was played
    assert one_turn.num_turns.tolist() == [1] * 64
    went_on = np.asarray(trajectory.num_turns) > 1
    np.testing.assert_array_equal(one_turn.truncation == 1 + TRUNCATIONS.index("turns"), went_on)
    np.testing.assert_array_equal(one_turn.final_observation[went_on], trajectory.observation[went_on, 1])
    np.testing.assert_array_equal(one_turn.final_observation_length > 0, one_turn.truncation > 0)
    np.testing.assert_array_equal(one_turn.response.tokens[:, 0], trajectory.response.tokens[:, 0])
    assert (one_turn.response.length[:, 1:] == 0).all()
    of_task = play(task_turns=jnp.array([1, 99]))
    cut = np.asarray(ids.task) == 0
    assert_same(toy_agent.rows(of_task, cut), toy_agent.rows(one_turn, cut))
    assert_same(toy_agent.rows(of_task, ~cut), toy_agent.rows(trajectory, ~cut))
    assert play(horizon=jnp.int32(0)).num_turns.sum() == 0
    assert play(horizon=jnp.int32(99)).num_turns.max() == TURNS

    greedy_rows = np.arange(64) % 3 == 0
    mixed = play(temperature=jnp.asarray(~greedy_rows, jnp.float32))
    assert_same(toy_agent.rows(mixed, ~greedy_rows), toy_agent.rows(trajectory, ~greedy_rows))
    assert (mixed.response.logprob[greedy_rows] == 0).all()
    greedy = play(temperature=jnp.zeros(64))
    np.testing.assert_array_equal(greedy.response.tokens[greedy_rows], mixed.response.tokens[greedy_rows])
    # Greedy members of a group read the same first message, so their responses are equal.
    first = greedy.response.tokens[:, 0]
    np.testing.assert_array_equal(first, np.repeat(first[::GROUP_SIZE], GROUP_SIZE, 0))
    poor = play(max_actions=jnp.int32(1))
    assert (np.sum(poor.turn.actions >= 0, axis=(1, 2)) <= 1).all()
    assert poor.turn.truncated.any()
    by_actions = poor.truncation == 1 + TRUNCATIONS.index("actions")
    np.testing.assert_array_equal(by_actions, poor.turn.truncated.any(axis=1))
    assert program._cache_size() == before == 1


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [
        {"chunk": 3, "context": SINGLE_TURN},
        {"prefill_rows": 3, "chunk": 3, "slots": 4, "prefill_threshold": 0.5},
        {"prefill_rows": 5, "group_size": toy_agent.GROUP_SIZE},
        {"prefill_rows": 3, "group_size": toy_agent.GROUP_SIZE, "slots": 8},
        {"prefill_threshold": 0.3, "chunk": 3, "group_size": toy_agent.GROUP_SIZE, "slots": 8},
        {"prefill_rows": 4, "context": SINGLE_TURN},
        {"context": SINGLE_TURN, "stop_at_answer": True, "slots": 4, "prefill_threshold": 0.5},
    ],
    ids=str,
)
def test_observations_read_in_parts_and_refills_give_the_same_trajectories(compiled, policy, batch, options):
    ids = toy_agent.rows(batch[0], np.arange(16))
    kept = {name: options[name] for name in ("stop_at_answer", "context") if name in options}
    whole, parts = (
        compiled(toy_agent.engine_config(**chosen))(policy, KEY, ids, toy_agent.settings(16))[0]
        for chosen in (kept, options)
    )
    assert_same(parts, whole)


@pytest.mark.nightly
def test_episodes_of_one_turn_store_nothing_of_their_own(compiled, policy, batch):
    config, settings = toy_agent.engine_config(max_turns=1, group_size=toy_agent.GROUP_SIZE), toy_agent.settings(64)
    found = compiled(config)(policy, KEY, batch[0], settings)[0]
    expected = compiled(GROUPED)(policy, KEY, batch[0], settings.replace(horizon=jnp.int32(1)))[0]
    np.testing.assert_array_equal(found.response.tokens, expected.response.tokens[:, :1])
    np.testing.assert_array_equal(found.num_turns, expected.num_turns)
    np.testing.assert_array_equal(found.truncation, expected.truncation)


@pytest.mark.nightly
def test_devices_do_not_matter_to_environments_of_the_host():
    stage = Stage()
    played = stage.run(stage.program(make_mesh(1)))[0]
    for devices in (2, 8):
        trajectory, calls = stage.run(stage.program(make_mesh(devices)))
        assert calls["reset"] == devices
        assert calls["step"] == played.num_turns.reshape(devices, -1).max(axis=1).sum()
        assert_same(trajectory, played)


NAMES = ("short", "long")
# One turn at a low temperature, so that members of a group often act the same.
SETTINGS = dataclasses.replace(
    toy_agent.settings(64), horizon=jnp.int32(1), temperature=jnp.full(64, 0.3), format_penalty=jnp.float32(-0.1)
)


def program(devices):
    programs = Programs(make_mesh(devices))
    return programs.rollout(
        "rollout", toy_agent.MODEL, toy_agent.BATCHED_ENV, GROUPED, resampling=Resampling(3), task_names=NAMES
    )


def spread(trajectory, paid=0.0):
    returns = np.asarray(trajectory.returns - 0.1 * jnp.sum(trajectory.turn.format_error, axis=1), np.float64)
    return np.ptp((returns - paid).reshape(-1, toy_agent.GROUP_SIZE), axis=1) > 1e-6


@pytest.mark.nightly
def test_an_overlong_penalty_makes_a_spread(policy, batch):
    ids, play = batch[0], program(1)
    _, stats = play({"policy": policy}, KEY, ids, SETTINGS)
    long = SETTINGS.replace(overlong_buffer=jnp.float32(1.0), overlong_penalty=jnp.float32(0.5))
    trajectory, punished = play({"policy": policy}, KEY, ids, long)
    length = np.asarray(trajectory.response.length, np.float64)
    paid = np.where(trajectory.turn_mask, 0.5 * length / toy_agent.MAX_RESPONSE_TOKENS, 0.0).sum(axis=1)
    varied = spread(trajectory, paid)
    assert varied.sum() > spread(trajectory).sum()
    before, found = played_metrics(stats), played_metrics(punished)
    assert found["rollout/zero_std_share"] < before["rollout/zero_std_share"]
    assert int(jnp.sum(punished.rounds)) < int(jnp.sum(stats.rounds)) or varied.all()
    assert found["train/return"] < found["train/raw_return"] - 0.01


@pytest.mark.nightly
def test_metrics_speak_of_all_that_every_device_played(policy, batch):
    _, stats = program(2)({"policy": policy}, KEY, batch[0], SETTINGS)
    counters, found = total_stats(stats), played_metrics(stats)
    assert counters["episodes"] == 32 * int(jnp.sum(stats.rounds)) > 64
    assert found["train/success"] == pytest.approx(counters["solved"] / counters["episodes"], abs=1e-6)
    assert found["train/short/episodes"] + found["train/long/episodes"] == counters["episodes"]
