import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_run
from refusing import refusal

from agentrl_jax.config import load_config
from agentrl_jax.config.distillation import SelfDistillation
from agentrl_jax.errors import BadValue
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.learner import state as states
from agentrl_jax.setup import build_inputs, start
from agentrl_jax.setup.parts import RunParts
from agentrl_jax.setup.plan_hints import ALL_TURNS, PlanHints, of_others, turns_on_plan
from agentrl_jax.train.teacher import Teacher, check_teacher

CONFIG = """
tasks: [{env: SimpleSokoban, groups: 2}]
prompt: {max_turns: 4, max_actions_per_turn: 3, max_actions: 12, max_response_tokens: 8}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
rollout: {group_size: 2}
algo: {preset: grpo, distillation: {kind: self, teacher: ema}}
imitation: {levels: 16, steps: 25, batch: 8, hinted: 0.5}
train: {iterations: 1, validate_every: 0, validation_episodes: 8}
evaluation: {episodes: 8}
"""


def made(home):
    return RunParts(load_config(tiny_run.write_config(home, CONFIG)), lambda: home)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return made(tmp_path_factory.mktemp("teacher"))


def test_a_hint_names_the_actions_as_responses_do(parts):
    hints = parts.plan_hints.write([np.array([0, 2, 1]), None], np.zeros(2, int))
    assert (hints.length[1], hints.turns.tolist()) == (0, [ALL_TURNS, 0])
    text = parts.tokenizer.decode(hints.tokens[0, : hints.length[0]].tolist())
    names = parts.train_env.tasks[0].env.actions
    assert text == f"\nPlan: {names[0]}||{names[2]}||{names[1]}\n"
    assert hints.tokens.shape == (2, parts.plan_hints.width)
    longest = parts.plan_hints.write([np.zeros(12, int)], np.zeros(1, int))
    assert longest.length[0] <= parts.plan_hints.width
    assert hints.at.tolist() == [len(parts.train_env.tasks[0].prompt.prefix)] * 2


def test_a_teacher_judges_the_turns_that_begin_on_the_plan():
    plan = np.array([1, 2, 3, 0, 1])
    actions = np.array(
        [
            [[1, 2], [3, 0], [1, -1], [-1, -1]],  # to its end
            [[1, 2], [3, 1], [0, 1], [-1, -1]],  # departs in the second turn
            [[1, -1], [2, 3], [-1, -1], [0, 1]],  # a turn without actions
            [[2, 2], [3, 0], [1, -1], [-1, -1]],
            [[1, 2], [3, 0], [1, -1], [-1, -1]],
        ]
    )
    assert turns_on_plan(actions, [plan, plan, plan, plan, None]).tolist() == [4, 2, 3, 1, 0]


def test_another_plan_is_the_next_one_that_differs():
    one, two = np.array([1, 2]), np.array([3])
    found = of_others([one, one.copy(), None, two])
    assert [x.tolist() for x in found] == [[3], [3], [3], [1, 2]]
    assert of_others([one, one])[0] is one
    assert of_others([one]) == [None]


def test_plans_are_searched_once_for_a_level_and_only_where_there_is_a_planner(parts, monkeypatch):
    own = PlanHints(parts.train_env, parts.config.prompt, parts.config.turns, parts.tokenizer)
    searched = []

    def plan(env, params, boards, limit):
        searched.append(len(boards))
        return [np.arange(limit + int(board[0, 0])) for board in boards]  # the last does not fit

    spec = types.SimpleNamespace(plan=plan)
    monkeypatch.setattr("agentrl_jax.setup.plan_hints.registry.spec", lambda name: spec)
    boards = np.stack([np.full((2, 2), n, np.int8) for n in (0, 0, 1)])
    assert [plan is None for plan in own.search(0, boards)] == [False, False, True]
    own.search(0, boards[::-1])
    assert searched == [2]
    spec.plan = None
    with pytest.raises(BadValue) as refused:
        own.check("algo.distillation.context", "plan")
    assert (refused.value.key, refused.value.value) == ("algo.distillation.context", "plan")


def test_success_is_measured_with_the_parameters_and_the_hints_of_the_teacher(parts):
    splits = parts.eval_splits
    held_out = HeldOut.of_run(parts.config, parts.eval_env, splits, parts.evaluation, parts.programs.replicas)
    (levels,) = held_out.validations
    count, played = levels.number(8), []

    def program(params, key, ids, settings):
        played.append((params["policy"], settings.hints))
        won = np.full(len(ids.group), settings.hints is not None)
        none = np.zeros(len(ids.group), bool)
        return types.SimpleNamespace(success=won, failed=none), None

    def play(self, params, episodes, temperature):
        return types.SimpleNamespace(
            success=program(params, None, self.ids(0, episodes, episodes), self.settings_at(1.0))[0].success
        )

    own = types.SimpleNamespace(
        **{name: getattr(levels, name) for name in ("number", "boards", "chunk", "ids", "settings_at", "key")},
        program=program,
    )
    own.play = functools.partial(play, levels)
    state = states.init_state(jax.random.key(0), parts.model, parts.tx, states.Kept(teacher=True))
    state = state.replace(teacher="average")
    teacher = Teacher.of_run(parts, types.SimpleNamespace(validations=[own]))
    assert teacher.measure(state) == {"distill/teacher_success": 1.0, "distill/student_success": 0.0}
    (policy, hints), (student, none) = played
    assert (policy, none) == ("average", None)
    assert student is state.params["policy"]
    expected = parts.plan_hints.write(parts.plan_hints.search(0, levels.boards(count)), np.zeros(count, int))
    np.testing.assert_array_equal(hints.tokens[:count], expected.tokens)


def test_a_weak_teacher_is_refused_unless_it_is_accepted(parts):
    def measured(teacher):
        return {"distill/teacher_success": teacher, "distill/student_success": 0.25}

    assert "50.0%" in check_teacher(parts.config, measured(0.5))
    error = refusal(check_teacher, parts.config, measured(0.4))
    assert (error.key, error.value) == ("algo.distillation.accept_weak_teacher", False)
    rule = SelfDistillation(accept_weak_teacher=True)
    accepted = parts.config.replace(algo=parts.config.algo.replace(distillation=rule))
    assert "40.0%" in check_teacher(accepted, measured(0.4))


def ids_of(parts):
    return jax.tree.map(np.asarray, build_inputs.training_ids(parts.config))


@pytest.mark.nightly
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


@pytest.mark.nightly
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
