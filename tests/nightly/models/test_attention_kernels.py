import functools

import chex
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as Spec
from plain_attention import plain_attention, random_inputs, random_segments

from agentrl_jax.models import attention_kernels

splash = functools.partial(attention_kernels.attend_splash, interpret=True)


def test_a_kernel_computes_the_heads_of_each_device():
    """Inside `jax.shard_map` over rows, with heads that the compiler shards: 2 key-value heads on 4 devices."""
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    inputs = random_inputs(2, 100, 100, head_dim=64)
    segments = random_segments(2, 100)

    def summed(scale, segments, *inputs):
        """The gradient of a replicated parameter, which is right only if the result counts as that of each device."""

        def loss(scale):
            return jnp.sum(jnp.sin(splash(*(scale * x for x in inputs), segment_ids=segments)))

        return jax.lax.psum(jax.value_and_grad(loss)(jax.lax.pcast(scale, ("data",), to="varying")), "data")

    rows = Spec("data")
    mapped = jax.shard_map(
        summed, mesh=mesh, in_specs=(Spec(), *[rows] * 4), out_specs=Spec(), axis_names={"data"}, check_vma=True
    )

    def plain(scale):
        return jnp.sum(jnp.sin(plain_attention(*(scale * x for x in inputs), segment_ids=segments)))

    expected = jax.value_and_grad(plain)(jnp.float32(1.5))
    chex.assert_trees_all_close(jax.jit(mapped)(jnp.float32(1.5), segments, *inputs), expected, rtol=1e-4, atol=1e-3)
