"""Bytes between a device and its large memory, from compiled programs and from texts of programs for TPUs."""

import jax
import jax.numpy as jnp
import pytest

from agentrl_jax.parallel.hlo_traffic import memory_bytes

SIZE = 64 * 8 * 4
"""Bytes of `a`, and of `b`."""


def compiled(program, *shapes, donated=()):
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    return jax.jit(program, donate_argnums=donated).lower(*arguments).compile().as_text()


def module(entry, *others):
    """The text of a module whose entry computation has `a` in large memory, and `b` and `i` on the chip."""
    head = """  %a = f32[64,8]{1,0:T(8,128)} parameter(0)
  %b = f32[64,8]{1,0:T(8,128)S(1)} parameter(1)
  %i = s32[]{:T(128)S(6)} parameter(2)
"""
    return "\n".join(
        ["HloModule m", "", *others, "ENTRY %main (a: f32[64,8], b: f32[64,8]) -> f32[8] {", head + entry, "}"]
    )


def test_a_product_reads_both_matrices_and_writes_one():
    text = compiled(lambda x, w: x @ w, ((256, 128), jnp.float32), ((128, 512), jnp.float32))
    assert memory_bytes(text) == 4 * (256 * 128 + 128 * 512 + 256 * 512)


def test_lookups_and_updates_in_place_count_what_they_touch():
    table, ids = ((4096, 64), jnp.float32), ((3,), jnp.int32)
    rows = 4 * 3 * 64
    assert rows <= memory_bytes(compiled(lambda x, i: x[i], table, ids)) < 4 * rows
    row, index = ((1, 64), jnp.float32), ((), jnp.int32)
    text = compiled(lambda x, r, i: jax.lax.dynamic_update_slice(x, r, (i, 0)), table, row, index, donated=(0,))
    assert 2 * 4 * 64 <= memory_bytes(text) < 6 * 4 * 64


BRANCHES = (
    """%small (p: f32[64,8]) -> f32[64,8] {
  %p = f32[64,8]{1,0} parameter(0)
  ROOT %q = f32[64,8]{1,0} negate(%p)
}
""",
    """%large (p: f32[64,8]) -> f32[64,8] {
  %p = f32[64,8]{1,0} parameter(0)
  %r = f32[64,8]{1,0} negate(%p)
  ROOT %q = f32[64,8]{1,0} negate(%r)
}
""",
)


@pytest.mark.parametrize(
    "entry",
    ["conditional(%i, %a, %a), branch_computations={%small, %large}", "while(%a), condition=%small, body=%large"],
)
def test_a_loop_counts_once_and_a_condition_its_largest_branch(entry):
    assert memory_bytes(module(f"  ROOT %c = f32[64,8]{{1,0}} {entry}", *BRANCHES)) == 4 * SIZE


def test_a_loop_of_a_compiled_program():
    x = ((1024,), jnp.float32)
    of_body = memory_bytes(compiled(jnp.cumsum, x))
    text = compiled(lambda x, n: jax.lax.fori_loop(0, n, lambda _, y: jnp.cumsum(y), x), x, ((), jnp.int32))
    assert of_body <= memory_bytes(text) < of_body + 4 * 4 * 1024


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("  ROOT %c = f32[64,8]{1,0:T(8,128)} add(%a, %a)", 2 * SIZE),
        ("  ROOT %c = f32[64,8]{1,0:T(8,128)S(1)} add(%a, %b)", SIZE),
        ("  ROOT %c = f32[64,8]{1,0:T(8,128)S(1)} add(%b, %b)", 0),
        ("  ROOT %c = f32[512]{0:T(512)} bitcast(%a)", 0),
        # A move to the chip's own memory reads once, and its end is not counted again.
        (
            "  %c = (f32[64,8]{1,0:T(8,128)S(1)}, f32[64,8]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%a)\n"
            "  ROOT %d = f32[64,8]{1,0:T(8,128)S(1)} copy-done(%c)",
            SIZE,
        ),
        (
            "  %c = ((f32[64,8]{1,0:T(8,128)}), f32[16,8]{1,0:T(8,128)S(1)}, s32[]{:S(2)}) slice-start(%a), "
            "slice={[0:16], [0:8]}\n"
            "  ROOT %d = f32[16,8]{1,0:T(8,128)S(1)} slice-done(%c)",
            SIZE // 4,
        ),
        ("  ROOT %c = f32[1,8]{1,0:T(1,128)} dynamic-slice(%a, %i, %i), dynamic_slice_sizes={1,8}", 2 * 32),
        # A collective: its operand and its result.
        ("  ROOT %c = f32[64,8]{1,0:T(8,128)} all-reduce(%a), to_apply=%add", 2 * SIZE),
        (
            "  %c = (f32[64,8]{1,0:T(8,128)}, f32[128,8]{1,0:T(8,128)}) all-gather-start(%a), dimensions={0}\n"
            "  ROOT %d = f32[128,8]{1,0:T(8,128)} all-gather-done(%c)",
            3 * SIZE,
        ),
        (
            "  %c = f32[64,8]{1,0:T(8,128)} all-reduce-start(%a), to_apply=%add\n"
            "  ROOT %d = f32[64,8]{1,0:T(8,128)} all-reduce-done(%c)",
            2 * SIZE,
        ),
        ('  ROOT %c = f32[64,8]{1,0:T(8,128)} custom-call(%a, %b), custom_call_target="kernel"', 2 * SIZE),
    ],
)
def test_instructions(entry, expected):
    assert memory_bytes(module(entry)) == expected


def fused(body):
    """A module whose entry is one fusion of `a`, `b` and an index with the given body."""
    inside = """%fused (p0: f32[64,8], p1: f32[64,8], p2: s32[]) -> f32[64,8] {
  %p0 = f32[64,8]{1,0} parameter(0)
  %p1 = f32[64,8]{1,0} parameter(1)
  %p2 = s32[] parameter(2)
"""
    inner = """%cast (q: f32[64,8]) -> f32[512] {
  %q = f32[64,8]{1,0} parameter(0)
  ROOT %r = f32[512]{0} bitcast(%q)
}
"""
    return module(
        "  ROOT %c = f32[64,8]{1,0:T(8,128)} fusion(%a, %b, %i), kind=kLoop, calls=%fused, metadata={}",
        inner,
        inside + body + "\n}\n",
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # The steps of a fusion store nothing.
        ("  %t = f32[64,8]{1,0} negate(%p0)\n  ROOT %u = f32[64,8]{1,0} add(%t, %p1)", 2 * SIZE),
        # One row is read of `a` and one is written.
        (
            "  %t = f32[1,8]{1,0} dynamic-slice(%p1, %p2, %p2), dynamic_slice_sizes={1,8}\n"
            "  ROOT %u = f32[64,8]{1,0} dynamic-update-slice(%p0, %t, %p2, %p2)",
            32,
        ),
        # A use behind a bitcast, also one that is a fusion, is a use.
        (
            "  %t = f32[512]{0} fusion(%p0), kind=kLoop, calls=%cast\n"
            "  %s = f32[]{} reduce(%t, %p2), dimensions={0}, to_apply=%add\n"
            "  ROOT %u = f32[64,8]{1,0} broadcast(%s), dimensions={}",
            2 * SIZE,
        ),
        ("  %t = f32[512]{0} bitcast(%p0)\n  ROOT %u = f32[64,8]{1,0} reshape(%t)", 2 * SIZE),
        # An operand that nothing reads.
        ("  ROOT %u = f32[64,8]{1,0} broadcast(%p2), dimensions={}", SIZE),
    ],
)
def test_fusions(body, expected):
    assert memory_bytes(fused(body)) == expected
