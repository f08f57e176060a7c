"""Operations of compiled programs and the loops around them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.parallel import hlo
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.topology import TopologyError, described_devices


def test_loops_around_collectives_are_counted():
    """One sum before the loops, one per turn, one per token."""

    def program(x):
        x = jax.lax.psum(x, "data")

        def turn(_, x):
            x = jax.lax.fori_loop(0, jnp.int32(x[0]), lambda _, x: jax.lax.psum(x, "data") + 1, x)
            return jnp.tile(jax.lax.psum(x[:2], "data"), 4)

        return jax.lax.fori_loop(0, jnp.int32(x[1]), turn, x)

    mapped = jax.shard_map(program, mesh=make_mesh(2), in_specs=Spec(), out_specs=Spec(), check_vma=False)
    text = jax.jit(mapped).lower(jnp.zeros(8, jnp.float32)).compile().as_text()
    found = [(one.depth, one.size) for one in hlo.operations(text, ("all-reduce",))]
    assert sorted(found) == [(0, 32), (1, 8), (2, 32)]


def test_sizes_of_types():
    text = """HloModule m

ENTRY %main (a: bf16[2,3]) -> bf16[2,3] {
  %a = bf16[2,3]{1,0} parameter(0)
  %b = (bf16[2,3]{1,0}, bf16[4,3]{1,0:T(8,128)}) all-gather-start(%a), dimensions={0}
  %c = bf16[4,3]{1,0} all-gather-done(%b)
  %d = s4[6]{0} copy(%a)
  %f = bf16[2,3]{1,0} fusion(%a), kind=kLoop, calls=%fused
  ROOT %e = pred[5]{0} copy(%a)
}

%fused (p: bf16[2,3]) -> bf16[2,3] {
  %p = bf16[2,3]{1,0} parameter(0)
  ROOT %g = bf16[2,3]{0,1} copy(%p)
}
"""
    found = hlo.operations(text, ("all-gather", "copy"))
    assert [(one.kind, one.size, one.depth) for one in found] == [("all-gather", 24, 0), ("copy", 6, 0), ("copy", 5, 0)]


@pytest.mark.parametrize("name", ["v5e", "v9:2x2", "", "gpu:8"])
def test_unknown_topologies_are_refused(name):
    with pytest.raises(TopologyError) as refused:
        described_devices(name)
    assert (refused.value.key, refused.value.value) == ("topology", name)


@pytest.mark.parametrize(("name", "slices"), [("local", 2), ("v5e:2x2", 0), ("v5e:2x2", -1)])
def test_impossible_numbers_of_slices_are_refused(name, slices):
    with pytest.raises(TopologyError) as refused:
        described_devices(name, slices)
    assert (refused.value.key, refused.value.value) == ("slices", slices)


def test_the_devices_that_are_here():
    devices, _ = described_devices("local")
    np.testing.assert_array_equal(devices, jax.devices())


def test_a_move_between_memories_is_no_copy():
    """The second operation stays in one memory and changes the layout, so it is a copy."""
    text = """HloModule m
ENTRY %main (a: bf16[4,8]) -> bf16[4,8] {
  %a = bf16[4,8]{1,0} parameter(0)
  %b = (bf16[4,8]{1,0:T(8,128)(2,1)}, bf16[4,8]{1,0:T(8,128)(2,1)S(1)}, u32[]{:S(2)}) copy-start(%a)
  %c = (bf16[4,8]{0,1:T(8,128)(2,1)}, bf16[4,8]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%a)
  ROOT %d = bf16[4,8]{0,1} copy(%a)
}
"""
    found = hlo.operations(text, ("copy", hlo.MOVE))
    assert [(one.kind, one.size) for one in found] == [("move", 64), ("copy", 64), ("copy", 64)]


def test_a_combined_collective_has_the_size_of_all_its_results():
    text = """HloModule m
ENTRY %main (a: f32[1024], b: bf16[8]) -> f32[1024] {
  %a = f32[1024]{0} parameter(0)
  %b = bf16[8]{0} parameter(1)
  %c = (f32[1024]{0}, bf16[8]{0}) all-reduce(%a, %b), to_apply=%add
  %d = (f32[1024]{0}, f32[4096]{0}) all-gather-start(%a), dimensions={0}
  ROOT %e = f32[1024]{0} get-tuple-element(%c), index=0
}
"""
    found = hlo.operations(text, hlo.COLLECTIVES)
    assert [(one.kind, one.size) for one in found] == [("all-reduce", 4 * 1024 + 2 * 8), ("all-gather", 4 * 4096)]
