"""Updates with bins equal those with rows, in more configurations and on several devices."""

import made_up
import pytest
from bin_updates import PARTS, SEPARATE, learn, same
from made_up import GRPO

from agentrl_jax.config.algo import FixedKl
from agentrl_jax.models.actor_critic import ActorCritic


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (made_up.MODEL, {"kl": FixedKl(estimator="full")}),
        (SEPARATE, {"kl": FixedKl(estimator="k3"), "aggregation": "seq_mean_token_mean"}),
        (made_up.MODEL, {"context": "single_turn"}),
        (ActorCritic(decoder=made_up.SHAPE, critic="none"), GRPO),
    ],
    ids=["whole divergence", "separate critic", "single turns", "no critic"],
)
def test_an_update_with_bins_is_that_with_rows(model, changes):
    same(learn(model, **PARTS, **changes), learn(model, **PARTS, **changes, packing=True))


@pytest.mark.parametrize("mesh", [(2, 1), (4, 4)], ids=str)
def test_devices_share_the_bins(mesh):
    changes = {"minibatches": 1, "grad_accum_steps": 2, "packing": True}
    same(learn(SEPARATE, **changes), learn(SEPARATE, mesh, **changes))
