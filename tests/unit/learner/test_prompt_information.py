import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from made_up import GROUPS, TURNS
from prompt_scores import BASE, GROUP_SIZE, NOW, PLAYED, policy, samples

from agentrl_jax.learner import prompt_information as dependence
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.text.thought import compile_thought


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
