import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from made_up import GROUPS, TRAJECTORY, TURNS

from agentrl_jax.learner import prompt_information as dependence
from agentrl_jax.learner.prompt_information import PromptInformationConfig
from agentrl_jax.models import decoder
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN
from agentrl_jax.rollout.engine import rollout
from agentrl_jax.setup.programs import Programs
from agentrl_jax.text.thought import compile_thought

GROUP_SIZE = toy_agent.GROUP_SIZE
MODEL = toy_agent.SHARED
NOW, BEFORE = 5, 6
"""Seeds of policies."""
KEY = jax.random.key(3)
BASE = PromptInformationConfig(pairs=9, group_size=GROUP_SIZE, context=FULL, context_tokens=0, thought=None)


@functools.cache
def policy(seed):
    return toy_agent.talkative_params(seed, MODEL)["policy"]


@functools.cache
def program_on(devices, fsdp, tensor, config):
    programs = Programs(make_mesh(devices, fsdp=fsdp, tensor=tensor))
    return programs, programs.mutual_information(MODEL, config)


def measured(trajectory, config, reference=None, devices=1, fsdp=1, tensor=1, key=KEY):
    programs, program = program_on(devices, fsdp, tensor, config)
    trees = ({"policy": policy(NOW)}, {"policy": policy(BEFORE) if reference is None else reference})
    params, reference = (jax.device_put(tree, programs.placement(tree, MODEL.decoder)) for tree in trees)
    found = program(params, reference["policy"], trajectory, jnp.full(len(trajectory.num_turns), 0.8), key)
    return {name: float(value) for name, value in found.items()}


def seen(trajectory, episode, turn, context):
    tokens = trajectory.prompt[episode, : trajectory.prompt_length[episode]].tolist()
    for t in range(0 if context == FULL else turn, turn + 1):
        tokens += trajectory.observation[episode, t, : trajectory.observation_length[episode, t]].tolist()
        tokens += said(trajectory, episode, t) if t < turn else []
    return tokens


def said(trajectory, episode, turn):
    return trajectory.response.tokens[episode, turn, : trajectory.response.length[episode, turn]].tolist()


WIDTH = 128


@jax.jit
def plain(policy, tokens):
    """Log-probability of each token given the tokens before it, by a forward pass over one padded row."""
    hidden = decoder.forward(policy, MODEL.decoder, tokens[None])
    logprob = jax.nn.log_softmax(decoder.logits(policy, hidden)[0] / 0.8)
    return jnp.take_along_axis(logprob[:-1], tokens[1:, None], axis=1)[:, 0]


def slowly(params, prompt, response):
    row = np.zeros(WIDTH, np.int32)
    row[: len(prompt) + len(response)] = [*prompt, *response]
    return np.asarray(plain(params, jnp.asarray(row)))[len(prompt) - 1 : len(prompt) + len(response) - 1]


first_turns, any_turns = (jax.jit(f, static_argnums=2) for f in (dependence.first_turns, dependence.any_turns))


def samples(trajectory, config):
    played, (one, other) = trajectory.turn_mask, (jax.random.fold_in(KEY, number) for number in (0, 1))
    return ((first_turns(played[:, 0], one, config), SINGLE_TURN), (any_turns(played, other, config), config.context))


def check_scores(trajectory, config):
    found, trajectory = measured(trajectory, config), jax.tree.map(np.asarray, trajectory)
    for name, (sample, seen_in) in zip(("first_turn", "trajectory"), samples(trajectory, config)):
        prompts = [seen(trajectory, int(e), int(t), seen_in) for e, t in zip(sample.prompt_episode, sample.prompt_turn)]
        texts = [said(trajectory, int(e), int(t)) for e, t in zip(sample.episode, sample.turn)]
        scores = np.array([[slowly(policy(NOW), x, z).sum() for x in prompts] for z in texts])
        matched = scores[np.arange(len(texts)), sample.own]
        marginal = np.log(np.mean(np.exp(scores), axis=1))
        assert found[f"collapse/{name}_response_pairs"] == len(texts)
        assert found[f"collapse/{name}_response_prompts"] == len(prompts)
        assert found[f"collapse/{name}_response_mi"] == pytest.approx(np.mean(matched - marginal), abs=2e-4)
        assert found[f"collapse/{name}_response_marginal_entropy"] == pytest.approx(-np.mean(marginal), abs=2e-4)
        assert found[f"collapse/{name}_response_conditional_entropy"] == pytest.approx(-np.mean(matched), abs=2e-4)
    then = [slowly(policy(BEFORE), x, z) for x, z in zip(prompts, texts)]
    now = [slowly(policy(NOW), x, z) for x, z in zip(prompts, texts)]
    ratio = np.clip(np.concatenate(then) - np.concatenate(now), -20, 20)
    assert found["actor/kl"] == pytest.approx(np.mean(np.clip(np.expm1(ratio) - ratio, -10, 10)), rel=1e-3)
    assert measured(trajectory, config, reference=policy(NOW))["actor/kl"] == pytest.approx(0.0, abs=1e-6)


FIRST = np.repeat(np.arange(GROUPS) * GROUP_SIZE, GROUP_SIZE)
PLAYED = TRAJECTORY.replace(
    observation=TRAJECTORY.observation[FIRST],
    observation_length=jnp.where(TRAJECTORY.turn_mask, jnp.maximum(TRAJECTORY.observation_length[FIRST], 1), 0),
)
"""The members of a group begin with the same observation."""


def test_samples_are_balanced_and_uniform():
    first, _ = samples(PLAYED, dataclasses.replace(BASE, pairs=9))[0]
    chex.assert_shape(first.episode, (8,))
    np.testing.assert_array_equal(np.bincount(first.episode // GROUP_SIZE), np.full(GROUPS, 2))
    assert len(set(first.episode.tolist())) == 8
    np.testing.assert_array_equal(first.episode // GROUP_SIZE, first.prompt_episode[first.own] // GROUP_SIZE)
    few, _ = samples(PLAYED, dataclasses.replace(BASE, pairs=3))[0]
    assert len(set((few.episode // GROUP_SIZE).tolist())) == 3
    keys = jax.random.split(jax.random.key(0), 400)
    draw = jax.jit(dependence.first_turns, static_argnums=2)
    valid = jnp.isin(jnp.arange(16), jnp.array([3, 4, 9, 15]))
    assert set(draw(valid, keys[0], dataclasses.replace(BASE, group_size=2, pairs=4)).episode.tolist()) == {3, 4, 9, 15}
    assert len(draw(valid, keys[0], dataclasses.replace(BASE, group_size=2, pairs=8)).prompt_turn) == 8
    drawn = jax.jit(jax.vmap(lambda key: dependence.any_turns(PLAYED.turn_mask, key, BASE)))(keys)
    assert np.all(drawn.turn < PLAYED.num_turns[drawn.episode])
    number = int(np.argmax(PLAYED.num_turns))
    turns = np.bincount(np.asarray(drawn.turn)[np.asarray(drawn.episode) == number], minlength=TURNS)
    # An episode is expected 400 x 9 / 16 times, and each of its two turns half of that.
    assert turns.sum() == pytest.approx(225, abs=45)
    np.testing.assert_allclose(turns, turns.sum() / TURNS, atol=30)


def test_prompts_end_where_responses_begin():
    sample = dependence.any_turns(PLAYED.turn_mask, jax.random.key(1), BASE)
    prompts = jax.tree.map(np.asarray, dependence.prompts_of(PLAYED, sample, FULL))
    after = np.arange(prompts.tokens.shape[1]) >= prompts.length[:, None]
    assert len({*prompts.length.tolist()}) > 1
    assert not prompts.tokens[after].any()
    assert prompts.tokens[~after].all()


def test_what_is_not_asked_for_is_not_measured():
    def names(config, reference):
        now, temperature = policy(NOW), jnp.ones(len(PLAYED.num_turns))
        scorer = functools.partial(dependence.score, model=toy_agent.SHARED.decoder)
        measure = functools.partial(dependence.measure, config=config, scorer=scorer)
        return jax.eval_shape(measure, now, reference, PLAYED, temperature, jax.random.key(0)).keys()

    plain = names(BASE, None)
    thought = dataclasses.replace(BASE, thought=compile_thought(toy_agent.TOKENIZER, forced=True))
    assert names(BASE, policy(NOW)) - plain == {"actor/kl"}
    more = names(thought, None) - plain
    assert "collapse/valid_thinking_rate" in more
    assert not any("response_" in name for name in more)


DRAWN = 6


@pytest.mark.nightly
@pytest.mark.parametrize("context", [FULL, SINGLE_TURN])
def test_a_response_has_the_score_with_which_it_was_sampled_also_on_a_mesh(context):
    engine = toy_agent.engine_config(group_size=GROUP_SIZE, context=context)
    program = jax.jit(lambda params, *of: rollout(params, MODEL.decoder, toy_agent.BATCHED_ENV, engine, *of)[0])
    settings = toy_agent.settings(DRAWN * GROUP_SIZE, temperature=jnp.full(DRAWN * GROUP_SIZE, 0.8))
    ids = toy_agent.mixed_ids(DRAWN, GROUP_SIZE)
    trajectory = program(policy(NOW), jax.random.key(7), ids, settings)
    config = dataclasses.replace(BASE, context=context)
    found = measured(trajectory, config)
    for name, (sample, _) in zip(("first_turn", "trajectory"), samples(trajectory, config)):
        drawn = np.sum(np.asarray(trajectory.response.logprob)[sample.episode, sample.turn], axis=-1)
        assert found[f"collapse/{name}_response_conditional_entropy"] == pytest.approx(-np.mean(drawn), abs=2e-4)
    assert found.keys() - measured(trajectory, config, reference=None).keys() == {"actor/kl"}
    spread = measured(trajectory, config, devices=8, fsdp=2, tensor=2)
    assert spread == pytest.approx(found, rel=1e-4, abs=2e-4, nan_ok=True)


@pytest.mark.nightly
def test_responses_and_their_thoughts_have_the_scores_of_forward_passes():
    texts = ("Up</think>Up", "</think>Down", "UpUpUp", "DownUp</think>")
    rows = [toy_agent.vocabulary(texts[i % len(texts)]) for i in range(GROUPS * GROUP_SIZE)]
    tokens, length = (np.zeros(x.shape, np.int32) for x in (PLAYED.response.tokens, PLAYED.response.length))
    for episode, row in enumerate(rows):
        tokens[episode, :, : len(row)] = row
        length[episode] = np.where(PLAYED.turn_mask[episode], len(row), 0)
    response = PLAYED.response.replace(tokens=jnp.asarray(tokens), length=jnp.asarray(length))
    trajectory = jax.tree.map(np.asarray, PLAYED.replace(response=response))
    thought = compile_thought(toy_agent.TOKENIZER, forced=True)
    config = dataclasses.replace(BASE, pairs=GROUPS * GROUP_SIZE, thought=thought)
    check_scores(trajectory, config)
    found = measured(trajectory, config)
    spoken = np.isin(np.arange(GROUPS * GROUP_SIZE) % len(texts), [0, 3])
    turns = np.asarray(trajectory.num_turns)
    assert found["collapse/valid_thinking_rate"] == pytest.approx(np.sum(turns * spoken) / np.sum(turns))
    assert found["collapse/first_turn_pairs"] == GROUPS * GROUP_SIZE / 2
    assert found["collapse/first_turn_response_pairs"] == GROUPS * GROUP_SIZE
    expected = []
    for episode in np.flatnonzero(spoken):
        inside = len(toy_agent.vocabulary(texts[episode % len(texts)].split("</think>")[0]))
        prompt = seen(trajectory, episode, 0, SINGLE_TURN)
        expected.append(slowly(policy(NOW), prompt, rows[episode])[:inside].sum())
    assert found["collapse/first_turn_conditional_entropy"] == pytest.approx(-np.mean(expected), rel=1e-4)
    silent = trajectory.replace(response=response.replace(length=jnp.minimum(response.length, 1)))
    found = measured(silent, config)
    assert np.isnan(found["collapse/first_turn_mi"])
    assert np.isfinite(found["collapse/first_turn_response_mi"])
