"""The parts of benchmarks/tokenization.py, with a tiny random model and the shipped tokenizer."""

import sys

import chex
import jax
import jax.numpy as jnp
import made_run
import numpy as np
import pytest
from paths import ROOT

from agentrl_jax.config import decode
from agentrl_jax.models import decoder
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.setup import build
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


def test_canonical_is_the_whole_text_between_special_tokens(scripts, small):
    _, situations = scripts
    cut = [*small.encode("<ans"), *small.encode("wer>U"), small.end_of_turn_id, *small.encode("p")]
    whole = [*small.encode("<answer>U"), small.end_of_turn_id, *small.encode("p")]
    assert len(whole) < len(cut)
    assert situations.canonical(small, cut) == whole
    assert situations.canonical(small, []) == []


def test_situations_hold_the_prompt_and_an_optimal_response(scripts, small):
    _, situations = scripts
    lake, two_arms = build.build_compiled_env(CONFIG, small).tasks
    found = situations.situations(lake, small, jax.random.key(0), 6, CONFIG.prompt)
    assert len(found) == 6
    for s in found:
        board = small.decode(s.observation)
        assert small.decode(s.whole) == board
        assert len(board) == 4 * 5 - 1
        assert board.count("P") == 1
        assert s.head[: len(lake.prompt.prefix)] == lake.prompt.prefix.tolist()
        text = small.decode(s.head + s.observation + s.rest, skip_special=False)
        assert f"{board}\n" in text
        assert text.endswith("<answer>")
        assert small.decode(s.response).endswith("</answer>")
    once = CONFIG.prompt.replace(max_actions=1)
    arms = situations.situations(two_arms, small, jax.random.key(0), 6, once)
    assert [small.decode(s.response) for s in arms] == ["Teacher</answer>"] * 2  # both orders of display


def test_nats_are_sums_over_the_spans(scripts, params):
    tokenization, _ = scripts
    rows = [([5, 6, 7, 8, 9, 10], [(2, 3), (4, 6)]), ([11, 12, 13], [(1, 3)])]
    got = list(tokenization.score(params, MODEL, rows))
    for (tokens, spans), sums in zip(rows, got):
        logits = decoder.Decoder(made_run.SHAPE).apply({"params": params["policy"]}, jnp.array([tokens]))
        scores = jax.nn.log_softmax(logits[0])
        wanted = [sum(float(scores[i - 1, tokens[i]]) for i in range(*span)) for span in spans]
        np.testing.assert_allclose(sums, wanted, rtol=1e-5)


def test_measures_pair_the_three_encodings(scripts, small, params):
    tokenization, situations = scripts
    s = situations.Situation(small.encode("go"), [*small.encode("<ans"), *small.encode("wer>")], [], [], [7, 8])
    s = s._replace(whole=situations.canonical(small, s.observation), rest=small.encode("\n"))
    m = tokenization.measure(params, MODEL, small, [s, s])
    assert m.observation_tokens.tolist() == [[len(s.observation), len(s.whole)]] * 2
    assert not m.same.any()
    chex.assert_shape(m.response_nats, (2, 3))
    assert m.response_nats[0].tolist() == pytest.approx(m.response_nats[1].tolist(), rel=1e-5)
    assert np.all(m.response_nats < 0)
    assert np.all(m.observation_nats < 0)
