"""Compiled tasks and tasks on the host in one batch: each row is as it would be alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from host_stage import BUDGET, GRAMMAR, KEY, Stage
from prompt_texts import given_responses

from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.mixed_env import MixedEnv, Part
from agentrl_jax.rollout.trajectory import RolloutSettings
from agentrl_jax.setup import build, build_inputs
from agentrl_jax.setup.play_responses import play_responses
from agentrl_jax.text.grammar import ParsedResponse
from agentrl_jax.text.reference import parse_response

TURNS, LENGTH, TASK = 4, 12, np.array([0, 1, 1, 0, 1, 0])
ON_HOST = TASK == 1
SAID = [
    [f"{action}</answer><|end|>"] * TURNS
    for action in ("Down", "Left", "Right||Left", "Up||Down", "Right", "Down||Down")
]


@pytest.fixture(scope="module")
def stage():
    return Stage()


@pytest.fixture(scope="module")
def mixed(stage):
    return MixedEnv([Part(compiled(), (0,)), Part(stage.batched_env, (1,), max_actions=BUDGET)])


@functools.cache
def compiled():
    return CompiledEnv(tasks=(toy_agent.make_task("Ladder", 100, toy_agent.CONFIG.prompt),))


def played(env, rows=None):
    """What is recorded of the episodes, or of some of them, whose only task is then number 0."""
    rows = np.arange(len(TASK)) if rows is None else np.flatnonzero(rows)
    said = given_responses(toy_agent.TOKENIZER, [SAID[row] for row in rows], LENGTH)
    forms = [GRAMMAR if ON_HOST[row] else LADDER for row in rows]
    texts = [[text.removesuffix("<|end|>").encode() for text in SAID[row]] for row in rows]
    parsed = [[parse_response(text, form) for text in of_row] for of_row, form in zip(texts, forms)]

    def array(read):
        return jnp.asarray([[read(response) for response in turns] for turns in parsed])

    found = ParsedResponse(
        actions=array(lambda r: [*r.actions, -1, -1][:2]).astype(jnp.int32),
        num_valid=array(lambda r: r.num_valid).astype(jnp.int32),
        num_parsed=array(lambda r: r.num_parsed).astype(jnp.int32),
        format_ok=array(lambda r: r.format_ok),
    )
    task = TASK[rows] if isinstance(env, MixedEnv) else 0 * rows
    ids = build_inputs.episode_ids(group=rows, member=0 * rows, task=task, level=np.full(len(rows), -1))
    budget = BUDGET if env.on_host and not isinstance(env, MixedEnv) else 5
    limits = {"horizon": jnp.int32(TURNS), "max_actions": jnp.int32(budget)}
    settings = RolloutSettings(temperature=jnp.ones(len(rows)), env_params=env.env_params, **limits)
    play = jax.jit(functools.partial(play_responses, env, context=FULL))
    return jax.tree.map(np.asarray, play(KEY, settings, ids, said.tokens, said.length, found))


LADDER = build.response_grammar(("Up", "Down"), toy_agent.CONFIG.prompt)


def test_rows_are_those_of_batches_of_one_kind_and_the_host_is_asked_for_its_own(stage, mixed):
    stage.calls.clear()
    together = played(mixed)
    turns = together.num_turns
    assert turns[~ON_HOST].max() > turns[ON_HOST].max() > 0, "the ladder is longer than the letters"
    assert stage.calls == {"made": ON_HOST.sum(), "reset": 1, "step": turns[ON_HOST].max()}
    for env, rows in ((compiled(), ~ON_HOST), (stage.batched_env, ON_HOST)):
        alone = played(env, rows)
        np.testing.assert_array_equal(turns[rows], alone.num_turns)
        np.testing.assert_array_equal(together.truncation[rows], alone.truncation)
        np.testing.assert_array_equal(together.observation_length[rows], alone.observation_length)
        width = alone.observation.shape[2]
        np.testing.assert_array_equal(together.observation[rows][..., :width], alone.observation)
        for name, values in vars(alone.turn).items():
            ours = getattr(together.turn, name)
            if name == "info":
                assert set(ours) == {"height", "delivered"}
                ours = {key: ours[key] for key in values}
            jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[rows], b), ours, values)  # noqa: B023
    assert not together.turn.info["delivered"][~ON_HOST].any()
    assert not together.turn.info["height"][ON_HOST].any()


def test_a_part_has_the_turns_of_its_tasks(mixed):
    settings = RolloutSettings(
        temperature=jnp.ones(2), env_params=mixed.env_params, horizon=jnp.int32(5), max_actions=jnp.int32(5)
    )
    rows = jnp.zeros(2, jnp.int32)
    assert mixed.parts[1].settings(settings).turns_of(rows).tolist() == 5
    settings = settings.replace(task_turns=jnp.array([7, 3]))
    assert [part.settings(settings).turns_of(rows).tolist() for part in mixed.parts] == [[5, 5], [3, 3]]


def test_what_a_batch_says_of_its_tasks(stage, mixed):
    assert [task.name for task in mixed.tasks] == ["Ladder", "Courier"]
    assert (mixed.on_host, compiled().on_host) == (True, False)
    assert mixed.env_params == (compiled().env_params[0], ())
    assert [mixed.levels(0), mixed.levels(1)] == [0, 0]
    assert mixed.observation_tokens == max(compiled().observation_tokens, stage.batched_env.observation_tokens)
    mixed.take_report()
    stage.batched_env.host_episodes.reset(np.zeros((1, 5), np.int32), np.zeros(1, np.uint32), np.ones(1, bool))
    assert [mixed.take_report().calls, mixed.take_report().calls] == [1, 0]
    assert len(stage.batched_env.host_episodes._episodes) == 1
    mixed.clear()
    assert len(stage.batched_env.host_episodes._episodes) == 0


def test_tasks_that_cannot_be_joined(stage):
    more = toy_agent.CONFIG.prompt.replace(max_actions_per_turn=3)
    other = CompiledEnv(tasks=(toy_agent.make_task("Ladder", 9, more),))
    for parts, key in (
        ([Part(compiled(), (1,))], "parts"),
        ([Part(other, (0,)), Part(stage.batched_env, (1,))], "max_actions"),
    ):
        with pytest.raises(BadValue) as refused:
            MixedEnv(parts)
        assert refused.value.key == key
