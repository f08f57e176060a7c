import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from toy_rollouts import KEY, forward_logprobs

from agentrl_jax.config import TaskConfig
from agentrl_jax.rollout import engine
from agentrl_jax.rollout.contexts import SINGLE_TURN
from agentrl_jax.rollout.envs.batched_env import CompiledEnv, shared_prefix_len
from agentrl_jax.rollout.recording import empty_response
from agentrl_jax.setup import build, build_inputs
from agentrl_jax.text.grammar import ParsedResponse
from envs_jax.batching import on_rows

GROUPS, TURNS = 8, 2


BANDIT = {"env": "Bandit"}
LADDER = {"env": "compiled:toy_agent:Ladder", "options": {"steps": 9}}


def program(*tasks):
    """A function of key and actions to messages and results; an episode's key depends on its index within its task."""
    config = toy_agent.CONFIG.replace(tasks=tuple(TaskConfig(groups=GROUPS, **task) for task in tasks))
    batched_env = build.build_compiled_env(config, toy_agent.TOKENIZER)
    group = np.tile(np.arange(GROUPS), len(tasks))
    ids = build_inputs.episode_ids(
        group=group, member=0 * group, task=np.repeat(np.arange(len(tasks)), GROUPS), level=0 * group - 1
    )
    rows = len(group)
    settings = build_inputs.rollout_settings(config, batched_env, rows, 1.0)
    count, every = np.full(rows, 2), np.ones(rows, bool)
    actions = np.stack([group + turn for turn in range(2 * TURNS)]).reshape(TURNS, 2, rows).swapaxes(1, 2) % 2

    @jax.jit
    def run(key, actions):
        state, message = batched_env.reset(key, settings, ids)
        messages, results = [message], []
        for turn in range(TURNS):
            parsed = ParsedResponse(actions=actions[turn], num_valid=count, num_parsed=count, format_ok=every)
            step = batched_env.step(settings, state, empty_response(rows, 8), parsed, every)
            state, result, message = step
            messages.append(message)
            results.append(result)
        return messages, results

    return run, jax.random.key(5), actions


class Together(toy_agent.Ladder):
    """What it shows is computed on the rows of a batch."""

    def describe(self, state, params):
        return on_rows(jax.vmap(super().describe))(state, params)


def test_an_environment_that_sees_all_of_its_rows_can_be_mixed():
    """As the planner of BabyAI does, see `envs_jax.batching`."""
    envs, prompt = (Together(100), toy_agent.Ladder(100)), toy_agent.CONFIG.prompt
    tasks = [build.make_task("Ladder", env, env.default_params, prompt, toy_agent.TOKENIZER) for env in envs]
    ids, settings = toy_agent.mixed_ids(4, 1), toy_agent.settings(4)
    one, other = (
        jax.jit(CompiledEnv(tasks=pair).reset)(jax.random.key(5), settings, ids)[1]
        for pair in ((tasks[0], tasks[1]), (tasks[1], tasks[1]))
    )
    np.testing.assert_array_equal(one.tokens, other.tokens)
    assert len(np.unique(one.tokens[:, :10], axis=0)) > 1


def test_a_task_plays_as_if_alone():
    programs = (program(LADDER), program(BANDIT, LADDER))
    alone, mixed = (jax.tree.map(np.asarray, run(*arguments)) for run, *arguments in programs)
    messages, results = jax.tree.map(lambda x: x[GROUPS:], mixed)
    for mine, own in zip(messages, alone[0], strict=True):
        width = own.tokens.shape[1]
        np.testing.assert_array_equal(mine.length, own.length)
        np.testing.assert_array_equal(mine.tokens[:, :width], own.tokens)
    for mine, own in zip(results, alone[1], strict=True):
        assert set(own.info) <= set(mine.info)
        for name in ("actions", "reward", "state_hash", "terminated", "truncated", "success", "format_error"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(own, name), err_msg=name)
    assert len(np.unique(messages[0].tokens, axis=0)) > 1


def test_the_prefix_in_common_is_what_all_tasks_begin_with():
    def batched_env(*names):
        tasks = tuple(TaskConfig(env=name, groups=1) for name in names)
        return build.build_compiled_env(toy_agent.CONFIG.replace(tasks=tasks), toy_agent.TOKENIZER)

    alone, mixed = batched_env("SimpleSokoban"), batched_env("SimpleSokoban", "FrozenLake", "Bandit")
    assert shared_prefix_len(alone) == alone.prefix.shape[1]
    # A bandit has no instruction, so its prefix is only the header of the message, which all tasks share.
    assert 0 < shared_prefix_len(mixed) == mixed.prefix_length.min() < mixed.prefix_length.max()
    same = mixed.prefix[:, : shared_prefix_len(mixed) + 1] == mixed.prefix[0, : shared_prefix_len(mixed) + 1]
    assert same[:, :-1].all()
    assert not same[:, -1].all()


def test_messages_longer_than_their_bound_are_cut_and_counted():
    def first(bound):
        env = toy_agent.make_batched_env(observation_tokens=bound)
        reset = jax.jit(env.reset)
        return reset(jax.random.key(0), toy_agent.settings(1), toy_agent.mixed_ids(1, 1))[1], env.observation_tokens

    (full, most), (cut, few) = first(0), first(4)
    assert toy_agent.make_batched_env(observation_tokens=4096).observation_tokens == most
    assert not full.overflow.any()
    assert cut.overflow.all()
    assert cut.length.tolist() == [4]
    assert cut.tokens.shape == (1, few) == (1, 4)
    np.testing.assert_array_equal(cut.tokens, full.tokens[:, :4])


@pytest.mark.nightly
def test_babyai_whose_planner_sees_all_rows_can_be_mixed():
    """Tracing alone would fail where the rows of a task are looked at one by one."""
    tasks = tuple(TaskConfig(env=name, groups=8) for name in ("BabyAI-GoToRedBallNoDists", "FrozenLake"))
    config = toy_agent.CONFIG.replace(tasks=tasks)
    env = build.build_compiled_env(config, toy_agent.TOKENIZER)
    ids, settings = toy_agent.mixed_ids(16, 1), build_inputs.rollout_settings(config, env, 16, 1.0)

    def run(key, actions, count, every):
        state, _ = env.reset(key, settings, ids)
        parsed = ParsedResponse(actions=actions, num_valid=count, num_parsed=count, format_ok=every)
        return env.step(settings, state, empty_response(16, 8), parsed, every)[1]

    shapes = [
        jax.ShapeDtypeStruct(shape, kind) for shape, kind in (((16, 2), "int32"), ((16,), "int32"), ((16,), bool))
    ]
    assert jax.eval_shape(run, jax.random.key(5), *shapes).reward.shape == (16,)


@pytest.mark.nightly
def test_single_turns_of_tasks_with_different_prompts(policy):
    env = toy_agent.make_batched_env(legends=((), (("0", "the ground"), ("9", "the top"))))
    assert len(set(env.prefix_length.tolist())) == 2
    options = {"context": SINGLE_TURN, "stop_at_answer": True, "slots": 4, "prefill_threshold": 0.5}
    config, ids = toy_agent.engine_config(**options), toy_agent.mixed_ids(16, 1)
    play = jax.jit(lambda *x: engine.rollout(x[0], toy_agent.MODEL.decoder, env, config, KEY, ids, x[1])[0])
    found = play(policy, toy_agent.settings(16))
    rows, expected = forward_logprobs(policy, found, SINGLE_TURN, jnp.ones(16))
    sampled = np.asarray(rows.response_mask)
    assert sampled.reshape(16, toy_agent.TURNS, -1)[:, 1:].any()
    np.testing.assert_allclose(np.asarray(rows.logprob)[sampled], np.asarray(expected)[sampled], atol=1e-4)
    played = np.asarray(found.turn_mask)
    # Every turn opens a conversation.
    assert len(np.unique(np.asarray(found.observation)[played][:, 0])) == 1
    closed = 0
    for tokens, length in zip(np.asarray(found.response.tokens)[played], np.asarray(found.response.length)[played]):
        text = toy_agent.TOKENIZER.decode(tokens[:length].tolist())
        assert "</answer>" not in text[:-1]
        closed += text.endswith("</answer>")
    assert closed > 4
