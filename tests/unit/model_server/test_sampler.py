import jax
import jax.numpy as jnp
import made_run
import numpy as np
import pytest
from echo_sampler import Echo

from agentrl_jax.model_server.batcher import Batcher, QueueFull
from agentrl_jax.model_server.sampler import Sampler, SampleRequest, padded_sizes
from agentrl_jax.model_server.truncation import truncate
from agentrl_jax.models import decoder
from agentrl_jax.text.grammar import GrammarTable

SHAPE = made_run.SHAPE
PROMPTS = ((5, 9, 14), tuple(range(10, 60)), tuple(range(3, 80)))
STOPS = (1, 7)


@pytest.fixture(scope="module")
def params():
    return decoder.init_params(jax.random.key(2), SHAPE)


@pytest.fixture(scope="module")
def sampler(params):
    return Sampler(params, SHAPE, STOPS, context=128, max_tokens=16, max_rows=4)


def test_responses_follow_their_rules_and_logprobs_are_those_of_whole_passes(sampler, params):
    """The prompts have different lengths, one of them beyond the smallest padded size."""
    after = made_run.next_logprobs(params, SHAPE, 128)
    greedy = [SampleRequest(prompt, 6, 0.0, seed=0) for prompt in PROMPTS]
    hot = SampleRequest(PROMPTS[0], 16, 3.0, seed=9)
    restricted = [hot, hot._replace(top_k=3), hot._replace(top_p=0.4), hot._replace(top_k=1)]
    for requests in ([*greedy, greedy[0]._replace(temperature=50.0)], restricted):
        together = sampler(requests)
        assert len({tuple(sampled.tokens) for sampled in together}) == 4
        for request, sampled in zip(requests, together, strict=True):
            ids = list(request.prompt)
            for token, logprob in zip(sampled.tokens, sampled.logprobs, strict=True):
                logprobs = after(ids)
                assert logprob == pytest.approx(float(logprobs[token]), abs=1e-4)
                likelier = logprobs > logprobs[token] + 1e-4
                assert jnp.sum(likelier) < ((request.top_k or SHAPE.vocab_size) if request.temperature else 1)
                probs = jax.nn.softmax(logprobs / (request.temperature or 1.0))
                assert jnp.sum(likelier * probs) < request.top_p + 1e-4
                ids.append(token)
            assert sampled.ended == (sampled.tokens[-1] in STOPS)
            assert sampled.ended or len(sampled.tokens) == request.max_tokens
            assert not set(sampled.tokens[:-1]) & set(STOPS)
    assert [sampler([request])[0].tokens for request in restricted] == [sampled.tokens for sampled in together]
    assert sampler(restricted) == together
    assert together[3].tokens == sampler([hot._replace(temperature=0.0)])[0].tokens


def test_a_row_may_end_at_its_answer(params, sampler):
    """A made-up format, whose answer closes with the third token of a response; another row goes on."""
    request = SampleRequest(PROMPTS[1], 8, 1.0, seed=2**63 - 1)
    (whole,) = sampler([request])
    assert len(set(whole.tokens)) == 8
    closing, end = whole.tokens[2], 3
    zeros = jnp.zeros((2, 2), jnp.int32)
    classes = jnp.zeros(SHAPE.vocab_size, jnp.int32).at[closing].set(1)
    states = {"start_state": 0, "closed_state": 1, "max_actions": 1}
    table = GrammarTable(classes, jnp.array([[0, 1], [1, 1]], jnp.int32), zeros, zeros, zeros[:1], **states)
    stopping = Sampler(params, SHAPE, STOPS, context=128, max_tokens=16, max_rows=4, grammars=(table,))
    found = stopping([request, request._replace(to_answer=True), request._replace(to_answer=True, max_tokens=1)])
    assert found[0].tokens == whole.tokens
    assert (found[1].tokens, found[1].ended) == (whole.tokens[:end], True)
    assert found[1].logprobs == found[0].logprobs[:end]
    assert (found[2].tokens, found[2].ended) == (whole.tokens[:1], False)


PROBS = (0.15, 0.4, 0.05, 0.3, 0.1)
KEPT = {  # tokens that are left by temperature, top_k and top_p
    (1.0, 0, 1.0): {0, 1, 2, 3, 4}, (1.0, 5, 0.99): {0, 1, 2, 3, 4}, (1.0, 2**31 - 1, 0.9): {0, 1, 3, 4},
    (1.0, 2, 1.0): {1, 3}, (1.0, 0, 0.6): {1, 3}, (1.0, 0, 0.75): {0, 1, 3}, (1.0, 0, 0.0): {1}, (1.0, 1, 1.0): {1},
    # The temperature comes first, then top_k, of whose tokens top_p has the probabilities.
    (2.0, 0, 0.6): {0, 1, 3}, (1.0, 3, 0.8): {1, 3}, (0.0, 3, 0.5): {1, 3},
    (1e-42, 3, 0.3): {1},  # logits over this temperature are infinite
}  # fmt: skip


def columns(rules):
    return map(jnp.array, zip(*rules, strict=True))


def test_the_tokens_that_are_left_keep_their_logits():
    logits = np.log(np.float32([PROBS] * len(KEPT)))
    found = np.asarray(jax.jit(truncate)(logits, *columns(KEPT)))
    left = found > -np.inf
    assert {rule: {*np.flatnonzero(row).tolist()} for rule, row in zip(KEPT, left)} == KEPT
    assert (found[left] == logits[left]).all()
    # Those as likely as the last one are left, too.
    equal = truncate(jnp.array([[1.0, 3.0, 1.0, 1.0, 0.0], [0.0] * 5]), *columns([(1.0, 2, 1.0), (1.0, 0, 0.5)]))
    assert (np.asarray(equal) > -np.inf).tolist() == [[True, True, True, True, False], [True] * 5]


def test_without_a_rule_nothing_is_sorted():
    """The sort stands in a branch of the program, and what the other one gives is bit for bit the input."""
    logits = np.log(np.float32([PROBS] * 2))
    rules = [*columns([(1.0, 0, 1.0), (0.0, 3, 0.5)])]
    assert (np.asarray(jax.jit(truncate)(logits, *rules)) == logits).all()
    program = jax.make_jaxpr(truncate)(logits, *rules)
    assert "sort" not in {equation.primitive.name for equation in program.eqns}
    assert any("sort" in str(branch) for eqn in program.eqns for branch in eqn.params.get("branches", ()))


def test_few_programs_are_compiled_because_arrays_are_padded(sampler):
    counts = []
    for rows in (1, 4, 2, 3):
        sampler([SampleRequest(tuple(range(5, 8 + rows)), 3, 0.5, 0, top_k=rows, top_p=rows / 4)] * rows)
        counts.append(sampler.programs())
    assert counts[1] == counts[3] <= 4
    assert padded_sizes(1, 16) == (1, 4, 16)
    assert padded_sizes(64, 2048) == (64, 256, 1024, 2048)
    assert padded_sizes(64, 20) == (20,)


def request(number):
    return SampleRequest((number,), 1, 0.0, 0)


def test_what_waits_together_is_sampled_together():
    held = Echo(held=True)
    batcher = Batcher(held, max_rows=4, max_waiting=6)
    first = batcher.submit([request(0)])
    assert held.entered.wait(20)
    waiting = [batcher.submit([request(number)]) for number in range(1, 6)]
    with pytest.raises(QueueFull, match="5 responses wait") as full:
        batcher.submit([request(6), request(7)])
    assert full.value.seconds >= 1
    waiting[1][0].cancel()
    held.gate.set()
    assert [future.result(20).tokens for future in first] == [[0]]
    assert [waiting[number][0].result(20).tokens for number in (0, 2, 3, 4)] == [[1], [3], [4], [5]]
    assert held.sizes == [1, 4]
    assert (batcher.dispatches, batcher.rows, len(batcher)) == (2, 5, 0)
    batcher.close(20)


def test_a_failure_reaches_those_who_wait_and_the_end_cancels_what_waits():
    held = Echo(failing=(1,))
    batcher = Batcher(held, max_rows=1, max_waiting=6)
    with pytest.raises(RuntimeError, match="EXHAUSTED"):
        batcher.submit([request(2)])[0].result(20)
    assert batcher.submit([request(3)])[0].result(20).tokens == [3]
    held.gate.clear(), held.entered.clear()
    running, waiting = (batcher.submit([request(number)])[0] for number in (0, 1))
    assert held.entered.wait(20)
    batcher.close(0)
    assert waiting.cancelled()
    held.gate.set()
    assert running.result(20).tokens == [0]
