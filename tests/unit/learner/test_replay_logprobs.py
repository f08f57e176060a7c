import functools

import jax
import pytest
import toy_agent
from made_up import BASE, GROUP_SIZE, GRPO, KEY, MODEL, ONES, PLAIN, SAID, TRAJECTORY, TURNS, fresh_state, settings

from agentrl_jax.config.mismatch import Replay
from agentrl_jax.errors import BadValue
from agentrl_jax.learner.update import update
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.contexts import SINGLE_TURN

ENGINE = {"max_turns": TURNS, "max_response_tokens": SAID, "group_size": GROUP_SIZE}


@pytest.mark.parametrize(
    ("engine", "key"),
    [
        (None, "mismatch"),
        ({"group_size": 2}, "mismatch"),
        ({"context": SINGLE_TURN}, "mismatch"),
        ({"slots": 64}, "slots"),
        ({"max_turns": TURNS + 1}, "turns"),
    ],
)
def test_a_rollout_of_another_shape_is_refused(engine, key):
    engine = None if engine is None else toy_agent.engine_config(**ENGINE | engine)
    config = BASE.replace(mismatch=Replay(), **GRPO)
    learn = functools.partial(update, model=MODEL, config=config, tx=PLAIN, shards=Shards(), engine=engine)
    with pytest.raises(BadValue) as refused:
        jax.eval_shape(learn, fresh_state(), TRAJECTORY, ONES, KEY, settings())
    assert refused.value.key == key
