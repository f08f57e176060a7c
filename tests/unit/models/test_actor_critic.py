"""Policy and critic: scores of tokens, what the critic reads, which parameters are trained."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_decoder import CONFIG, LENGTH, ROWS, lively_params, slow_logits

from agentrl_jax.models import actor_critic, cached_decoder, decoder, lora, token_scores
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.models.kv_cache import init_cache
from agentrl_jax.models.lora import LoraConfig


@pytest.fixture(scope="module")
def params():
    return lively_params(CONFIG)


@pytest.fixture(scope="module")
def tokens():
    return jax.random.randint(jax.random.key(1), (ROWS, LENGTH), 0, CONFIG.vocab_size)


score_tokens = jax.jit(actor_critic.score_tokens, static_argnums=1)
values = jax.jit(actor_critic.values, static_argnums=1)
score_alone = jax.jit(actor_critic.logprobs, static_argnums=1)
forward = jax.jit(decoder.forward, static_argnums=1)

POSITION = jnp.array([[1, 4, 10], [1, 1, 2], [7, 8, 9]])


def test_token_scores_equal_log_softmax_and_entropy(params, tokens):
    """Only at the chosen positions; a row's temperature divides its logits; a greedy row is scored at temperature 1."""
    model = ActorCritic(decoder=CONFIG, critic="none")
    temperature = jnp.array([1.0, 0.5, 0.0])
    scores = score_tokens({"policy": params}, model, tokens, POSITION, temperature)
    for row, divisor in enumerate((1.0, 0.5, 1.0)):
        logits = slow_logits(params, CONFIG, np.asarray(tokens[row])) / divisor
        logprobs = logits - np.log(np.sum(np.exp(logits), axis=1, keepdims=True))
        for slot, j in enumerate(np.asarray(POSITION[row])):
            before = logprobs[j - 1]
            assert scores.logprob[row, slot] == pytest.approx(before[tokens[row, j]], abs=3e-4)
            assert scores.entropy[row, slot] == pytest.approx(-np.sum(np.exp(before) * before), abs=3e-4)
    np.testing.assert_array_equal(scores.value, np.zeros(POSITION.shape))
    alone = score_alone({"policy": params}, ActorCritic(decoder=CONFIG, critic="shared"), tokens, POSITION, temperature)
    np.testing.assert_allclose(alone, scores.logprob, rtol=1e-5)


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_critic_reads_the_tokens_before(critic, tokens):
    """Value j does not depend on token j or later ones; a new head outputs 0; scores and `values` agree."""
    model = ActorCritic(decoder=CONFIG, critic=critic)
    params = actor_critic.init_params(jax.random.key(0), model)
    position = jnp.tile(jnp.arange(1, LENGTH), (ROWS, 1))
    assert not np.asarray(values(params, model, tokens, position)).any()
    params["critic"]["head"] = jax.random.normal(jax.random.key(5), (CONFIG.embed_dim,))
    value = values(params, model, tokens, position)
    chex.assert_equal_shape([value, position])
    other = values(params, model, tokens.at[:, 6:].set(1), position)
    np.testing.assert_array_equal(value[:, :6], other[:, :6])
    assert not np.allclose(value[:, 6:], other[:, 6:])
    scores = score_tokens(params, model, tokens, position, jnp.ones(ROWS))
    np.testing.assert_allclose(scores.value, value, atol=1e-6)
    assert ("decoder" in params["critic"]) == (critic == "separate")


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_value_loss_reaches_the_policy_only_through_a_shared_decoder(critic, tokens):
    model = ActorCritic(decoder=CONFIG, critic=critic)
    params = actor_critic.init_params(jax.random.key(0), model)
    params["critic"]["head"] = jnp.ones(CONFIG.embed_dim)
    grads = jax.grad(lambda p: jnp.sum(values(p, model, tokens, POSITION)))(params)
    touched = any(np.asarray(x).any() for x in jax.tree.leaves(grads["policy"]))
    assert touched == (critic == "shared")


def test_no_critic_has_no_parameters(tokens):
    model = ActorCritic(decoder=CONFIG, critic="none")
    params = actor_critic.init_params(jax.random.key(0), model)
    assert set(params) == {"policy"}
    np.testing.assert_array_equal(values(params, model, tokens, POSITION), np.zeros(POSITION.shape))


@pytest.fixture(scope="module")
def adapted():
    """A policy with an adapter that has an effect, and a critic with a separate adapter."""
    model = ActorCritic(decoder=CONFIG, critic="separate", lora=LoraConfig(rank=3, alpha=6.0))
    params = actor_critic.from_decoder(jax.random.key(7), lively_params(CONFIG), model)
    noise = iter(jax.random.split(jax.random.key(8), 100))

    def moved(tree):
        return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(next(noise), x.shape), tree)

    return model, {**params, "policy": moved(params["policy"]), "critic": moved(params["critic"])}


def test_a_fresh_adapter_changes_no_bit(params, tokens):
    model = ActorCritic(decoder=CONFIG, critic="none", lora=LoraConfig(rank=2, alpha=4.0))
    adapted = actor_critic.from_decoder(jax.random.key(1), params, model)
    scores = [
        score_tokens(p, m, tokens, POSITION, jnp.ones(ROWS)).logprob
        for p, m in ((adapted, model), ({"policy": params}, dataclasses.replace(model, lora=None)))
    ]
    np.testing.assert_array_equal(*scores)


def test_adapters_are_low_rank_changes_of_the_matrices(adapted, tokens):
    """Attached and merged agree with the formula, for the policy and for the critic's own decoder."""
    model, params = adapted
    changed = dict(params["frozen"]["layers"])
    for name, pair in params["policy"].items():
        changed[name] = changed[name] + 2.0 * np.einsum("nir,nro->nio", pair["a"], pair["b"])
    expected = forward(params["frozen"] | {"layers": changed}, CONFIG, tokens)
    attached = actor_critic.policy_decoder(params, model)
    merged = lora.merge(params["frozen"], params["policy"], model.lora)
    for whole in (attached, merged):
        np.testing.assert_allclose(forward(whole, CONFIG, tokens), expected, atol=2e-5, rtol=2e-4)
    alone = dataclasses.replace(model, lora=None)
    own = {
        "policy": merged,
        "critic": params["critic"] | {"decoder": lora.merge(params["frozen"], params["critic"]["decoder"], model.lora)},
    }
    np.testing.assert_allclose(
        values(params, model, tokens, POSITION),
        values(own, alone, tokens, POSITION),
        atol=2e-4,
    )


def test_steps_through_the_cache_read_the_adapter(adapted, tokens):
    model, params = adapted

    @jax.jit
    def read(params):
        attached = actor_critic.policy_decoder(params, model)
        start, count = jnp.zeros(ROWS, jnp.int32), jnp.full(ROWS, LENGTH)
        prepared, cache = cached_decoder.prepare_for_decode(attached, CONFIG), init_cache(CONFIG, ROWS, LENGTH)
        hidden, _ = cached_decoder.forward_with_cache(prepared, CONFIG, cache, tokens, start, count)
        return hidden, decoder.forward(attached, CONFIG, tokens)

    np.testing.assert_allclose(*read(params), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("rank", "targets", "words"), [(0, lora.TARGETS, "rank 0"), (2, ("query", "mouth"), "mouth"), (2, (), "some of")]
)
def test_impossible_adapters_are_refused(rank, targets, words):
    with pytest.raises(ValueError, match=words):
        LoraConfig(rank=rank, alpha=1.0, targets=targets)


@pytest.mark.parametrize("tied", [False, True])
def test_frozen_layers_have_no_gradient_and_the_others_the_same(tokens, tied):
    config = dataclasses.replace(CONFIG, num_layers=3, tied_embeddings=tied, windows=(0, 4, 0))
    whole = lively_params(config, seed=5)
    model = ActorCritic(decoder=config, critic="none", frozen_layers=2)
    params = actor_critic.from_decoder(jax.random.key(0), whole, model)
    assert ("embedding" in params["policy"], "lm_head" in params["policy"]) == (False, not tied)

    def loss(policy, model, base):
        scores = score_tokens({"policy": policy} | base, model, tokens, POSITION, jnp.ones(ROWS))
        return jnp.sum(scores.logprob)

    gradient = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    value, grads = gradient(params["policy"], model, {"frozen": params["frozen"]})
    expected, full = gradient(whole, dataclasses.replace(model, frozen_layers=0), {})
    assert value == pytest.approx(float(expected), rel=1e-5)
    wanted = {name: x for name, x in full.items() if name != "embedding"}
    wanted["layers"] = jax.tree.map(lambda x: x[2:], full["layers"])
    chex.assert_trees_all_close(grads, wanted, rtol=2e-3, atol=2e-4)


def test_chunks_of_tokens_change_no_score_and_no_gradient(params, tokens, monkeypatch):
    """Four tokens at a time, with a last chunk that is not full."""
    model = ActorCritic(decoder=CONFIG, critic="none")
    temperature = jnp.array([1.0, 0.5, 0.0])

    def run(params):
        scores = actor_critic.score_tokens({"policy": params}, model, tokens, POSITION, temperature)
        return jnp.sum(scores.logprob * jnp.arange(9.0).reshape(3, 3)) + jnp.sum(scores.entropy), scores

    whole = jax.jit(lambda params: jax.grad(run, has_aux=True)(params))(params)
    monkeypatch.setattr(token_scores, "LOGITS_AT_ONCE", 4 * CONFIG.vocab_size)
    in_chunks = jax.jit(lambda params: jax.grad(run, has_aux=True)(params))(params)
    chex.assert_trees_all_close(whole, in_chunks, rtol=1e-4, atol=1e-4)
