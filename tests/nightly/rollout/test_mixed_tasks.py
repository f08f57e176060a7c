import jax
import jax.numpy as jnp
import numpy as np
import toy_agent
from toy_agent import TURNS
from toy_rollouts import KEY, forward_logprobs

from agentrl_jax.config import TaskConfig
from agentrl_jax.rollout import engine
from agentrl_jax.rollout.contexts import SINGLE_TURN
from agentrl_jax.rollout.recording import empty_response
from agentrl_jax.setup import build, build_inputs
from agentrl_jax.text.grammar import ParsedResponse


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


def test_single_turns_of_tasks_with_different_prompts(policy):
    env = toy_agent.make_batched_env(legends=((), (("0", "the ground"), ("9", "the top"))))
    assert len(set(env.prefix_length.tolist())) == 2
    options = {"context": SINGLE_TURN, "stop_at_answer": True, "slots": 4, "prefill_threshold": 0.5}
    config, ids = toy_agent.engine_config(**options), toy_agent.mixed_ids(16, 1)
    play = jax.jit(lambda *x: engine.rollout(x[0], toy_agent.MODEL.decoder, env, config, KEY, ids, x[1])[0])
    found = play(policy, toy_agent.settings(16))
    rows, expected = forward_logprobs(policy, found, SINGLE_TURN, jnp.ones(16))
    sampled = np.asarray(rows.response_mask)
    assert sampled.reshape(16, TURNS, -1)[:, 1:].any()
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
