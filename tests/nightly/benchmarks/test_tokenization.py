"""benchmarks/tokenization.py plays with both encodings."""

import sys

import jax
import made_run
import pytest
from paths import ROOT

from agentrl_jax.config import decode
from agentrl_jax.models import decoder
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.text import tokenizer as tokenizers

PATH = ROOT / "benchmarks"


CONFIG = decode(
    {
        "tasks": [{"env": "FrozenLake-deterministic", "groups": 1}, {"env": "Bandit", "groups": 1}],
        "prompt": {"max_turns": 2, "max_actions_per_turn": 2, "max_actions": 6, "max_response_tokens": 8},
        "rollout": {"context": "single_turn"},
        "algo": {"preset": "starpo_grpo"},
    }
)


MODEL = ActorCritic(decoder=made_run.SHAPE, critic="none")


@pytest.fixture(scope="module")
def scripts():
    """The modules `tokenization` and `situations`, imported from the folder of the scripts."""
    sys.path.insert(0, str(PATH))
    import situations
    import tokenization

    yield tokenization, situations
    sys.path.remove(str(PATH))


@pytest.fixture(scope="module")
def small():
    return tokenizers.padded(tokenizers.load_small(), made_run.SHAPE.vocab_size)


@pytest.fixture(scope="module")
def params():
    return {"policy": decoder.init_params(jax.random.key(3), made_run.SHAPE)}


def test_play_pairs_levels_noise_and_sampling(scripts, small, params):
    """The shipped tokenizer gives the same tokens for both encodings of FrozenLake, so both must play the same."""
    tokenization, _ = scripts
    config = CONFIG.replace(tasks=CONFIG.tasks[:1])
    for how, success, formatted in tokenization.play(config, params, MODEL, small, 16):
        assert how in ("sampled", "greedy")
        assert success.shape == formatted.shape == (16, 2)
        assert (success[:, 0] == success[:, 1]).all()
        assert (formatted[:, 0] == formatted[:, 1]).all()
