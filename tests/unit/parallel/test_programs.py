"""The programs of a run on meshes `data` x `fsdp` x `sequence` x `tensor` give the same results as on one device."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import made_up
import numpy as np
import optax
import pytest
import toy_agent
from jax.sharding import PartitionSpec as Spec
from made_up import BASE, EPISODES, KEY, ONES, PLAIN, TRAJECTORY

from agentrl_jax.config.algo import FixedKl, Replay
from agentrl_jax.learner import state as states
from agentrl_jax.learner.batch import make_batch
from agentrl_jax.learner.imitation import prepare_examples
from agentrl_jax.models.actor_critic import ActorCritic, score_tokens
from agentrl_jax.models.lora import LoraConfig
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.parallel.mesh import MESH_AXES, make_mesh
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.packing import Sequences, pack_trajectories
from agentrl_jax.setup import build
from agentrl_jax.setup.programs import Programs, total_stats
from agentrl_jax.text.tokenizer import padded

SHAPE = DecoderConfig(
    vocab_size=24,
    num_layers=2,
    embed_dim=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    mlp_width=24,
    tied_embeddings=False,
    qkv_bias=True,
    qk_norm=True,
)
NO_GATHER = ActorCritic(decoder=SHAPE, critic="separate")
ADAPTERS = ActorCritic(decoder=SHAPE, critic="separate", lora=LoraConfig(rank=2, alpha=3.0), remat="dots")
FROZEN = ActorCritic(
    decoder=dataclasses.replace(SHAPE, tied_embeddings=True),
    critic="shared",
    frozen_layers=1,
    shared_prefix_len=2,
    remat="full",
)
MODELS = {"whole": NO_GATHER, "adapters": ADAPTERS, "frozen": FROZEN}

slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def drawn_state(model, tx=PLAIN, reference=False):
    """A state of small random numbers, so that no gradient is zero."""
    state = states.init_state(jax.random.key(1), model, tx, reference=False)
    draw = np.random.default_rng(2)

    def normal(x):
        return jnp.asarray(0.1 * draw.standard_normal(x.shape) + (x.ndim == 1), x.dtype)

    params = jax.tree.map(normal, state.params)
    if "critic" in params:
        params["critic"]["bias"] = jnp.float32(0.1)
    state = state.replace(params=params, frozen_params=jax.tree.map(normal, state.frozen_params))
    return state.replace(reference=jax.tree.map(normal, params["policy"])) if reference else state


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
    """Equal up to rounding: 1e-5 of each leaf's norm."""
    (wanted, known, _), (step, metrics, _) = one, other
    made_up.assert_close(wanted, step)
    for key, value in known.items():
        np.testing.assert_allclose(metrics[key], value, rtol=3e-5, atol=3e-6, err_msg=key)


@pytest.mark.parametrize(
    ("name", "devices", "fsdp", "tensor"),
    [
        slow("whole", 8, 2, 2),
        slow("whole", 2, 2, 1),
        slow("whole", 2, 1, 2),
        slow("whole", 4, 4, 1),
        slow("whole", 4, 2, 2),
        slow("whole", 4, 1, 2),
        slow("whole", 8, 1, 2),
        slow("whole", 8, 4, 2),
        slow("whole", 8, 2, 4),
        slow("whole", 8, 8, 1),
        slow("adapters", 8, 2, 2),
        slow("adapters", 4, 4, 1),
        slow("frozen", 8, 2, 2),
        slow("frozen", 4, 1, 2),
    ],
)
def test_an_update_is_that_of_one_device(name, devices, fsdp, tensor):
    """Half of the episodes have long responses, half short ones."""
    changes = {"group_size": 2} if devices // tensor > made_up.GROUPS else {}
    spread = step_on(devices, fsdp, tensor, MODELS[name], **changes)
    assert_same_update(step_on(1, 1, 1, MODELS[name], **changes), spread)
    _check_layout(spread[2], fsdp, tensor)


@pytest.mark.parametrize(("devices", "fsdp", "tensor"), [(1, 1, 1), slow(4, 2, 2), slow(8, 2, 2)])
def test_recorded_tokens_are_those_of_the_batch(devices, fsdp, tensor):
    """Advantages are those that the first episodes are trained with, and scores those before the update."""
    episodes, state = 3, drawn_state(NO_GATHER)
    programs = Programs(make_mesh(devices, fsdp=fsdp, tensor=tensor))
    config = BASE.replace(recorded_episodes=episodes)
    settings = made_up.settings()
    batch, _, _ = make_batch(state, TRAJECTORY, ONES, settings, NO_GATHER, config, Shards(), None, None)
    scores = score_tokens(state.params, NO_GATHER, batch.tokens, batch.position, ONES)
    placed = jax.device_put(jax.tree.map(jnp.copy, state), programs.placement(state, SHAPE))
    found = programs.recorded(NO_GATHER, episodes, context="full", context_tokens=0)(placed.params, TRAJECTORY, ONES)
    recorded = programs.update(NO_GATHER, config, PLAIN)(placed, TRAJECTORY, ONES, KEY, settings)[1]["recorded"]
    mask = np.asarray(batch.mask)[:episodes].reshape(recorded.trained.shape)
    assert 0 < mask.sum() < mask.size
    np.testing.assert_array_equal(recorded.trained, mask)
    wanted = {"advantage": batch.advantage, "logprob": scores.logprob, "entropy": scores.entropy}
    for (name, value), given in zip(wanted.items(), (recorded.advantage, found.logprob, found.entropy), strict=True):
        value = np.where(mask, np.asarray(value)[:episodes].reshape(mask.shape), 0.0)
        np.testing.assert_allclose(np.where(mask, given, 0.0), value, rtol=3e-5, atol=3e-6, err_msg=name)
        assert np.abs(value).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(1, 1, 1), (4, 2, 2)], ids=str)
def test_optimizer_state_on_the_host_changes_nothing(mesh):
    """With more than one step a batch, so that the loop carries it."""
    tx = states.optimizer(0.9, 0.999, 0.01)
    after = []
    for offload in (False, True):
        programs = Programs(make_mesh(mesh[0], fsdp=mesh[1], tensor=mesh[2]), offload=offload)
        program = programs.update(NO_GATHER, BASE.replace(minibatches=2), tx)
        state = drawn_state(NO_GATHER, tx)
        state = jax.device_put(jax.tree.map(jnp.copy, state), programs.placement(state, SHAPE))
        after.append(program(state, TRAJECTORY, ONES, KEY, made_up.settings())[0])
    device, host = after
    chex.assert_trees_all_equal(device, jax.device_put(host, jax.tree.map(lambda x: x.sharding, device)))
    kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(host.opt_state)}
    assert kinds == {"pinned_host"}
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(host.params)} == {"device"}


@pytest.mark.parametrize(
    ("name", "devices", "fsdp", "sequence", "tensor"),
    [
        ("whole", 8, 2, 2, 2),
        slow("whole", 4, 1, 4, 1),
        slow("whole", 8, 1, 4, 1),
        slow("adapters", 8, 2, 4, 1),
        slow("frozen", 4, 1, 2, 2),
    ],
)
def test_devices_share_the_positions_of_rows(name, devices, fsdp, sequence, tensor):
    """Half of the episodes have long responses, half short ones; microbatches are cut to the length of their rows."""
    options = {"grad_accum_steps": 2, "length_buckets": 2}
    spread = step_on(devices, fsdp, tensor, MODELS[name], sequence=sequence, **options)
    assert_same_update(step_on(1, 1, 1, MODELS[name], **options), spread)
    _check_layout(spread[2], fsdp, tensor)


@pytest.mark.slow
def test_the_whole_divergence_is_that_of_one_device():
    """Two policies that are both sharded, and all-gathered one after the other."""
    changes = {"kl": FixedKl(estimator="full")}
    one, spread = (step_on(*mesh, NO_GATHER, **changes) for mesh in ((1, 1, 1), (8, 2, 2)))
    assert_same_update(one, spread)
    assert float(one[1]["actor/kl"]) > 1e-4


@pytest.mark.slow
def test_devices_cut_their_parts_alike():
    """Each device has rows of other lengths, and needs the parameter shards of the other devices."""
    one, spread = (step_on(*mesh, NO_GATHER, grad_accum_steps=2, length_buckets=3) for mesh in ((1, 1, 1), (4, 4, 1)))
    assert_same_update(one, spread)


@pytest.mark.parametrize(("devices", "fsdp", "tensor"), [slow(8, 2, 2), slow(4, 4, 1)])
def test_a_device_with_nothing_to_learn_from_takes_part(devices, fsdp, tensor):
    """All episodes but one have no responses; that one needs the parameter shards of the other devices."""
    lengths = jnp.where(jnp.arange(EPISODES)[:, None] == 0, TRAJECTORY.response.length, 0)
    trajectory = TRAJECTORY.replace(response=TRAJECTORY.response.replace(length=lengths))
    one, spread = (step_on(*mesh, NO_GATHER, trajectory=trajectory) for mesh in ((1, 1, 1), (devices, fsdp, tensor)))
    assert 0 < one[1]["update/trained_tokens"] <= made_up.SAID * made_up.TURNS
    assert_same_update(one, spread)


def _check_layout(state, fsdp, tensor):
    """The state keeps its sharding: matrices are in fsdp x tensor shards, as far as their sizes allow."""
    for tree in (state.params["policy"], state.frozen_params or {}):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            parts = leaf.size // leaf.addressable_shards[0].data.size
            names = jax.tree_util.keystr(path)
            if names.endswith("['gate']"):
                assert parts == fsdp * tensor, names


def test_no_device_holds_the_rows_of_all_devices():
    """An update on 4 devices has its trajectories by row, and no array of all episodes' tokens."""
    changes = {"minibatches": 2, "grad_accum_steps": 2}
    programs, program = programs_on(4, 2, 1, NO_GATHER, PLAIN, 1, **changes)
    state = drawn_state(NO_GATHER)
    placed = jax.device_put(state, programs.placement(state, SHAPE))
    compiled = program.lower(placed, TRAJECTORY, ONES, KEY, made_up.settings()).compile()
    text, length = compiled.as_text(), pack_trajectories(TRAJECTORY, "full").tokens.shape[1]
    assert f"[{EPISODES // 4},{length}]" in text
    assert f"[{EPISODES},{length}]" not in text


@pytest.mark.slow
def test_minibatches_parts_and_adam_on_a_mesh():
    """The optimizer's moments are sharded like the parameters; gradient norm and clipping read all shards."""
    options = {"minibatches": 2, "grad_accum_steps": 1, "epochs": 2}
    tx = states.optimizer(0.9, 0.99, 0.01)
    _, known, one = step_on(1, 1, 1, NO_GATHER, tx, **options)
    _, metrics, after = step_on(4, 2, 2, NO_GATHER, tx, **options)
    up, known_up = (np.asarray(state.params["policy"]["layers"]["up"]) for state in (after, one))
    np.testing.assert_allclose(up, known_up, atol=1e-3)
    np.testing.assert_allclose(metrics["grad_norm"], known["grad_norm"], rtol=1e-4)
    moments = after.opt_state["policy"][0].mu["layers"]["up"]
    assert moments.sharding.spec == Spec(None, "fsdp", "tensor")


@pytest.mark.parametrize(
    ("devices", "fsdp", "tensor", "batch"), [slow(8, 2, 2, 8), slow(2, 2, 1, 8), pytest.param(2, 2, 1, 5)]
)
def test_imitation_is_that_of_one_device(devices, fsdp, tensor, batch):
    """Also with bins, whose number in a step no number of devices has to divide."""
    draw = np.random.default_rng(0)
    rows = Sequences(
        tokens=jnp.asarray(draw.integers(0, 24, (EPISODES, 9)), jnp.int32),
        position=jnp.tile(jnp.arange(1, 9), (EPISODES, 1)),
        response_mask=jnp.asarray(draw.random((EPISODES, 8)) < 0.5),
        logprob=jnp.zeros((EPISODES, 8)),
        turn=jnp.zeros((EPISODES, 8), jnp.int32),
        episode=jnp.arange(EPISODES),
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


# Rollouts

CONFIG = toy_agent.CONFIG.replace(model=toy_agent.CONFIG.model.replace(heads=4, kv_heads=2))
TOKENIZER = padded(toy_agent.TOKENIZER, 480)
"""Its vocabulary can be sharded; 473 tokens could not."""


@pytest.fixture(scope="module")
def play():
    """Function (devices, fsdp, tensor, rollout) -> (trajectory, stats, replicas): responses of unequal lengths."""
    model = build.build_model(CONFIG, TOKENIZER)
    params = toy_agent.talkative_params(5, model)
    ids = toy_agent.mixed_ids(16, toy_agent.GROUP_SIZE)

    @functools.cache
    def run(devices, fsdp, tensor, rollout):
        mesh = make_mesh(devices, fsdp=fsdp, tensor=tensor)
        programs = Programs(mesh, rollout_rules=build.ROLLOUT_RULES[rollout])
        program = programs.rollout(
            "rollout", model, toy_agent.BATCHED_ENV, toy_agent.engine_config(group_size=toy_agent.GROUP_SIZE)
        )
        placed = jax.device_put(params, programs.placement(params, model.decoder))
        trajectory, stats = program(placed, jax.random.key(7), ids, toy_agent.settings(64))
        return trajectory, stats, programs.replicas

    return run


@pytest.mark.parametrize(
    ("devices", "fsdp", "tensor", "rollout", "replicas"),
    [
        (8, 2, 2, "rows", 4),
        slow(2, 2, 1, "rows", 2),
        slow(2, 1, 2, "rows", 1),
        slow(4, 2, 2, "rows", 2),
        slow(8, 2, 4, "rows", 2),
        slow(8, 2, 2, "wide", 2),
        slow(4, 2, 2, "wide", 1),
    ],
)
def test_a_rollout_is_that_of_one_device(play, devices, fsdp, tensor, rollout, replicas):
    trajectory, stats, played_by = play(devices, fsdp, tensor, rollout)
    known, _, _ = play(1, 1, 1, "rows")
    assert (played_by, stats.decode_steps.shape) == (replicas, (replicas,))
    assert total_stats(stats)["sampled_tokens"] == np.sum(known.response.length)
    for name in ("num_turns", "observation"):
        np.testing.assert_array_equal(getattr(trajectory, name), getattr(known, name))
    np.testing.assert_array_equal(trajectory.response.tokens, known.response.tokens)
    np.testing.assert_allclose(trajectory.response.logprob, known.response.logprob, atol=1e-4)


def test_devices_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"fsdp x sequence x tensor is 3 x 1 x 1, which does not divide the 8 devices"):
        make_mesh(8, fsdp=3)
    with pytest.raises(ValueError, match=r"devices is 99, but this host has 8"):
        make_mesh(99)
    assert dict(make_mesh(8, fsdp=2, tensor=2).shape) == dict(zip(MESH_AXES, (2, 2, 1, 2)))


def test_a_replay_refuses_sharded_matrices():
    programs = Programs(make_mesh(2, tensor=2))
    with pytest.raises(ValueError, match=r"replay on a mesh .*'tensor': 2.*; use 1"):
        programs.update(NO_GATHER, BASE.replace(mismatch=Replay()), optax.sgd(1.0))
