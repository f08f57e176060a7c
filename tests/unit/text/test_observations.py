import jax
import numpy as np
import pytest
from boards import assert_tokens_are_text, lake_levels, sokoban_boards, start
from prompt_texts import prefix_text

import envs_jax
from agentrl_jax.config import PromptConfig
from agentrl_jax.setup import build
from envs_jax.bandit import Bandit
from envs_jax.frozen_lake import FrozenLake
from envs_jax.sokoban import Sokoban


@pytest.mark.parametrize("observation", ["grid", "grid_coord"])
def test_sampled_boards(small, observation):
    env, lake = Sokoban(5, 5, observation=observation), FrozenLake(4, 4, observation)
    assert_tokens_are_text(small, env, start(env, sokoban_boards()[::100]))
    assert_tokens_are_text(small, lake, start(lake, lake_levels(300, seed=3)))


def test_bandit_before_and_after_the_draw(small):
    env = Bandit((("Engineer", "Teacher"), ("Phoenix", "Dragon")))
    params = env.default_params
    keys = jax.random.split(jax.random.key(0), 32)
    states = jax.jit(jax.vmap(lambda key: env.reset_env(key, params)[1]))(keys)
    assert_tokens_are_text(small, env, states)
    step = jax.jit(jax.vmap(lambda key, state, action: env.step_env(key, state, action, params)[1]))
    assert_tokens_are_text(small, env, step(keys, states, np.arange(32) % env.num_actions))


@pytest.mark.parametrize("style", ["compact", "ragen"])
@pytest.mark.parametrize("encoder", ["pieces", "canonical"])
@pytest.mark.parametrize("name", ["Bandit", "BanditPhoenix"])
def test_a_bandits_prompt_does_not_tell_which_arm_is_which(small, name, encoder, style):
    env, params = envs_jax.make(name)
    task = build.make_task(name, env, params, PromptConfig(style=style, encoder=encoder), small)
    assert not any(arm in prefix_text(task.prompt, small) for arm in env.actions)
    states = [env.reset_env(jax.random.key(seed), params)[1] for seed in range(8)]
    texts = [env.render(state, params) for state in states]
    low, high = env.actions
    assert {text.index(low) < text.index(high) for text in texts} == {True, False}
