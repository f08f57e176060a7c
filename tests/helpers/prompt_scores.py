"""Measurements of `learner.prompt_information` on a mesh, and the same by one plain forward pass per pair."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from made_up import GROUPS, TRAJECTORY

from agentrl_jax.learner import prompt_information as dependence
from agentrl_jax.learner.prompt_information import PromptInformationConfig
from agentrl_jax.models import decoder
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN
from agentrl_jax.setup.programs import Programs

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
