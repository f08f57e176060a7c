"""Scripted policies of searchqa as demonstrations, and as the lines of an evaluation."""

import itertools

import jax
import numpy as np
import pytest

import envs_jax
from agentrl_jax.config import ImitationConfig, PromptConfig
from agentrl_jax.errors import BadValue
from agentrl_jax.evaluate.command_baselines import command_baselines, played_by
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.level_splits import level_splits
from agentrl_jax.setup import build
from agentrl_jax.setup.command_demonstrations import policy_of, response_tokens
from agentrl_jax.setup.demonstrations import check_imitable, demonstrations
from agentrl_jax.text.tokenizer import load_small
from envs_jax import registry
from envs_jax.splits import Split

TOKENS = load_small()
PROMPT = PromptConfig(max_turns=4, max_actions_per_turn=1, max_actions=4, max_response_tokens=24)
ENV, PARAMS = envs_jax.make("searchqa", entities=24, results=2)


def built(prompt=PROMPT):
    return CompiledEnv(tasks=(build.make_task("searchqa", ENV, PARAMS, prompt, TOKENS),))


BATCHED = built()


def imitated(plans, prompt=PROMPT):
    wanted = ImitationConfig(levels=6, steps=1, plans=plans)
    key, splits = jax.random.key(0), level_splits(BATCHED)
    found = demonstrations(BATCHED, splits, key, prompt, wanted, FULL, tokenizer=TOKENS)
    return jax.device_get(found)


def test_the_oracle_searches_the_evidence_and_answers():
    trajectory, turns = imitated("optimal")
    assert trajectory.success.tolist() == [True] * 6
    assert np.array_equal(turns, trajectory.turn_mask)
    evidence = np.asarray(trajectory.turn.info["evidence_found"])
    for episode, number in enumerate(trajectory.num_turns):
        assert trajectory.turn.actions[episode, :number, 0].tolist() == [0] * (number - 1) + [1]
        assert evidence[episode, : number - 1].all()
        for turn in range(number):
            length = trajectory.response.length[episode, turn]
            written = TOKENS.decode(trajectory.response.tokens[episode, turn, :length].tolist())
            name = "search" if turn < number - 1 else "answer"
            assert written.startswith(f"<{name}>")
            assert written.endswith(f"</{name}>")
        # The message after a command closes its turn, as after a sampled one.
        joined = trajectory.observation[episode, 1, : trajectory.observation_length[episode, 1]].tolist()
        assert TOKENS.decode(joined, skip_special=False).startswith("<|end|>")


def test_commands_have_the_tokens_of_observations_and_thoughts_are_empty():
    task = BATCHED.tasks[0]
    command = ENV.command(0, b"dero relo")
    syllables = [TOKENS.encode(part) for part in ("de", "ro", " ", "re", "lo")]
    tokens = response_tokens(task, PROMPT, command, TOKENS)
    assert tokens == [*TOKENS.encode("<search>"), *itertools.chain(*syllables), *TOKENS.encode("</search>")]
    thinking = PROMPT.replace(think=True, forced_tag=False)
    assert (
        TOKENS.decode(response_tokens(task, thinking, command, TOKENS)) == "<think></think><search>dero relo</search>"
    )
    whole = response_tokens(task, PROMPT.replace(encoder="canonical"), command, TOKENS)
    assert whole == TOKENS.encode("<search>dero relo</search>")
    assert response_tokens(task, PROMPT, ENV.null_action, TOKENS) == []


@pytest.mark.parametrize(
    ("plans", "limit", "key"), [("guess", 24, "imitation.plans"), ("always_search", 9, "max_response_tokens")]
)
def test_other_policies_and_long_commands_are_refused(plans, limit, key):
    with pytest.raises(BadValue) as refused:
        imitated(plans, PROMPT.replace(max_response_tokens=limit))
    assert refused.value.key == key


def test_what_plans_need_is_refused_for_commands():
    for name in ("random_start", "images", "hinted", "dagger_rounds"):
        with pytest.raises(BadValue) as refused:
            check_imitable(BATCHED, 24, ImitationConfig(levels=1, steps=1, **{name: 1}))
        assert refused.value.key == f"imitation.{name}"
    assert policy_of(BATCHED.tasks[0], "optimal") == list(registry.spec("searchqa").policies).index("oracle")


def test_lines_of_an_evaluation_are_played():
    keys = jax.random.split(jax.random.key(5), 24)
    found = command_baselines(BATCHED.tasks[0], keys, Split.TEST, 4)
    assert found.optimal.tolist() == [1.0] * 24
    assert found.null.tolist() == [0.0] * 24
    assert 0 < found.random.mean() < 0.6
    assert found.turns["null"].tolist() == [4.0] * 24
    assert set(found.turns["optimal"]) == {2.0, 3.0}
    success, turns = played_by(BATCHED.tasks[0], "always_search", keys, Split.TEST, 4)
    assert found.random.mean() < success.mean() < 1
    assert set(turns) == {2.0}
