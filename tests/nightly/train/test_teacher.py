"""Plans that a teacher reads solve the levels that are played."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import teacher_parts

from agentrl_jax.setup import build_inputs, start


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return teacher_parts.made(tmp_path_factory.mktemp("teacher"))


def ids_of(parts):
    return jax.tree.map(np.asarray, build_inputs.training_ids(parts.config))


def test_plans_solve_the_levels_that_the_rollout_plays(parts):
    env, ids, key = parts.train_env, ids_of(parts), jax.random.key(5)
    plans, wrong = parts.plan_hints.of_episodes(key, ids, parts.train_splits)
    assert all(plan is not None for plan in plans)
    assert all(np.array_equal(*pair) for pair in zip(plans[::2], plans[1::2]))  # of the members of a group
    settings = build_inputs.rollout_settings(parts.config, env, len(plans), 1.0, split=parts.train_splits.of(0))
    state, _ = env.reset(key, settings, build_inputs.training_ids(parts.config))
    task = env.tasks[0]
    step = jax.jit(task.env.step_env)
    for row, plan in enumerate(plans):
        at = jax.tree.map(lambda x, row=row: x[row], state.envs[0])
        for action in plan:
            at = step(key, at, jnp.int32(action), task.env_params)[1]
        assert bool(task.env.success(at, task.env_params))
    assert np.array_equal(wrong[0], plans[2])
    assert np.array_equal(wrong[2], plans[0])


def test_a_share_of_the_demonstrations_shows_its_plan(parts):
    arguments = parts.train_env, parts.train_splits, parts.tokenizer, None, parts.key, str
    rows, trajectory = start.demonstration_rows(parts.config, *arguments)
    plain = parts.config.replace(imitation=parts.config.imitation.replace(hinted=0.0))
    own, _ = start.demonstration_rows(plain, *arguments)
    longer = np.asarray(rows.length - own.length)
    assert rows.tokens.shape[1] == own.tokens.shape[1] + parts.plan_hints.width
    assert 0 < np.count_nonzero(longer) < len(longer)
    np.testing.assert_array_equal(rows.response_mask, own.response_mask)
    np.testing.assert_array_equal(rows.tokens[longer == 0, : own.tokens.shape[1]], own.tokens[longer == 0])
    shown = int(np.flatnonzero(longer)[0])
    actions = np.asarray(trajectory.turn.actions)[shown].ravel()
    expected = parts.plan_hints.write([actions[actions >= 0]], np.zeros(1, int))
    at = int(expected.at[0])
    assert longer[shown] == expected.length[0]
    read = np.asarray(rows.tokens)[shown, at : at + longer[shown]]
    np.testing.assert_array_equal(read, expected.tokens[0, : longer[shown]])
    model = start.imitating_model(parts.config, parts.model, parts.train_env)
    assert model.shared_prefix_len == min(parts.model.shared_prefix_len, at)
