import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as Spec
from slow_decoder import CONFIG, LENGTH, PARAMS, ROWS, TOKENS, lively_params

from agentrl_jax.errors import BadValue
from agentrl_jax.models import actor_critic, cached_decoder, decoder, lora
from agentrl_jax.models.kv_cache import init_cache
from agentrl_jax.parallel.mesh import SEQUENCE, make_mesh

score_tokens = jax.jit(actor_critic.score_tokens, static_argnums=1)
values = jax.jit(actor_critic.values, static_argnums=1)
forward = jax.jit(decoder.forward, static_argnums=1)

POSITION = jnp.array([[1, 4, 10], [1, 1, 2], [7, 8, 9]])


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_critic_reads_the_tokens_before(critic):
    model = actor_critic.ActorCritic(decoder=CONFIG, critic=critic)
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


ADAPTED = actor_critic.ActorCritic(decoder=CONFIG, critic="separate", lora=lora.LoraConfig(rank=3, alpha=6.0))


@jax.jit
def through_the_cache(params):
    start, count = jnp.zeros(ROWS, jnp.int32), jnp.full(ROWS, LENGTH)
    prepared, cache = cached_decoder.prepare_for_decode(params, CONFIG), init_cache(CONFIG, ROWS, LENGTH)
    return cached_decoder.forward_with_cache(prepared, CONFIG, cache, TOKENS, start, count)[0]


def test_adapters_are_low_rank_changes_of_the_matrices():
    params, draw = actor_critic.from_decoder(jax.random.key(7), PARAMS, ADAPTED), np.random.default_rng(8)
    adapted = jax.tree.map(lambda x: x + jnp.float32(0.1 * draw.standard_normal(x.shape)), params)
    adapted |= {"frozen": params["frozen"]}
    changed = dict(PARAMS["layers"])
    for name, pair in adapted["policy"].items():
        changed[name] = changed[name] + 2.0 * np.einsum("nir,nro->nio", pair["a"], pair["b"])
    expected = forward(PARAMS | {"layers": changed}, CONFIG, TOKENS)
    attached = actor_critic.policy_decoder(adapted, ADAPTED)
    merged, of_critic = (
        lora.merge(PARAMS, adapter, ADAPTED.lora) for adapter in (adapted["policy"], adapted["critic"]["decoder"])
    )
    for found in (forward(attached, CONFIG, TOKENS), forward(merged, CONFIG, TOKENS), through_the_cache(attached)):
        np.testing.assert_allclose(found, expected, atol=2e-5, rtol=2e-4)
    own = {"policy": merged, "critic": adapted["critic"] | {"decoder": of_critic}}
    wanted = values(own, dataclasses.replace(ADAPTED, lora=None), TOKENS, POSITION)
    np.testing.assert_allclose(values(adapted, ADAPTED, TOKENS, POSITION), wanted, atol=2e-4)


@pytest.mark.parametrize(
    ("rank", "targets", "key", "value"),
    [(0, lora.TARGETS, "rank", 0), (2, ("query", "mouth"), "targets", ("query", "mouth")), (2, (), "targets", ())],
)
def test_impossible_adapters_are_refused(rank, targets, key, value):
    with pytest.raises(BadValue) as refused:
        lora.LoraConfig(rank=rank, alpha=1.0, targets=targets)
    assert (refused.value.key, refused.value.value) == (key, value)


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_frozen_layers_have_no_gradient_and_the_others_the_same(tied):
    config = dataclasses.replace(CONFIG, num_layers=2, tied_embeddings=tied, windows=(0, 4))
    whole = lively_params(config, seed=5)
    model = actor_critic.ActorCritic(decoder=config, critic="none", frozen_layers=1)
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
    wanted["layers"] = jax.tree.map(lambda x: x[1:], full["layers"])
    chex.assert_trees_all_close(grads, wanted, rtol=2e-3, atol=2e-4)


def test_an_adapter_of_the_last_layers_is_zero_on_the_first():
    adapter = {"query": {"a": jnp.ones((2, 3, 1)), "b": jnp.full((2, 1, 5), 2.0)}}
    found = lora.on_all_layers(adapter, 3)["query"]
    assert (found["a"].shape, found["b"].shape) == ((5, 3, 1), (5, 1, 5))
    assert [(float(part[:3].sum()), float(part[3:].min())) for part in found.values()] == [(0.0, 1.0), (0.0, 2.0)]


def test_devices_that_share_the_positions_of_rows_give_the_scores_of_one():
    position, temperature = jnp.arange(21).reshape(3, 7), jnp.linspace(0.5, 2, 21).reshape(3, 7)
    mask = position % 3 > 0

    def score(position, temperature, mask):
        return {"a": jnp.where(mask, position * temperature, 0.0), "b": position}

    def shared(*arrays):
        return actor_critic._share_positions(score, model, *arrays)

    model = actor_critic.ActorCritic(decoder=CONFIG, critic="shared", sequence_axis=SEQUENCE)
    mesh = make_mesh(4, sequence=4)  # two positions each, and one for the last
    found = jax.jit(jax.shard_map(shared, mesh=mesh, in_specs=Spec(), out_specs=Spec()))(position, temperature, mask)
    jax.tree.map(np.testing.assert_array_equal, found, score(position, temperature, mask))


def test_devices_that_share_the_positions_of_rows_give_the_hidden_states_of_one():
    segments = jnp.cumsum(TOKENS % 5 == 0, axis=1)

    def shared(params, tokens, segments):
        return decoder.forward(params, CONFIG, tokens, segment_ids=segments, sequence_axis=SEQUENCE)[None]

    mesh = make_mesh(2, sequence=2)
    program = jax.jit(jax.shard_map(shared, mesh=mesh, in_specs=Spec(), out_specs=Spec(SEQUENCE)))
    expected = forward(PARAMS, CONFIG, TOKENS, segment_ids=segments)
    for found in program(PARAMS, TOKENS, segments):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_an_adapter_starts_uniform_and_changes_nothing():
    found = lora.init_adapter(jax.random.key(0), CONFIG, lora.LoraConfig(rank=64, alpha=1.0, targets=("query", "down")))
    for name, factors in found.items():
        bound = CONFIG.layer_shapes()[name][0] ** -0.5
        assert not factors["b"].any()
        assert -bound <= factors["a"].min() < -0.9 * bound < 0.9 * bound < factors["a"].max() <= bound
