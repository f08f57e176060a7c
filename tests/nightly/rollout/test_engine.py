import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from same_bits import assert_same
from toy_agent import GROUP_SIZE
from toy_rollouts import GROUPED, KEY


@pytest.mark.parametrize(
    "options",
    [
        {"chunk": 3, "context": "single_turn"},
        {"prefill_rows": 3, "chunk": 3, "slots": 4, "prefill_threshold": 0.5},
        {"prefill_rows": 5, "group_size": GROUP_SIZE},
        {"prefill_rows": 4, "context": "single_turn"},
        {"context": "single_turn", "stop_at_answer": True, "slots": 4, "prefill_threshold": 0.5},
    ],
    ids=str,
)
def test_observations_read_in_parts_and_refills_give_the_same_trajectories(compiled, policy, batch, options):
    ids = toy_agent.rows(batch[0], np.arange(16))
    kept = {name: options[name] for name in ("stop_at_answer", "context") if name in options}
    whole, parts = (
        compiled(toy_agent.engine_config(**chosen))(policy, KEY, ids, toy_agent.settings(16))[0]
        for chosen in (kept, options)
    )
    assert_same(parts, whole)


def test_episodes_of_one_turn_store_nothing_of_their_own(compiled, policy, batch):
    config, settings = toy_agent.engine_config(max_turns=1, group_size=GROUP_SIZE), toy_agent.settings(64)
    found = compiled(config)(policy, KEY, batch[0], settings)[0]
    expected = compiled(GROUPED)(policy, KEY, batch[0], settings.replace(horizon=jnp.int32(1)))[0]
    np.testing.assert_array_equal(found.response.tokens, expected.response.tokens[:, :1])
    np.testing.assert_array_equal(found.num_turns, expected.num_turns)
    np.testing.assert_array_equal(found.truncation, expected.truncation)
