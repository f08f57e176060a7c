import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as Spec
from optax import contrib

from agentrl_jax.errors import BadValue
from agentrl_jax.models import actor_critic
from agentrl_jax.models.lora import LoraConfig
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.parallel import layout
from agentrl_jax.parallel.mesh import AUTO, DATA, FSDP, counted_devices, make_mesh
from agentrl_jax.parallel.shards import Shards, maybe_shard_map

SIZES = {"vocab_size": 32, "num_layers": 2, "embed_dim": 16, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
BIASES = dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias", "qk_norm"), True)
SHAPE = DecoderConfig(**SIZES, **BIASES, mlp_width=24, tied_embeddings=False)


def params_of(**model):
    model = actor_critic.ActorCritic(decoder=SHAPE, **model)
    return jax.eval_shape(lambda key: actor_critic.init_params(key, model), jax.random.key(0))


def specs(tree, mesh, rules):
    return jax.tree.map(lambda x: x.spec, layout.shardings(tree, mesh, rules, head_dim=SHAPE.head_dim))


@pytest.mark.parametrize("model", [{"lora": LoraConfig(rank=2, alpha=1.0)}, {"frozen_layers": 1}, {}], ids=str)
def test_every_leaf_of_parameters_and_optimizer_has_a_place(model):
    params = params_of(critic="separate", **model)
    state = jax.eval_shape(optax.adamw(1.0).init, params)
    for rules in (layout.UPDATE, layout.ROLLOUT):
        placed = specs(params, make_mesh(8, fsdp=2, tensor=2), rules)
        for moments in (state[0].mu, state[0].nu):
            assert specs(moments, make_mesh(8, fsdp=2, tensor=2), rules) == placed
    assert specs(state, make_mesh(8, fsdp=2, tensor=2), layout.UPDATE)[0].count == Spec()


def test_numbers_and_arrays_of_an_optimizer_are_on_every_device():
    mesh = make_mesh(8, fsdp=2, tensor=2)
    assert specs(jax.ShapeDtypeStruct((), jnp.int32), mesh, layout.UPDATE) == Spec()
    state = contrib.MuonState(count=jnp.int32(0), mu={"up": jnp.zeros((2, 8, 8))}, ns_coeffs=jnp.zeros(3))
    placed = specs({"policy": {"muon": state}}, mesh, layout.UPDATE)["policy"]["muon"]
    assert (placed.count, placed.ns_coeffs, placed.mu["up"]) == (Spec(), Spec(), Spec(None, "fsdp", "tensor"))


def test_matrices_of_the_two_layouts():
    params = params_of(critic="shared")
    update = specs(params, make_mesh(8, fsdp=2, tensor=2), layout.UPDATE)
    assert update["policy"]["embedding"] == Spec("tensor", "fsdp")
    assert update["policy"]["lm_head"] == Spec("fsdp", "tensor")
    assert update["policy"]["layers"]["query"] == Spec(None, "fsdp", "tensor")
    assert update["policy"]["layers"]["down"] == Spec(None, "tensor", "fsdp")
    assert update["policy"]["layers"]["up_bias"] == Spec(None, "tensor")
    assert update["policy"]["layers"]["query_norm"] == Spec()
    assert update["critic"] == {"head": Spec("fsdp"), "bias": Spec()}
    rollout = specs(params, make_mesh(8, fsdp=2, tensor=2), layout.ROLLOUT)
    assert rollout["policy"]["layers"]["down"] == Spec(None, "tensor")
    wide = specs(params, make_mesh(4, fsdp=2, tensor=2), layout.WIDE_ROLLOUT)
    assert wide["policy"]["layers"]["gate"] == Spec(None, None, ("fsdp", "tensor"))
    assert wide["policy"]["layers"]["key"] == Spec(), "two key-value heads cannot be shared by four devices"


def test_axes_of_one_device_split_nothing_heads_are_never_cut_and_what_has_no_rule_is_refused():
    """Four heads of eight numbers on eight devices: 32 columns could be sharded, heads are not split."""
    tree = {"query": jax.ShapeDtypeStruct((16, 32), jnp.float32), "gate": jax.ShapeDtypeStruct((16, 24), jnp.float32)}
    assert specs(tree, make_mesh(8, tensor=8), layout.UPDATE) == {"query": Spec(), "gate": Spec(None, "tensor")}
    assert specs(tree, make_mesh(8), layout.UPDATE) == {"query": Spec(), "gate": Spec()}
    rules = dataclasses.replace(layout.UPDATE, embed_dim="tensor")
    with pytest.raises(BadValue) as refused:
        specs({"layers": {"query": jax.ShapeDtypeStruct((2, 16, 32), jnp.float32)}}, make_mesh(2, tensor=2), rules)
    assert (refused.value.key, refused.value.value) == ("layers/query", "tensor")
    for path, rank in ((("layers", "mouth"), 2), (("layers", "query"), 4), (("head",), 3)):
        with pytest.raises(BadValue) as refused:
            layout.logical_axes(path, rank)
        assert refused.value.key == "/".join(path)


ROWS = 12
AXES = (DATA, FSDP)


def rows():
    draw = np.random.default_rng(0)
    wide = draw.standard_normal((ROWS, 2, 3)).astype(np.float32)
    wide[1, 0, 0], wide[5, 1, 2], wide[7, 0, 1] = np.nan, -0.0, np.inf
    found = {"tokens": draw.integers(-5, 2**30, (ROWS, 4)).astype(np.int32), "mask": draw.random((ROWS, 3)) < 0.5}
    return found | {"wide": wide, "one": draw.standard_normal(ROWS).astype(np.float32), "none": None}


def on_devices(function, devices, fsdp, out):
    mesh, per_device = make_mesh(devices, fsdp=fsdp), functools.partial(function, Shards(devices, AXES))
    replicated = out == "replicated"
    specs = (Spec(AXES), Spec()), Spec() if replicated else Spec(AXES)
    return jax.jit(maybe_shard_map(per_device, mesh, *specs, axes=AXES, replicated_results=replicated))


def assert_bits(found, wanted):
    def bits(x):
        x = np.asarray(x)
        return x.view(np.int32) if x.dtype == np.float32 else x

    jax.tree.map(lambda a, b: np.testing.assert_array_equal(bits(a), bits(b)), found, wanted)


@pytest.mark.parametrize(("devices", "fsdp"), [(1, 1), (4, 2)])
def test_rows_are_fetched_and_gathered_by_number_and_results_return_to_their_devices(devices, fsdp):
    """Column r of the numbers, R in a line, is the share of device r; a number may occur twice."""
    numbers = jnp.array([7, 1, 5, 5, 0, 11, 3, 7])
    program = on_devices(lambda shards, tree, number: shards.fetch_rows(tree, number), devices, fsdp, "sharded")
    by_device = np.asarray(numbers).reshape(-1, devices).T.reshape(-1)
    assert_bits(program(rows(), numbers), jax.tree.map(lambda x: x[by_device], rows()))
    numbers = numbers[:5]
    program = on_devices(lambda shards, tree, number: shards.gather_rows(tree, number), devices, fsdp, "replicated")
    assert_bits(program(rows(), numbers), jax.tree.map(lambda x: x[np.asarray(numbers)], rows()))
    numbers, new = jnp.array([8, 0, 3, 10]), jnp.arange(8.0).reshape(4, 2)
    put = on_devices(lambda shards, old, number: shards.put_rows(old, new, number), devices, fsdp, "sharded")
    wanted = np.full((ROWS, 2), -1.0, np.float32)
    wanted[np.asarray(numbers)] = np.asarray(new)
    assert_bits(put(jnp.full((ROWS, 2), -1.0), numbers), wanted)
    # Blocks are gathered and cut again.
    tree = {name: x for name, x in rows().items() if name != "wide"}
    gather = on_devices(lambda shards, tree, _: shards.all_gather_blocks(tree), devices, fsdp, "replicated")
    assert_bits(gather(tree, 0), tree)
    cut = on_devices(lambda shards, x, _: shards.block(shards.all_gather_blocks(x)), devices, fsdp, "sharded")
    assert_bits(cut(tree, 0), tree)


def test_auto_is_all_accelerators_or_two_devices_of_the_cpu(monkeypatch):
    assert (counted_devices(AUTO), counted_devices(0), counted_devices(3)) == (2, 0, 3)
    for platform, present, expected in (("cpu", 1, 1), ("gpu", 4, 4), ("tpu", 1, 1)):
        monkeypatch.setattr(jax, "devices", lambda p=platform, n=present: [types.SimpleNamespace(platform=p)] * n)
        assert counted_devices(AUTO) == expected
