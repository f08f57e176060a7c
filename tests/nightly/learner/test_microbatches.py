"""An update does not depend on devices nor on how its rows are divided."""

import made_up
import pytest
from learner_steps import ROWS, same
from made_up import BASE, EPISODES, MODEL, ONES, TRAJECTORY, fresh_state, learn, settings

from agentrl_jax.models import actor_critic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.setup.programs import Programs


@pytest.fixture(scope="module")
def of_rows():
    return learn(**ROWS)


def test_devices_and_microbatches_of_their_own_length_change_nothing(of_rows, monkeypatch):
    """Half of the devices have long responses, half short ones, so means per device would be wrong."""
    scored, score_tokens = set(), actor_critic.score_tokens

    def noted(params, model, tokens, *rest):
        scored.add(tokens.shape)
        return score_tokens(params, model, tokens, *rest)

    monkeypatch.setattr(actor_critic, "score_tokens", noted)
    config = BASE.replace(**ROWS, grad_accum_steps=2, length_buckets=3)
    program = Programs(make_mesh(2)).update(MODEL, config, made_up.PLAIN)
    same(of_rows, program(fresh_state(), TRAJECTORY, ONES, made_up.KEY, settings()))
    # Two devices, two minibatches, two microbatches.
    assert {rows for rows, _ in scored} == {EPISODES * made_up.TURNS // 8}
    assert len({length for _, length in scored}) == 3
