"""Responses scored under each other's prompts: against one plain forward pass per pair, on a mesh, and in a run."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_run
import toy_agent

from agentrl_jax.learner import prompt_information as dependence
from agentrl_jax.learner.prompt_information import PromptInformationConfig
from agentrl_jax.models import decoder
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.engine import rollout
from agentrl_jax.setup import build
from agentrl_jax.setup.programs import Programs
from agentrl_jax.text.thought import compile_thought
from agentrl_jax.text.tokenizer import padded

GROUPS, GROUP_SIZE = 6, toy_agent.GROUP_SIZE
CONFIG = toy_agent.CONFIG.replace(model=toy_agent.CONFIG.model.replace(heads=4, kv_heads=2))
MODEL = build.build_model(CONFIG, padded(toy_agent.TOKENIZER, 480))
PARAMS = {"policy": toy_agent.talkative_params(5, MODEL)["policy"]}
START = toy_agent.talkative_params(6, MODEL)["policy"]
TEMPERATURE = jnp.full(GROUPS * GROUP_SIZE, 0.8)
KEY = jax.random.key(3)
BASE = PromptInformationConfig(pairs=9, group_size=GROUP_SIZE, context="full", context_tokens=0, thought=None)
CONTEXTS = ("full", pytest.param("single_turn", marks=pytest.mark.slow))
RUN = """
tasks: [{env: FrozenLake, groups: 4}]
prompt: {think: true, max_turns: 2, max_actions_per_turn: 2, max_actions: 10, max_response_tokens: 9}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
rollout: {group_size: 2}
algo: {preset: starpo_s, filter: {ratio: 0.5}}
train: {iterations: 4, checkpoint_every: 3, validate_every: 0, validation_episodes: 8, mutual_information_every: 2}
evaluation: {episodes: 8}
"""


@pytest.fixture(scope="module")
def play():
    """Function from a context to a trajectory of both tasks, at temperature 0.8."""

    @functools.cache
    def run(context):
        engine = toy_agent.engine_config(group_size=GROUP_SIZE, context=context)
        program = jax.jit(
            lambda params, key, ids, settings: rollout(
                params, MODEL.decoder, toy_agent.BATCHED_ENV, engine, key, ids, settings
            )
        )
        settings = toy_agent.settings(GROUPS * GROUP_SIZE, temperature=TEMPERATURE)
        return program(PARAMS["policy"], jax.random.key(7), toy_agent.mixed_ids(GROUPS, GROUP_SIZE), settings)[0]

    return run


@functools.cache
def program_on(devices, fsdp, tensor, config):
    programs = Programs(make_mesh(devices, fsdp=fsdp, tensor=tensor))
    return programs, programs.mutual_information(MODEL, config)


def measured(trajectory, config, reference=START, devices=1, fsdp=1, tensor=1, key=KEY):
    programs, program = program_on(devices, fsdp, tensor, config)
    params, reference = (
        jax.device_put(tree, programs.placement(tree, MODEL.decoder)) for tree in (PARAMS, {"policy": reference})
    )
    found = program(params, reference["policy"], trajectory, TEMPERATURE, key)
    return {name: float(value) for name, value in found.items()}


def seen(trajectory, episode, turn, context):
    """Tokens of the model's context before a response, as a list."""
    tokens = trajectory.prompt[episode, : trajectory.prompt_length[episode]].tolist()
    for t in range(0 if context == "full" else turn, turn + 1):
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


def slowly(policy, prompt, response):
    row = np.zeros(WIDTH, np.int32)
    row[: len(prompt) + len(response)] = [*prompt, *response]
    return np.asarray(plain(policy, jnp.asarray(row)))[len(prompt) - 1 : len(prompt) + len(response) - 1]


def samples(trajectory, config):
    """Both samples of a measurement with `KEY`, with the context of each."""
    played = trajectory.turn_mask
    return (
        (dependence.first_turns(played[:, 0], jax.random.fold_in(KEY, 0), config), "single_turn"),
        (dependence.any_turns(played, jax.random.fold_in(KEY, 1), config), config.context),
    )


@pytest.mark.parametrize("context", CONTEXTS)
def test_scores_are_those_of_a_forward_pass_for_each_pair(play, context):
    trajectory, config = play(context), dataclasses.replace(BASE, context=context)
    found = measured(trajectory, config)
    for name, (sample, seen_in) in zip(("first_turn", "trajectory"), samples(trajectory, config)):
        prompts = [seen(trajectory, int(e), int(t), seen_in) for e, t in zip(sample.prompt_episode, sample.prompt_turn)]
        texts = [said(trajectory, int(e), int(t)) for e, t in zip(sample.episode, sample.turn)]
        scores = np.array([[slowly(PARAMS["policy"], x, z).sum() for x in prompts] for z in texts])
        matched = scores[np.arange(len(texts)), sample.own]
        marginal = np.log(np.mean(np.exp(scores), axis=1))
        assert found[f"collapse/{name}_response_pairs"] == len(texts)
        assert found[f"collapse/{name}_response_prompts"] == len(prompts)
        assert found[f"collapse/{name}_response_mi"] == pytest.approx(np.mean(matched - marginal), abs=2e-4)
        assert found[f"collapse/{name}_response_marginal_entropy"] == pytest.approx(-np.mean(marginal), abs=2e-4)
        # Under its own prompt, a response has the log-probability with which it was sampled.
        drawn = np.sum(np.asarray(trajectory.response.logprob)[sample.episode, sample.turn], axis=-1)
        assert found[f"collapse/{name}_response_conditional_entropy"] == pytest.approx(-np.mean(drawn), abs=2e-4)
    then = [slowly(START, x, z) for x, z in zip(prompts, texts)]
    now = [slowly(PARAMS["policy"], x, z) for x, z in zip(prompts, texts)]
    ratio = np.clip(np.concatenate(then) - np.concatenate(now), -20, 20)
    assert found["actor/kl"] == pytest.approx(np.mean(np.clip(np.expm1(ratio) - ratio, -10, 10)), rel=1e-3)
    assert measured(trajectory, config, reference=PARAMS["policy"])["actor/kl"] == pytest.approx(0.0, abs=1e-6)


def test_samples_are_balanced_and_uniform(play):
    trajectory = play("full")
    many = dataclasses.replace(BASE, pairs=13)
    first, _ = samples(trajectory, many)[0]
    chex.assert_shape(first.episode, (12,))
    np.testing.assert_array_equal(np.bincount(first.episode // GROUP_SIZE), np.full(GROUPS, 2))
    assert len(set(first.episode.tolist())) == 12
    np.testing.assert_array_equal(first.episode // GROUP_SIZE, first.prompt_episode[first.own] // GROUP_SIZE)
    few, _ = samples(trajectory, dataclasses.replace(BASE, pairs=4))[0]
    assert len(set((few.episode // GROUP_SIZE).tolist())) == 4
    keys = jax.random.split(jax.random.key(0), 400)
    drawn = jax.jit(jax.vmap(lambda key: dependence.any_turns(trajectory.turn_mask, key, BASE)))(keys)
    assert np.all(drawn.turn < trajectory.num_turns[drawn.episode])
    number = int(np.argmax(trajectory.num_turns))
    turns = np.bincount(np.asarray(drawn.turn)[np.asarray(drawn.episode) == number], minlength=toy_agent.TURNS)
    # An episode is expected 400 x 9 / 24 times, and each of its three turns a third of that.
    assert turns.sum() == pytest.approx(150, abs=45)
    np.testing.assert_allclose(turns, turns.sum() / toy_agent.TURNS, atol=25)


@pytest.mark.slow
def test_a_mesh_measures_the_same(play):
    """Six and nine prompts for four replicas, whose matrices are sharded over two devices each."""
    trajectory = play("full")
    one, spread = measured(trajectory, BASE), measured(trajectory, BASE, devices=8, fsdp=2, tensor=2)
    assert one.keys() == spread.keys()
    for name, value in one.items():
        assert spread[name] == pytest.approx(value, rel=1e-4, abs=2e-4), name


def test_thoughts_are_scored_apart(play):
    """The sampled responses are replaced by ones with a thought, with an empty one, and with one that is not closed."""
    trajectory = play("full")
    texts = ("Up</think>Up", "</think>Down", "UpUpUp", "DownUp</think>")
    rows = [toy_agent.vocabulary(texts[i % len(texts)]) for i in range(GROUPS * GROUP_SIZE)]
    tokens, length = (
        np.zeros(trajectory.response.tokens.shape, np.int32),
        np.zeros(trajectory.response.length.shape, int),
    )
    for episode, row in enumerate(rows):
        tokens[episode, :, : len(row)] = row
        length[episode] = np.where(trajectory.turn_mask[episode], len(row), 0)
    response = trajectory.response.replace(tokens=jnp.asarray(tokens), length=jnp.asarray(length, jnp.int32))
    trajectory = trajectory.replace(response=response)
    config = dataclasses.replace(BASE, pairs=24, thought=compile_thought(toy_agent.TOKENIZER, forced=True))
    found = measured(trajectory, config)
    spoken = np.isin(np.arange(GROUPS * GROUP_SIZE) % len(texts), [0, 3])
    turns = np.asarray(trajectory.num_turns)
    assert found["collapse/valid_thinking_rate"] == pytest.approx(np.sum(turns * spoken) / np.sum(turns))
    assert found["collapse/first_turn_pairs"] == GROUPS * GROUP_SIZE / 2
    assert found["collapse/first_turn_response_pairs"] == GROUPS * GROUP_SIZE
    expected = []
    for episode in np.flatnonzero(spoken):
        inside = len(toy_agent.vocabulary(texts[episode % len(texts)].split("</think>")[0]))
        prompt = seen(trajectory, episode, 0, "single_turn")
        expected.append(slowly(PARAMS["policy"], prompt, rows[episode])[:inside].sum())
    assert found["collapse/first_turn_conditional_entropy"] == pytest.approx(-np.mean(expected), rel=1e-4)
    silent = trajectory.replace(response=response.replace(length=jnp.minimum(response.length, 1)))
    found = measured(silent, config)
    assert np.isnan(found["collapse/first_turn_mi"])
    assert np.isfinite(found["collapse/first_turn_response_mi"])


def test_a_run_measures(tmp_path):
    file = tiny_run.write_config(tmp_path, RUN)
    code, _, err = tiny_run.command("train", file, "--run_dir", str(tmp_path / "run"))
    assert (code, err) == (0, "")
    rows = [row for row in tiny_run.metrics(tmp_path / "run") if row["stage"] == "rl"]
    assert [row["iteration"] for row in rows if "collapse/first_turn_response_mi" in row] == [1, 2, 4]
    for row in rows[:2]:
        assert (
            row["collapse/first_turn_response_mi"] <= row["collapse/first_turn_response_mi_bound"] <= np.log(4) + 1e-6
        )
        assert (row["collapse/first_turn_response_pairs"], row["collapse/trajectory_response_pairs"]) == (8, 8)
        assert 0.0 <= row["collapse/valid_thinking_rate"] <= 1.0
    assert rows[0]["actor/kl"] == pytest.approx(0.0, abs=1e-6)
    assert rows[1]["actor/kl"] > 1e-6


def test_one_group_is_refused(tmp_path):
    file = tiny_run.write_config(tmp_path)
    words = ("--tasks", '[{"env": "FrozenLake", "groups": 1}]', "--algo.filter", "none")
    code, _, err = tiny_run.command("train", file, *words, "--train.mutual_information_every", "5")
    assert code == 2
    assert "compares groups, but there is one" in err
