import math

import chex
import made_run
import numpy as np
import pytest
from refusing import refusal

from agentrl_jax.api import load_policy, rollout
from agentrl_jax.model_server.sampler import SampleRequest
from agentrl_jax.model_server.served_model import load_served
from envs_jax.splits import Split


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return load_policy(made_run.write_run(tmp_path_factory.mktemp("api") / "run"))


@pytest.fixture(scope="module")
def trajectory(policy):
    return rollout(policy, 3, seed=5)


def test_an_episode_depends_on_seed_and_split(policy, trajectory):
    chex.assert_trees_all_equal(trajectory, rollout(policy, 3, seed=5))
    assert not np.array_equal(trajectory.response.tokens, rollout(policy, 3, seed=6).response.tokens)
    others = rollout(policy, 3, seed=5, split=Split.TRAIN)
    assert not np.array_equal(trajectory.turn.state_hash[:, 0], others.turn.state_hash[:, 0])


def test_transcripts_are_the_text_of_the_tokens(policy, trajectory):
    texts = policy.transcripts(trajectory)
    assert (policy.iteration, policy.run.name, len(texts)) == (7, "run", 3)
    for index, text in enumerate(texts):
        assert text["task"] == "FrozenLake"
        assert len(text["turns"]) == trajectory.num_turns[index]
        response = trajectory.response
        sampled = response.tokens[index, 0, : response.length[index, 0]].tolist()
        assert text["turns"][0]["response"] == policy.tokenizer.decode(sampled, skip_special=False)
        assert text["return"] == trajectory.turn.reward[index].sum()


def test_the_policy_answers_a_text_or_messages_as_it_is_served(policy):
    turns = [{"role": "system", "content": "Go."}, {"role": "user", "content": "S F\nF G"}]
    answer = policy.act(turns)
    assert answer == policy.act(turns, seed=3)
    assert answer.startswith("<answer>")
    served = load_served(str(policy.run))
    sampler, prompt = policy._served[1], tuple(served.prompt_ids([("system", "Go."), ("user", "S F\nF G")]))
    (found,) = sampler([SampleRequest(prompt, policy.config.prompt.max_response_tokens, 0.0, 0)])
    assert answer == served.opening + policy.tokenizer.decode(found.tokens)
    assert policy.act("S F") == policy.act([{"role": "user", "content": "S F"}])
    assert len({policy.act("S F", temperature=2.0, seed=seed) for seed in range(4)}) > 1
    for messages in (
        [],
        [{"role": "tool", "content": "x"}],
        [{"role": "user"}],
        [{"role": "assistant", "content": ""}],
    ):
        assert refusal(policy.act, messages).key.startswith("message")
    assert refusal(policy.act, "S " * 4096).key == "messages"
    for name, value in (("temperature", math.nan), ("tokens", -1), ("tokens", 10**6)):
        assert refusal(policy.act, "S", **{name: value}).key == name


def test_arguments_out_of_range_are_refused(policy):
    some = ("episodes", 0), ("task", 1), ("episodes", 2.5), ("temperature", -0.5), ("temperature", math.nan)
    for name, value in (*some, ("seed", 2**33), ("split", 7), ("split", Split.ANY)):
        error = refusal(rollout, policy, **{name: value})
        assert error.key == name
        assert error.value is value
