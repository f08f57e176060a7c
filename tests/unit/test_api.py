"""The Python API, on a run folder that was made without training."""

import math

import chex
import jax
import made_run
import numpy as np
import pytest

from agentrl_jax.api import load_policy, rollout
from agentrl_jax.errors import UserError
from envs_jax.splits import Split

MODEL = "layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16"


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return load_policy(made_run.write_run(tmp_path_factory.mktemp("api") / "run", MODEL))


@pytest.fixture(scope="module")
def trajectory(policy):
    return rollout(policy, 3, seed=5)


def test_a_policy_carries_its_run_and_configuration(policy):
    assert policy.iteration == 7
    assert policy.run.name == "run"
    assert policy.config.tasks[0].env == "FrozenLake"


def test_an_episode_does_not_depend_on_how_many_are_played(policy, trajectory):
    more = rollout(policy, 4, seed=5)
    chex.assert_trees_all_close(trajectory, jax.tree.map(lambda x: x[:3], more), rtol=0, atol=1e-5)
    assert not np.array_equal(trajectory.response.tokens, rollout(policy, 3, seed=6).response.tokens)


def test_the_split_says_which_levels_are_played(policy, trajectory):
    others = rollout(policy, 3, seed=5, split=Split.TRAIN)
    assert not np.array_equal(trajectory.turn.state_hash[:, 0], others.turn.state_hash[:, 0])


def test_transcripts_are_the_text_of_the_tokens(policy, trajectory):
    texts = policy.transcripts(trajectory)
    assert len(texts) == 3
    for index, text in enumerate(texts):
        assert text["task"] == "FrozenLake"
        assert len(text["turns"]) == trajectory.num_turns[index]
        response = trajectory.response
        sampled = response.tokens[index, 0, : response.length[index, 0]].tolist()
        assert text["turns"][0]["response"] == policy.tokenizer.decode(sampled, skip_special=False)
        assert text["return"] == trajectory.turn.reward[index].sum()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("episodes", 0),
        ("task", 1),
        ("episodes", 2.5),
        ("temperature", -0.5),
        ("temperature", math.nan),
        ("seed", 2**33),
        ("split", 7),
        ("split", Split.ANY),
    ],
)
def test_arguments_out_of_range_are_refused(policy, name, value):
    with pytest.raises(UserError) as refused:
        rollout(policy, **{name: value})
    assert refused.value.key == name
    assert refused.value.value is value


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError) as refused:
        load_policy(tmp_path)
    assert refused.value.key == str(tmp_path)
