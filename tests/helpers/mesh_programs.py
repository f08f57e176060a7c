"""The programs of a run on meshes, and checks that they give the results of one device."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import made_up
import numpy as np
import toy_agent
from made_up import BASE, EPISODES, KEY, ONES, PLAIN, TRAJECTORY

from agentrl_jax.learner.batch import make_batch
from agentrl_jax.learner.supervised import prepare_examples
from agentrl_jax.models.actor_critic import ActorCritic, score_tokens
from agentrl_jax.models.lora import LoraConfig
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.packing import Sequences
from agentrl_jax.setup import build
from agentrl_jax.setup.programs import Programs, total_stats

SIZES = {"vocab_size": 24, "num_layers": 2, "embed_dim": 16, "num_heads": 4, "num_kv_heads": 2, "head_dim": 4}
SHAPE = DecoderConfig(**SIZES, mlp_width=24, tied_embeddings=False, qkv_bias=True, qk_norm=True)
NO_GATHER = ActorCritic(decoder=SHAPE, critic="separate")
ADAPTERS = ActorCritic(decoder=SHAPE, critic="separate", lora=LoraConfig(rank=2, alpha=3.0), remat="dots")
TIED = dataclasses.replace(SHAPE, tied_embeddings=True)
FROZEN = ActorCritic(decoder=TIED, critic="shared", frozen_layers=1, shared_prefix_len=2, remat="full")
ODD = ActorCritic(decoder=dataclasses.replace(SHAPE, vocab_size=23), critic="separate")
"""A vocabulary that no number of devices divides."""
MODELS = {"whole": NO_GATHER, "adapters": ADAPTERS, "frozen": FROZEN, "odd": ODD}


def drawn_state(model, tx=PLAIN, reference=False):
    """A state whose reference is another policy."""
    state = made_up.fresh_state(model, tx=tx)
    other = jax.tree.map(lambda x: 0.1 * jnp.sin(jnp.arange(x.size)).reshape(x.shape), state.params["policy"])
    return state.replace(reference=other) if reference else state


@functools.cache
def programs_on(devices, fsdp, tensor, model, tx, sequence, **changes):
    programs = Programs(make_mesh(devices, fsdp=fsdp, sequence=sequence, tensor=tensor))
    return programs, programs.update(model, BASE.replace(**changes), tx)


def step_on(devices, fsdp, tensor, model, tx=PLAIN, trajectory=TRAJECTORY, sequence=1, **changes):
    """Returns what one update adds to the parameters, its metrics, and the new state."""
    programs, program = programs_on(devices, fsdp, tensor, model, tx, sequence, **changes)
    before = drawn_state(model, tx, "kl" in changes)
    state = jax.device_put(jax.tree.map(jnp.copy, before), programs.placement(before, model.decoder))
    after, metrics = program(state, trajectory, ONES, KEY, made_up.settings())
    step = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), after.params, before.params)
    return step, metrics, after


def assert_same_update(one, other):
    (wanted, known, _), (step, metrics, _) = one, other
    made_up.assert_close(wanted, step)
    for key, value in known.items():
        np.testing.assert_allclose(metrics[key], value, rtol=3e-5, atol=3e-6, err_msg=key)


def check_layout(state, fsdp, tensor):
    """The state keeps its sharding: matrices are in fsdp x tensor shards, as far as their sizes allow."""
    for tree in (state.params["policy"], state.frozen_params or {}):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            parts = leaf.size // leaf.addressable_shards[0].data.size
            names = jax.tree_util.keystr(path)
            if names.endswith("['gate']"):
                assert parts == fsdp * tensor, names


def check_update(name, devices, fsdp, tensor, sequence=1, **changes):
    spread = step_on(devices, fsdp, tensor, MODELS[name], sequence=sequence, **changes)
    assert_same_update(step_on(1, 1, 1, MODELS[name], **changes), spread)
    check_layout(spread[2], fsdp, tensor)


def check_recorded(devices, fsdp, tensor, model=NO_GATHER):
    """Advantages are those that the first episodes are trained with, and scores those before the update.

    Returns the text of the compiled update.
    """
    episodes, state = 3, drawn_state(model)
    changes = {"recorded_episodes": episodes, "minibatches": 2, "grad_accum_steps": 2}
    programs, program = programs_on(devices, fsdp, tensor, model, PLAIN, 1, **changes)
    settings = made_up.settings()
    config = BASE.replace(**changes)

    @jax.jit
    def on_one_device(state):
        batch, _, _ = make_batch(state, TRAJECTORY, ONES, settings, model, config, Shards(), None, None)
        return batch, score_tokens(state.params, model, batch.tokens, batch.position, ONES)

    batch, scores = on_one_device(state)
    placed = jax.device_put(jax.tree.map(jnp.copy, state), programs.placement(state, model.decoder))
    found = programs.recorded(model, episodes, context=FULL, context_tokens=0)(placed.params, TRAJECTORY, ONES)
    compiled = program.lower(placed, TRAJECTORY, ONES, KEY, settings).compile()
    recorded = compiled(placed, TRAJECTORY, ONES, KEY, settings)[1]["recorded"]
    mask = np.asarray(batch.mask)[:episodes].reshape(recorded.trained.shape)
    assert 0 < mask.sum() < mask.size
    np.testing.assert_array_equal(recorded.trained, mask)
    wanted = {"advantage": batch.advantage, "logprob": scores.logprob, "entropy": scores.entropy}
    for (name, value), given in zip(wanted.items(), (recorded.advantage, found.logprob, found.entropy), strict=True):
        value = np.where(mask, np.asarray(value)[:episodes].reshape(mask.shape), 0.0)
        np.testing.assert_allclose(np.where(mask, given, 0.0), value, rtol=3e-5, atol=3e-6, err_msg=name)
        assert np.abs(value).max() > 0.01
    return compiled.as_text()


def check_imitation(devices, fsdp, tensor, batch):
    draw = np.random.default_rng(0)
    tokens, mask = draw.integers(0, 24, (EPISODES, 9)), draw.random((EPISODES, 8)) < 0.5
    rows = Sequences(
        **{"tokens": jnp.asarray(tokens, jnp.int32), "response_mask": jnp.asarray(mask)},
        **{"position": jnp.tile(jnp.arange(1, 9), (EPISODES, 1)), "logprob": jnp.zeros((EPISODES, 8))},
        **{"turn": jnp.zeros((EPISODES, 8), jnp.int32), "episode": jnp.arange(EPISODES)},
        length=jnp.full(EPISODES, 9),
    )

    def imitate(devices, fsdp, tensor):
        programs = Programs(make_mesh(devices, fsdp=fsdp, tensor=tensor))
        state = drawn_state(NO_GATHER)
        state = jax.device_put(state, programs.placement(state, SHAPE))
        program = programs.imitation(NO_GATHER, PLAIN, batch=batch)
        found, _ = prepare_examples(rows, batch)
        rates = jnp.float32(0.1), jnp.float32(jnp.inf), jnp.float32(1e9)
        return program(state, programs.shard_rows(found), found.counts(), KEY, jnp.int32(3), *rates)

    (one, known), (spread, metrics) = imitate(1, 1, 1), imitate(devices, fsdp, tensor)
    made_up.assert_close(jax.tree.map(np.asarray, one.params), jax.tree.map(np.asarray, spread.params))
    np.testing.assert_allclose(metrics["imitation/grad_norm"], known["imitation/grad_norm"], rtol=1e-5)


@functools.cache
def play(devices, fsdp, tensor, rollout):
    model = toy_agent.SHARED
    params = toy_agent.talkative_params(5, model)
    ids = toy_agent.mixed_ids(16, toy_agent.GROUP_SIZE)
    rules = build.ROLLOUT_RULES[rollout]
    programs = Programs(make_mesh(devices, fsdp=fsdp, tensor=tensor), rollout_rules=rules)
    engine = toy_agent.engine_config(group_size=toy_agent.GROUP_SIZE)
    program = programs.rollout("rollout", model, toy_agent.BATCHED_ENV, engine)
    placed = jax.device_put(params, programs.placement(params, model.decoder))
    trajectory, stats = program(placed, jax.random.key(7), ids, toy_agent.settings(64))
    return trajectory, stats, programs.replicas


def check_rollout(devices, fsdp, tensor, rollout, replicas):
    trajectory, stats, played_by = play(devices, fsdp, tensor, rollout)
    known, _, _ = play(1, 1, 1, "rows")
    assert (played_by, stats.decode_steps.shape) == (replicas, (replicas,))
    assert total_stats(stats)["sampled_tokens"] == np.sum(known.response.length)
    for name in ("num_turns", "observation"):
        np.testing.assert_array_equal(getattr(trajectory, name), getattr(known, name))
    np.testing.assert_array_equal(trajectory.response.tokens, known.response.tokens)
    np.testing.assert_allclose(trajectory.response.logprob, known.response.logprob, atol=1e-4)
