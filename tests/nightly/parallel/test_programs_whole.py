"""Slow checks of what the quick tests of the same name check."""

from mesh_programs import check_rollout, check_update


def test_an_update_on_all_four_axes_is_that_of_one_device():
    """Half of the episodes have long responses, half short ones; microbatches are cut to the length of their rows."""
    check_update("whole", 8, 2, 2, 2, grad_accum_steps=2, length_buckets=2)


def test_a_rollout_is_that_of_one_device():
    check_rollout(8, 2, 2, "rows", 4)
