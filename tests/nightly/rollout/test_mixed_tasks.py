import jax
import toy_agent

from agentrl_jax.config import TaskConfig
from agentrl_jax.rollout.recording import empty_response
from agentrl_jax.setup import build
from agentrl_jax.text.grammar import ParsedResponse


def test_babyai_whose_planner_sees_all_rows_can_be_mixed():
    """Tracing alone would fail where the rows of a task are looked at one by one."""
    tasks = tuple(TaskConfig(env=name, groups=8) for name in ("BabyAI-GoToRedBallNoDists", "FrozenLake"))
    config = toy_agent.CONFIG.replace(tasks=tasks)
    env = build.build_compiled_env(config, toy_agent.TOKENIZER)
    ids, settings = toy_agent.mixed_ids(16, 1), build.rollout_settings(config, env, 16, 1.0)

    def run(key, actions, count, every):
        state, _ = env.reset(key, settings, ids)
        parsed = ParsedResponse(actions=actions, num_valid=count, num_parsed=count, format_ok=every)
        return env.step(settings, state, empty_response(16, 8), parsed, every)[1]

    shapes = [
        jax.ShapeDtypeStruct(shape, kind) for shape, kind in (((16, 2), "int32"), ((16,), "int32"), ((16,), bool))
    ]
    assert jax.eval_shape(run, jax.random.key(5), *shapes).reward.shape == (16,)
