import importlib.util
import re

import jax
import made_up
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.parallel import hlo
from agentrl_jax.parallel.mesh import MESH_AXES, make_mesh
from agentrl_jax.parallel.topology import described_devices
from agentrl_jax.setup.programs import Programs

LACKS = importlib.util.find_spec("libtpu") is None
pytestmark = pytest.mark.skipif(LACKS, reason="libtpu, the TPU compiler, is not installed")


@pytest.fixture(scope="module")
def two_slices():
    return described_devices("v5e:2x4", slices=2)[0]


def test_an_update_on_two_slices_shares_parameters_inside_each(two_slices):
    """Compiled ahead of time: parameters are gathered inside a slice, and sums over `data` go across."""
    mesh = make_mesh(two_slices, fsdp=2, tensor=2)
    assert dict(mesh.shape) == dict(zip(MESH_AXES, (4, 2, 1, 2)))
    slices = np.vectorize(lambda device: device.slice_index)(mesh.devices)
    assert [{*row.flat} for row in slices] == [{0}, {0}, {1}, {1}]
    programs = Programs(mesh)
    program = programs.update(made_up.MODEL, made_up.BASE.replace(group_size=2), made_up.PLAIN)
    state = jax.eval_shape(made_up.fresh_state)

    def placed(tree, shardings):
        return jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree, shardings)

    arguments = jax.eval_shape(lambda: (made_up.TRAJECTORY, made_up.ONES, made_up.KEY, made_up.settings()))
    everywhere = jax.tree.map(lambda _: NamedSharding(mesh, Spec()), arguments)
    inputs = placed(state, programs.placement(state, made_up.SHAPE)), *placed(arguments, everywhere)
    text = program.lower(*inputs).compile().as_text()
    # The compiler writes what crosses slices as transfers between hosts, and numbers the chips of collectives by slice.
    assert hlo.operations(text, ("send",))
    gathers = re.findall(r" all-gather(?:-start)?\(.*?replica_groups=\{(\{[\d,{}]*\})\}", text)
    assert gathers
    assert {int(chip) for groups in gathers for chip in re.findall(r"\d+", groups)} == {*range(8)}


def test_axes_are_parts_of_the_grid_of_chips_and_parameters_are_not_shared_across_slices(two_slices):
    for name, shape in {"v4:2x2x4": (2, 8, 1, 1), "v5p:4x4x8": (4, 16, 1, 2), "v6e:8x16": (4, 8, 1, 4)}.items():
        assert make_mesh(described_devices(name)[0], fsdp=shape[1], tensor=shape[3]).devices.shape == shape
    with pytest.raises(ValueError, match="does not divide the 16 devices in 2 slices; use a divisor"):
        make_mesh(two_slices, fsdp=16)
