"""Searchqa over files of the user, from a configuration to the tokens of episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import search_files
import toy_agent
from refusing import refusal

from agentrl_jax.config import load_config
from agentrl_jax.rollout import engine
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.trajectory import Response
from agentrl_jax.setup import build, build_inputs
from agentrl_jax.text.reference import parse_response

TOKENS, LENGTH, TURNS = toy_agent.TOKENIZER, 48, toy_agent.TURNS
EPISODES = (
    ["hm <search>ΣΊΣΥΦΟΣ</search>", "<answer>the Σίσυφος.</answer>"],
    ["<search>zzz</search>", "no command", "<answer>Emma</answer>"],
)
PASSAGE = 'Doc 1(Title: "Σίσυφος") Ο Σίσυφος rolls a stone.'


def config(folder, *words, questions=search_files.QUESTIONS):
    files = search_files.options(folder, questions=questions)
    given = {"tasks": [{"env": "searchqa", "groups": 8, "options": {"corpus": files["corpus"], "results": 1}}]}
    return load_config(given, ["--tasks.0.options.questions", files["questions"], *words])


def test_episodes_are_played_by_tokens(tmp_path):
    """On the last question alone, so that it is the one of each episode."""
    task = config(tmp_path, questions=search_files.QUESTIONS[2:]).tasks[0]
    prompt = toy_agent.CONFIG.prompt.replace(max_actions=9, max_response_tokens=LENGTH)
    batched_env = CompiledEnv(tasks=(build.build_task(task, prompt, TOKENS),))
    count = len(EPISODES)
    ids = build_inputs.episode_ids(group=range(count), member=[0] * count, task=[0] * count, level=[-1] * count)
    tokens, length = np.zeros((count, TURNS, LENGTH), np.int32), np.ones((count, TURNS), np.int32)
    for episode, texts in enumerate(EPISODES):
        for turn, text in enumerate(texts):
            row = TOKENS.encode(text)
            tokens[episode, turn, : len(row)], length[episode, turn] = row, len(row)
    given = Response(
        jnp.array(tokens), jnp.array(length), jnp.zeros(tokens.shape, jnp.float32), jnp.zeros(length.shape, bool)
    )
    settings = toy_agent.settings(count, max_actions=jnp.int32(9), env_params=batched_env.env_params)
    params = toy_agent.talkative_params(5)["policy"]
    engine_config = toy_agent.engine_config(max_response_tokens=LENGTH)

    @jax.jit
    def run(params, key, given):
        model = toy_agent.MODEL.decoder
        return engine.rollout(params, model, batched_env, engine_config, key, ids, settings, responses=given)[0]

    found = jax.device_get(run(params, jax.random.key(0), given))
    shown = [
        [toy_agent.text_of(row, size) for row, size in zip(found.observation[i], found.observation_length[i])]
        for i in range(count)
    ]
    assert found.turn.actions[:, :, 0].tolist() == [[0, 1, -1], [0, -1, 1]]
    assert found.turn.reward.sum(axis=1).tolist() == [1, 0]
    assert found.success.tolist() == [True, False]
    assert "who rolls a stone?" in shown[0][0]
    assert f"<information>{PASSAGE}</information>" in shown[0][1]
    assert "<information></information>" in shown[1][1]
    assert "This was no valid action." in shown[1][2]


def test_commands_of_a_dialect_are_those_of_the_grammar(tmp_path):
    task = config(tmp_path, "--tasks.0.options.dialect", "ragen").tasks[0]
    form = build.build_task(task, toy_agent.CONFIG.prompt, TOKENS).response_format
    said = parse_response(b"x <answer>search[a]b]</answer> <answer>finish[c]</answer>", form)
    assert (said.actions, said.items) == ((0,), ("a]b",))
    assert parse_response(b"<answer>finish[c]</answer>", form).actions == (1,)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("--tasks.0.options.corpus", "no.jsonl"), "no.jsonl"),
        (("--tasks.0.options.dialect", "verl"), "dialect"),
        (("--tasks.0.options.topk", "3"), "topk"),
    ],
)
def test_what_cannot_be_used_is_an_error_of_the_user(tmp_path, words, key):
    task = config(tmp_path, *words).tasks[0]
    assert refusal(build.build_task, task, toy_agent.CONFIG.prompt, TOKENS).key == key
