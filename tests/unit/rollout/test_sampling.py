import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.rollout import rng
from agentrl_jax.rollout.sampling import sample, score
from agentrl_jax.rollout.trajectory import EpisodeIds

LOGITS = jnp.array([[0.5, -1.0, 2.0, 0.0], [1.0, 1.0, -2.0, 0.5]])


def test_scores_are_log_probabilities_at_the_temperature():
    token, temperature = jnp.array([0, 3]), jnp.array([0.5, 2.0])
    scaled = np.asarray(LOGITS, np.float64) / np.asarray(temperature)[:, None]
    expected = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(score(LOGITS, temperature, token), [expected[0, 0], expected[1, 3]], rtol=1e-5)
    shifted = score(LOGITS + 500.0, temperature, token)
    np.testing.assert_allclose(shifted, score(LOGITS, temperature, token), rtol=1e-3)
    assert score(LOGITS, jnp.zeros(2), token).tolist() == [0.0, 0.0]


def test_greedy_takes_the_first_of_the_largest():
    keys = jax.random.split(jax.random.key(0), 2)
    token, logprob = sample(keys, LOGITS, jnp.array([0.0, 0.0]))
    assert token.tolist() == [2, 0]
    assert logprob.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_have_the_frequencies_of_the_distribution(temperature):
    number = 4096
    rows, at = jnp.broadcast_to(LOGITS[:1], (number, 4)), jnp.full(number, temperature)
    token, logprob = jax.jit(sample)(jax.random.split(jax.random.key(1), number), rows, at)
    p = np.exp(np.asarray(score(rows[:4], at[:4], jnp.arange(4))))
    counts = np.bincount(token, minlength=4)
    assert (np.abs(counts - number * p) < 4 * np.sqrt(number * p * (1 - p))).all()
    np.testing.assert_allclose(logprob, np.log(p)[np.asarray(token)], rtol=1e-5)


def test_every_number_of_an_episode_changes_its_keys():
    base = {"group": 1, "member": 2, "turn": 3, "token": 4}

    def keys(**changes):
        at = {name: jnp.array([value]) for name, value in (base | changes).items()}
        ids = EpisodeIds(group=at["group"], member=at["member"], task=jnp.array([0]), level=jnp.array([-1]))
        run = jax.random.key(9)
        noise = {shared: rng.noise_key(run, ids, shared=shared) for shared in (False, True)}
        found = {
            "level": rng.level_key(run, ids),
            "noise": noise[False],
            "shared": noise[True],
            "action": rng.action_key(noise[False][0], at["token"][0])[None],
            "retry": rng.retry_noise_key(noise[False]),
            "token": rng.token_key(rng.sample_key(run, ids), at["turn"], at["token"]),
        }
        return {name: tuple(jax.random.key_data(key).ravel().tolist()) for name, key in found.items()}

    usual = keys()
    assert len(set(usual.values())) == len(usual)
    depends = {name: {change for change in base if keys(**{change: 7})[name] != usual[name]} for name in usual}
    assert depends == {
        "level": {"group"},
        "noise": {"group", "member"},
        "shared": {"group"},
        "action": {"group", "member", "token"},
        "retry": {"group", "member"},
        "token": {"group", "member", "turn", "token"},
    }
    assert keys(group=2, member=1) != usual
    assert keys(turn=4, token=3)["token"] != usual["token"]
