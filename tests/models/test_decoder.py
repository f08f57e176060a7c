"""The decoder against a slow NumPy decoder, and its cached steps against its parallel pass."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.models import actor_critic, decoder
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.models.shape import DecoderConfig

CONFIG = DecoderConfig(
    vocab_size=23, num_layers=2, width=16, num_heads=4, num_kv_heads=2, head_dim=4, mlp_width=20, tied_embeddings=False
)
ROWS, LENGTH = 3, 11


def lively_params(config: DecoderConfig, seed: int = 0):
    """Parameters large enough that every position matters."""
    params = decoder.init_params(jax.random.key(seed), config)
    draw = np.random.default_rng(seed)
    grown = jax.tree.map(lambda x: jnp.asarray(0.2 * draw.standard_normal(x.shape), jnp.float32), params)
    norms = {name: x + 1.0 for name, x in grown["layers"].items() if name.endswith("norm")}
    return grown | {"layers": grown["layers"] | norms, "final_norm": grown["final_norm"] + 1.0}


@pytest.fixture(scope="module")
def params():
    return lively_params(CONFIG)


@pytest.fixture(scope="module")
def tokens():
    return jax.random.randint(jax.random.key(1), (ROWS, LENGTH), 0, CONFIG.vocab_size)


@pytest.fixture(scope="module")
def extend():
    def run(params, config, *args):
        return decoder.extend(decoder.unstack(params, config), config, *args)

    return jax.jit(run, static_argnums=1)


def slow_logits(params, config: DecoderConfig, tokens: np.ndarray) -> np.ndarray:
    """Logits f64[S, V] of one row, one position and one head at a time."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    size = config.head_dim

    def norm(x, scale):
        return x / np.sqrt(np.mean(x * x) + config.norm_eps) * scale

    def rotate(x, position):
        half, out = size // 2, np.empty(size)
        for i in range(half):
            angle = position * config.rope_theta ** (-2 * i / size)
            out[i] = x[i] * np.cos(angle) - x[i + half] * np.sin(angle)
            out[i + half] = x[i + half] * np.cos(angle) + x[i] * np.sin(angle)
        return out

    stream = [p["embedding"][t] for t in tokens]
    for layer in range(config.num_layers):
        w = {name: leaf[layer] for name, leaf in p["layers"].items()}
        keys, values, after = [], [], []
        for position, x in enumerate(stream):
            h = norm(x, w["attention_norm"])
            keys.append([rotate(k, position) for k in (h @ w["key"]).reshape(config.num_kv_heads, size)])
            values.append((h @ w["value"]).reshape(config.num_kv_heads, size))
            mixed = []
            for head, q in enumerate((h @ w["query"]).reshape(config.num_heads, size)):
                shared = head // (config.num_heads // config.num_kv_heads)
                q = rotate(q, position)
                scores = np.array([q @ k[shared] / np.sqrt(size) for k in keys])
                odds = np.exp(scores - scores.max())
                mixed.append(sum(o * v[shared] for o, v in zip(odds / odds.sum(), values)))
            x = x + np.concatenate(mixed) @ w["output"]
            h = norm(x, w["mlp_norm"])
            gate = h @ w["gate"]
            after.append(x + (gate / (1 + np.exp(-gate)) * (h @ w["up"])) @ w["down"])
        stream = after
    table = p["unembedding"] if "unembedding" in p else p["embedding"].T
    return np.stack([norm(x, p["final_norm"]) @ table for x in stream])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_forward_equals_the_slow_decoder(tied, kv_heads, tokens):
    config = dataclasses.replace(CONFIG, tied_embeddings=tied, num_kv_heads=kv_heads)
    params = lively_params(config, seed=3)
    fast = decoder.logits(params, decoder.forward(params, config, tokens))
    assert fast.dtype == jnp.float32
    slow = np.stack([slow_logits(params, config, row) for row in np.asarray(tokens)])
    np.testing.assert_allclose(fast, slow, atol=2e-4)


def test_declared_module_gives_the_same_logits(params, tokens):
    logits = decoder.Decoder(CONFIG).apply({"params": params}, tokens)
    np.testing.assert_array_equal(logits, decoder.logits(params, decoder.forward(params, CONFIG, tokens)))


def test_recomputation_changes_no_gradient(params, tokens):
    def loss(params, remat):
        return jnp.sum(jnp.square(decoder.forward(params, CONFIG, tokens, remat=remat)))

    kept, again = (jax.grad(loss)(params, remat) for remat in (False, True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5), kept, again)


@pytest.mark.parametrize("common", [1, 4, LENGTH - 1])
def test_first_tokens_in_common_are_computed_once_for_all(params, tokens, common):
    """Outputs and gradients of a batch whose rows begin alike."""
    alike = tokens.at[:, :common].set(tokens[0, :common])
    weight = jnp.linspace(-1.0, 1.0, LENGTH)[:, None]

    def run(params, common):
        hidden = decoder.forward(params, CONFIG, alike, common=common)
        return jnp.sum(weight * jnp.square(hidden)), hidden

    whole, shared = (jax.grad(run, has_aux=True)(params, size) for size in (0, common))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-4), whole, shared)


def test_what_comes_later_changes_nothing_before(params, tokens):
    changed = tokens.at[:, 7:].set(0)
    before, after = (decoder.forward(params, CONFIG, x) for x in (tokens, changed))
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert not np.allclose(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("chunks", [[11], [4, 7], [1] * 11, [3, 1, 1, 5, 1]], ids=str)
def test_chunks_equal_the_parallel_pass(params, tokens, extend, chunks):
    """Prefill in pieces of any length, and token by token."""
    cache = decoder.init_cache(CONFIG, ROWS, LENGTH + 3)
    seen, parts = 0, []
    for size in chunks:
        start, count = jnp.full(ROWS, seen), jnp.full(ROWS, size)
        hidden, cache = extend(params, CONFIG, cache, tokens[:, seen : seen + size], start, count)
        parts.append(hidden)
        seen += size
    np.testing.assert_allclose(
        jnp.concatenate(parts, axis=1), decoder.forward(params, CONFIG, tokens), atol=2e-5, rtol=2e-5
    )


def test_ragged_rows_equal_the_parallel_pass(params, tokens, extend):
    """Rows at different positions with different counts, padding filled with other tokens."""
    cache = decoder.init_cache(CONFIG, ROWS, LENGTH + 3)
    filled = np.zeros(ROWS, int)
    expected = decoder.forward(params, CONFIG, tokens)
    for counts in ([5, 2, 0], [0, 4, 1], [4, 0, 4], [2, 5, 4], [0, 0, 2]):
        chunk = np.full((ROWS, 5), 22)
        for row, count in enumerate(counts):
            chunk[row, :count] = tokens[row, filled[row] : filled[row] + count]
        hidden, cache = extend(params, CONFIG, cache, jnp.asarray(chunk), jnp.asarray(filled), jnp.asarray(counts))
        for row, count in enumerate(counts):
            np.testing.assert_allclose(
                hidden[row, :count], expected[row, filled[row] : filled[row] + count], atol=2e-5, rtol=2e-5
            )
        filled = filled + np.array(counts)
    assert filled.tolist() == [LENGTH] * ROWS


def test_rows_and_positions_that_are_not_written_keep_every_bit(params, tokens, extend):
    noise = jax.random.normal(jax.random.key(4), (4, ROWS, CONFIG.num_kv_heads, LENGTH, CONFIG.head_dim))
    cache = decoder.KVCache(keys=(noise[0], noise[1]), values=(noise[2], noise[3]))
    start, count = jnp.array([2, 9, 0]), jnp.array([3, 0, 1])
    _, after = extend(params, CONFIG, cache, tokens[:, :4], start, count)
    written = np.zeros((ROWS, LENGTH), bool)
    written[0, 2:5] = written[2, 0] = True
    for old, new in zip((*cache.keys, *cache.values), (*after.keys, *after.values)):
        changed = np.any(np.asarray(old != new), axis=(1, 3))
        np.testing.assert_array_equal(changed, written)


def test_old_entries_beyond_the_position_are_not_read(params, tokens, extend):
    """A slot that starts a new episode reads nothing of the old one."""
    dirty = jax.tree.map(lambda x: x + 7.0, decoder.init_cache(CONFIG, ROWS, LENGTH))
    clean = decoder.init_cache(CONFIG, ROWS, LENGTH)
    start, count = jnp.zeros(ROWS, jnp.int32), jnp.full(ROWS, 4)
    results = [extend(params, CONFIG, cache, tokens[:, :4], start, count)[0] for cache in (dirty, clean)]
    np.testing.assert_array_equal(*results)


def test_bfloat16_activations_stay_close(params, tokens):
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    hidden = decoder.forward(params, config, tokens)
    assert hidden.dtype == jnp.bfloat16
    assert decoder.logits(params, hidden).dtype == jnp.float32
    assert decoder.init_cache(config, 1, 2).keys[0].dtype == jnp.bfloat16
    exact = np.asarray(decoder.forward(params, CONFIG, tokens))
    assert np.mean(np.abs(np.asarray(hidden, np.float32) - exact)) < 0.05 * np.mean(np.abs(exact))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_dim": 3}, "head dimension 3 must be even"),
        ({"windows": (4,)}, "1 windows for 2 layers"),
        ({"num_kv_heads": 3}, "4 heads cannot be shared evenly by 3"),
    ],
)
def test_impossible_shapes_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(CONFIG, **changes)


POSITION = jnp.array([[1, 4, 10], [1, 1, 2], [7, 8, 9]])


def test_token_scores_equal_log_softmax_and_entropy(params, tokens):
    """Of the chosen positions only; a row's temperature divides its logits; a greedy row is scored at 1."""
    model = ActorCritic(decoder=CONFIG, critic="none")
    temperature = jnp.array([1.0, 0.5, 0.0])
    scores = actor_critic.score_tokens({"policy": params}, model, tokens, POSITION, temperature)
    for row, divisor in enumerate((1.0, 0.5, 1.0)):
        logits = slow_logits(params, CONFIG, np.asarray(tokens[row])) / divisor
        logprobs = logits - np.log(np.sum(np.exp(logits), axis=1, keepdims=True))
        for slot, j in enumerate(np.asarray(POSITION[row])):
            before = logprobs[j - 1]
            assert scores.logprob[row, slot] == pytest.approx(before[tokens[row, j]], abs=3e-4)
            assert scores.entropy[row, slot] == pytest.approx(-np.sum(np.exp(before) * before), abs=3e-4)
    np.testing.assert_array_equal(scores.value, np.zeros(POSITION.shape))
    alone = actor_critic.logprobs(params, ActorCritic(decoder=CONFIG, critic="shared"), tokens, POSITION, temperature)
    np.testing.assert_array_equal(alone, scores.logprob)


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_critic_reads_the_tokens_before(critic, tokens):
    """Value j does not depend on token j or later ones; a fresh head says 0; scores and `values` agree."""
    model = ActorCritic(decoder=CONFIG, critic=critic)
    params = actor_critic.init_params(jax.random.key(0), model)
    position = jnp.tile(jnp.arange(1, LENGTH), (ROWS, 1))
    assert not np.asarray(actor_critic.values(params, model, tokens, position)).any()
    params["critic"]["head"] = jax.random.normal(jax.random.key(5), (CONFIG.width,))
    value = actor_critic.values(params, model, tokens, position)
    assert value.shape == position.shape
    other = actor_critic.values(params, model, tokens.at[:, 6:].set(1), position)
    np.testing.assert_array_equal(value[:, :6], other[:, :6])
    assert not np.allclose(value[:, 6:], other[:, 6:])
    scores = actor_critic.score_tokens(params, model, tokens, position, jnp.ones(ROWS))
    np.testing.assert_allclose(scores.value, value, atol=1e-6)
    assert ("decoder" in params["critic"]) == (critic == "separate")


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_value_loss_reaches_the_policy_only_through_a_shared_decoder(critic, tokens):
    model = ActorCritic(decoder=CONFIG, critic=critic)
    params = actor_critic.init_params(jax.random.key(0), model)
    params["critic"]["head"] = jnp.ones(CONFIG.width)
    grads = jax.grad(lambda p: jnp.sum(actor_critic.values(p, model, tokens, POSITION)))(params)
    touched = any(np.asarray(x).any() for x in jax.tree.leaves(grads["policy"]))
    assert touched == (critic == "shared")


def test_no_critic_has_no_parameters(tokens):
    model = ActorCritic(decoder=CONFIG, critic="none")
    params = actor_critic.init_params(jax.random.key(0), model)
    assert set(params) == {"policy"}
    np.testing.assert_array_equal(actor_critic.values(params, model, tokens, POSITION), np.zeros(POSITION.shape))


def test_unknown_critic_is_refused():
    with pytest.raises(ValueError, match="'twin' is unknown; choose one of none, shared, separate"):
        ActorCritic(decoder=CONFIG, critic="twin")
