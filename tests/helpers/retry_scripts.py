"""Episodes that are repeated after a failure: scripts for them, and functions that play them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import toy_agent
from prompt_texts import given_responses, message_text, prefix_text

from agentrl_jax.rollout import engine
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.retry import RetryEnv
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.setup import build, build_inputs
from agentrl_jax.text.styles import FEEDBACK

KEY = jax.random.key(7)
TURNS, ATTEMPTS, ACTIONS, LENGTH = 2, 3, 2, 5
SOLVE, SPEND, STAY, TALK = "Up||Up</answer><|end|>", "Down||Down</answer><|end|>", "Down</answer><|end|>", "Down<|end|>"


class SureLadder(toy_agent.Ladder):
    """Nobody slips, and the goal is rung 2."""

    def reset_env(self, key, params):
        goal, state = super().reset_env(key, params)
        return 0 * goal + 2, state.replace(goal=0 * goal + 2)

    def step_env(self, key, state, action, params):
        height = jnp.maximum(state.height + jnp.where(action == 0, 1, -1), 0)
        after = state.replace(height=height, time=state.time + 1, terminated=height == state.goal)
        info = {"success": after.terminated, "height": height}
        return height, after, jnp.float32(-0.5), after.terminated, info


SCRIPTS = {
    "solved at once": [[SOLVE]],
    "solved by the second attempt": [[STAY, STAY], [SOLVE]],
    "solved by the last turn": [[STAY, STAY], [STAY, STAY], [TALK, SOLVE]],
    "never solved": [[STAY, STAY], [STAY, STAY], [STAY, STAY]],
    "short attempts": [[SPEND], [SPEND], [TALK, TALK]],
}
"""The responses of each attempt of an episode."""
SAID = [[text for attempt in attempts for text in attempt] for attempts in SCRIPTS.values()]


def retry_env(tasks, attempts, turns=TURNS, prompt=toy_agent.CONFIG.prompt):
    tasks = tuple(
        build.make_task(task.name, task.env, task.env_params, prompt, toy_agent.TOKENIZER, feedback=FEEDBACK)
        for task in tasks
    )
    return RetryEnv(CompiledEnv(tasks), turns, attempts)


def played(policy, env, config, ids, settings, responses=None):
    def play(params, key, ids, settings, responses):
        return engine.rollout(params, toy_agent.MODEL.decoder, env, config, key, ids, settings, responses=responses)[0]

    return jax.tree.map(np.asarray, jax.jit(play)(policy, KEY, ids, settings, responses))


@functools.cache
def sure():
    prompt = toy_agent.CONFIG.prompt.replace(style="ragen", max_turns=TURNS, max_actions=ACTIONS)
    env = SureLadder(100)
    task = build.make_task("Sure", env, env.default_params, prompt, toy_agent.TOKENIZER)
    return retry_env((task,), ATTEMPTS, prompt=prompt)


def play_scripts(policy, context, **changes):
    count, env = len(SCRIPTS), sure()
    ids = build_inputs.episode_ids(
        group=np.arange(count), member=0 * np.arange(count), task=[0] * count, level=[-1] * count
    )
    settings = toy_agent.settings(
        count, horizon=jnp.int32(TURNS * ATTEMPTS), max_actions=jnp.int32(ACTIONS), env_params=env.env_params
    )
    config = toy_agent.engine_config(max_turns=TURNS * ATTEMPTS, max_response_tokens=LENGTH, context=context, **changes)
    return played(policy, env, config, ids, settings, given_responses(toy_agent.TOKENIZER, SAID, LENGTH))


def near_levels(count):
    ids = toy_agent.mixed_ids(256, 1)
    state, _ = jax.jit(toy_agent.BATCHED_ENV.reset)(KEY, toy_agent.settings(256), ids)
    near = np.flatnonzero(np.where(ids.task == 0, state.envs[0].goal, state.envs[1].goal) == 1)
    return toy_agent.rows(ids, near[:count])


def check_texts(trajectory, context):
    """All that the policy reads, by string joins; heights stay 0, so that every observation is the same."""
    (task,), rows = sure().tasks, pack_trajectories(trajectory, context)
    for row, attempts in enumerate(SCRIPTS.values()):
        if context == FULL:
            found = toy_agent.TOKENIZER.decode(rows.tokens[row, : rows.length[row]].tolist(), skip_special=False)
        else:
            turns = [row * TURNS * ATTEMPTS + turn for turn in range(len(SAID[row]))]
            lines = [rows.tokens[turn, : rows.length[turn]].tolist() for turn in turns]
            found = "".join(toy_agent.TOKENIZER.decode(line, skip_special=False) for line in lines)
        text, reward, prefix = "", 0.0, prefix_text(task.prompt, toy_agent.TOKENIZER)
        for number, responses in enumerate(attempts):
            left = ACTIONS
            for turn, response in enumerate(responses):
                first = context == SINGLE_TURN or number == turn == 0
                text += prefix if first else ""
                now = {"turn": turn, "actions_left": left, "reward": reward, "first": first}
                again = number > 0 and turn == 0
                text += message_text(task.prompt, "0 of 2", **now, response_ended=True, retry=again) + response
                taken = {SOLVE: 2, SPEND: 2, STAY: 1, TALK: 0}[response]
                left, reward = left - taken, -0.5 * taken
        assert found == text
        assert found.count(FEEDBACK) == len(attempts) - 1
