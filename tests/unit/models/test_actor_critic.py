"""Policy and critic: scores of tokens, what the critic reads, which parameters are trained."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_decoder import CONFIG, LENGTH, PARAMS, ROWS, TOKENS, lively_params, slow_logits

from agentrl_jax.errors import BadValue
from agentrl_jax.models import actor_critic, cached_decoder, decoder, lora
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.models.kv_cache import init_cache
from agentrl_jax.models.lora import LoraConfig

score_tokens = jax.jit(actor_critic.score_tokens, static_argnums=1)
values = jax.jit(actor_critic.values, static_argnums=1)
score_alone = jax.jit(actor_critic.logprobs, static_argnums=1)
forward = jax.jit(decoder.forward, static_argnums=1)

POSITION = jnp.array([[1, 4, 10], [1, 1, 2], [7, 8, 9]])


def test_token_scores_equal_log_softmax_and_entropy():
    """Only at the chosen positions; a row's temperature divides its logits; a greedy row is scored at temperature 1."""
    model = ActorCritic(decoder=CONFIG, critic="none")
    temperature = jnp.array([1.0, 0.5, 0.0])
    scores = score_tokens({"policy": PARAMS}, model, TOKENS, POSITION, temperature)
    for row, divisor in enumerate((1.0, 0.5, 1.0)):
        logits = slow_logits(PARAMS, CONFIG, np.asarray(TOKENS[row])) / divisor
        logprobs = logits - np.log(np.sum(np.exp(logits), axis=1, keepdims=True))
        before = logprobs[np.asarray(POSITION[row]) - 1]
        chosen = before[np.arange(3), TOKENS[row, POSITION[row]]]
        np.testing.assert_allclose(scores.logprob[row], chosen, atol=3e-4)
        np.testing.assert_allclose(scores.entropy[row], -np.sum(np.exp(before) * before, axis=1), atol=3e-4)
    assert set(actor_critic.init_params(jax.random.key(0), model)) == {"policy"}
    for value in (scores.value, actor_critic.values({"policy": PARAMS}, model, TOKENS, POSITION)):
        np.testing.assert_array_equal(value, np.zeros(POSITION.shape))
    alone = score_alone({"policy": PARAMS}, ActorCritic(decoder=CONFIG, critic="shared"), TOKENS, POSITION, temperature)
    np.testing.assert_allclose(alone, scores.logprob, rtol=1e-5)


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_critic_reads_the_tokens_before(critic):
    """Value j does not depend on token j or later ones, and trains the policy only through a shared decoder."""
    model = ActorCritic(decoder=CONFIG, critic=critic)
    params = actor_critic.init_params(jax.random.key(0), model)
    assert ("decoder" in params["critic"]) == (critic == "separate")
    assert not any(np.asarray(params["critic"][name]).any() for name in ("head", "bias"))
    params["critic"]["head"] = jax.random.normal(jax.random.key(5), (CONFIG.embed_dim,))
    position = jnp.tile(jnp.arange(1, LENGTH), (ROWS, 1))

    @jax.jit
    def gradient(params, tokens):
        def total(params):
            value = actor_critic.values(params, model, tokens, position)
            return jnp.sum(value), value

        return jax.grad(total, has_aux=True)(params)

    grads, value = gradient(params, TOKENS)
    chex.assert_equal_shape([value, position])
    _, other = gradient(params, TOKENS.at[:, 6:].set(1))
    np.testing.assert_array_equal(value[:, :6], other[:, :6])
    assert not np.allclose(value[:, 6:], other[:, 6:])
    params["critic"]["bias"] += 2.0
    scores = score_tokens(params, model, TOKENS, position, jnp.ones(ROWS))
    np.testing.assert_allclose(scores.value, value + 2.0, atol=1e-6)
    touched = any(np.asarray(x).any() for x in jax.tree.leaves(grads["policy"]))
    assert touched == (critic == "shared")


ADAPTED = ActorCritic(decoder=CONFIG, critic="separate", lora=LoraConfig(rank=3, alpha=6.0))


@pytest.fixture(scope="module")
def adapted():
    params = actor_critic.from_decoder(jax.random.key(7), PARAMS, ADAPTED)
    draw = np.random.default_rng(8)
    moved = jax.tree.map(lambda x: x + jnp.float32(0.1 * draw.standard_normal(x.shape)), params)
    return moved | {"frozen": params["frozen"]}


def test_a_fresh_adapter_changes_no_bit():
    adapted = actor_critic.from_decoder(jax.random.key(1), PARAMS, ADAPTED)
    attached = actor_critic.policy_decoder(adapted, ADAPTED)
    np.testing.assert_array_equal(*(forward(params, CONFIG, TOKENS) for params in (attached, PARAMS)))


def test_adapters_are_low_rank_changes_of_the_matrices(adapted):
    changed = dict(PARAMS["layers"])
    for name, pair in adapted["policy"].items():
        changed[name] = changed[name] + 2.0 * np.einsum("nir,nro->nio", pair["a"], pair["b"])
    expected = forward(PARAMS | {"layers": changed}, CONFIG, TOKENS)
    attached = actor_critic.policy_decoder(adapted, ADAPTED)
    merged, of_critic = (
        lora.merge(PARAMS, adapter, ADAPTED.lora) for adapter in (adapted["policy"], adapted["critic"]["decoder"])
    )
    for whole in (attached, merged):
        np.testing.assert_allclose(forward(whole, CONFIG, TOKENS), expected, atol=2e-5, rtol=2e-4)
    own = {"policy": merged, "critic": adapted["critic"] | {"decoder": of_critic}}
    wanted = values(own, dataclasses.replace(ADAPTED, lora=None), TOKENS, POSITION)
    np.testing.assert_allclose(values(adapted, ADAPTED, TOKENS, POSITION), wanted, atol=2e-4)


def test_steps_through_the_cache_read_the_adapter(adapted):
    attached = actor_critic.policy_decoder(adapted, ADAPTED)

    @jax.jit
    def read(params):
        start, count = jnp.zeros(ROWS, jnp.int32), jnp.full(ROWS, LENGTH)
        prepared, cache = cached_decoder.prepare_for_decode(params, CONFIG), init_cache(CONFIG, ROWS, LENGTH)
        return cached_decoder.forward_with_cache(prepared, CONFIG, cache, TOKENS, start, count)[0]

    np.testing.assert_allclose(read(attached), forward(attached, CONFIG, TOKENS), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("rank", "targets", "key", "value"),
    [(0, lora.TARGETS, "rank", 0), (2, ("query", "mouth"), "targets", ("query", "mouth")), (2, (), "targets", ())],
)
def test_impossible_adapters_are_refused(rank, targets, key, value):
    with pytest.raises(BadValue) as refused:
        LoraConfig(rank=rank, alpha=1.0, targets=targets)
    assert (refused.value.key, refused.value.value) == (key, value)


@pytest.mark.parametrize("tied", [False, True])
def test_frozen_layers_have_no_gradient_and_the_others_the_same(tied):
    config = dataclasses.replace(CONFIG, num_layers=3, tied_embeddings=tied, windows=(0, 4, 0))
    whole = lively_params(config, seed=5)
    model = ActorCritic(decoder=config, critic="none", frozen_layers=2)
    params = actor_critic.from_decoder(jax.random.key(0), whole, model)
    assert ("embedding" in params["policy"], "lm_head" in params["policy"]) == (False, not tied)

    def loss(policy, model, base):
        scores = actor_critic.score_tokens({"policy": policy} | base, model, TOKENS, POSITION, jnp.ones(ROWS))
        return jnp.sum(scores.logprob)

    gradient = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    value, grads = gradient(params["policy"], model, {"frozen": params["frozen"]})
    expected, full = gradient(whole, dataclasses.replace(model, frozen_layers=0), {})
    assert value == pytest.approx(float(expected), rel=1e-5)
    wanted = {name: x for name, x in full.items() if name != "embedding"}
    wanted["layers"] = jax.tree.map(lambda x: x[2:], full["layers"])
    chex.assert_trees_all_close(grads, wanted, rtol=2e-3, atol=2e-4)


def test_an_adapter_of_the_last_layers_is_zero_on_the_first():
    adapter = {"query": {"a": jnp.ones((2, 3, 1)), "b": jnp.full((2, 1, 5), 2.0)}}
    found = lora.on_all_layers(adapter, 3)["query"]
    assert (found["a"].shape, found["b"].shape) == ((5, 3, 1), (5, 1, 5))
    assert [(float(part[:3].sum()), float(part[3:].min())) for part in found.values()] == [(0.0, 1.0), (0.0, 2.0)]
