"""The update on made-up trajectories, in configurations that the quick tests leave out."""

import numpy as np
import pytest
from made_up import (
    BASE,
    GROUP_SIZE,
    KEY,
    MODEL,
    ONES,
    PLAIN,
    SAID,
    SEEN,
    TRAJECTORY,
    assert_close,
    fresh_state,
    learn,
    make_trajectory,
    program,
    settings,
)

from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.setup.programs import Programs


@pytest.mark.parametrize(("devices", "group_size"), [(2, GROUP_SIZE), (8, 2)])
def test_devices_change_nothing(devices, group_size):
    """Half of the devices have long responses, half short ones, so means per device would be wrong."""
    base = learn(group_size=group_size)
    update = Programs(make_mesh(devices)).update(MODEL, BASE.replace(group_size=group_size), PLAIN)
    state, metrics = update(fresh_state(), TRAJECTORY, ONES, KEY, settings())
    assert_close(base[0].params, state.params)
    for name, value in base[1].items():
        np.testing.assert_allclose(metrics[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
@pytest.mark.parametrize(("minibatches", "parts", "buckets"), [(1, 4, 1), (1, 2, 3), (2, 2, 3)])
def test_parts_equal_the_whole(aggregation, minibatches, parts, buckets):
    options = {"aggregation": aggregation, "minibatches": minibatches}
    whole, cut = (
        learn(**options, grad_accum_steps=count, length_buckets=lengths)
        for count, lengths in ((1, 1), (parts, buckets))
    )
    assert_close(whole[0].params, cut[0].params)
    for name, value in whole[1].items():
        np.testing.assert_allclose(cut[1][name], value, rtol=2e-5, atol=2e-6, err_msg=name)


def test_padding_changes_nothing():
    plain, padded = (learn(x)[0] for x in (TRAJECTORY, make_trajectory(seen=SEEN + 4, said=SAID + 3)))
    assert_close(plain.params, padded.params)


def test_the_compiled_update_is_one_module_that_calls_nothing_on_the_host():
    module = program(MODEL, PLAIN, BASE).lower(fresh_state(), TRAJECTORY, ONES, KEY, settings()).compile()
    assert len(module.runtime_executable().hlo_modules()) == 1
    for forbidden in ("callback", "infeed", "outfeed", " send(", " recv(", "host_transfer"):
        assert forbidden not in module.as_text(), forbidden
