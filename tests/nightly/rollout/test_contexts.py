import dataclasses
import functools

import jax
import jax.numpy as jnp
import made_up
import numpy as np
import optax
import toy_agent
from noting_agent import SUMMARIES
from toy_agent import GROUP_SIZE, TURNS
from toy_rollouts import KEY, assert_same

from agentrl_jax.algos.optimizers import Optimizer
from agentrl_jax.config.advantages import Grpo
from agentrl_jax.config.filters import NoFilter
from agentrl_jax.config.mismatch import NoCorrection
from agentrl_jax.learner.settings import LearnerConfig
from agentrl_jax.learner.state import init_state
from agentrl_jax.learner.update import update
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.contexts import Window

EPISODES = 64
PAIRS = toy_agent.engine_config(group_size=GROUP_SIZE, context=Window(2))


def played(compiled, policy, config):
    ids = toy_agent.mixed_ids(EPISODES // GROUP_SIZE, GROUP_SIZE)
    return compiled(config)(policy, KEY, ids, toy_agent.settings(EPISODES))[0]


def test_a_window_of_all_turns_is_the_whole_conversation(compiled, policy, batch):
    found = played(compiled, policy, dataclasses.replace(PAIRS, context=Window(TURNS)))
    assert_same(found.replace(join=batch[1].join, final_join=batch[1].final_join), batch[1])
    # The message after the last turn would begin a window.
    known, last = np.asarray(found.final_observation_length) > 0, np.asarray(found.num_turns) == TURNS
    np.testing.assert_array_equal(np.asarray(found.final_join.restart)[known], last[known])


def test_refilled_slots_of_windows_give_the_same_trajectories(compiled, policy):
    parts = {"slots": 16, "prefill_threshold": 0.4, "prefill_rows": 3, "chunk": 5}
    assert_same(*(played(compiled, policy, dataclasses.replace(PAIRS, **changes)) for changes in (parts, {})))


def test_notes_are_trained(compiled, policy):
    noted = played(compiled, policy, dataclasses.replace(PAIRS, context=SUMMARIES))
    config = LearnerConfig(
        task_names=("Short", "Long"),
        group_size=GROUP_SIZE,
        filter=NoFilter(),
        mismatch=NoCorrection(ratio_from="rollout"),
        aggregation="token_mean",
        advantage=Grpo(),
        context=SUMMARIES,
    )
    tx = Optimizer(*optax.sgd(1.0))
    params = toy_agent.talkative_params(5)
    state = init_state(jax.random.key(0), toy_agent.MODEL, tx).replace(params=params)
    learn = functools.partial(update, model=toy_agent.MODEL, config=config, tx=tx, shards=Shards())
    _, metrics = jax.jit(learn)(state, noted, jnp.ones(EPISODES), KEY, made_up.settings(entropy_coef=0.0))
    assert float(metrics["update/trained_tokens"]) == float(jnp.sum(noted.response.length))
    assert float(metrics["rollout/logprob_gap_max"]) < 1e-4
    assert float(metrics["actor/grad_norm"]) > 0
    assert (float(metrics["update/lost_tokens"]), float(metrics["update/skipped"])) == (0, 0)
