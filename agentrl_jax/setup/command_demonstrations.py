"""Demonstrations in environments of commands: what scripted policies write, as responses in the policy's tokens.

Shapes: `E` episodes, `T` turns, `N` bytes of an argument, `L` tokens of a response.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from agentrl_jax.config import ImitationConfig, PromptConfig
from agentrl_jax.errors import BadValue
from agentrl_jax.rollout import rng
from agentrl_jax.rollout.contexts import Context
from agentrl_jax.rollout.envs.batched_env import CompiledEnv, Task, start_state
from agentrl_jax.rollout.envs.level_splits import LevelSplits
from agentrl_jax.rollout.trajectory import EpisodeIds, RolloutSettings, Trajectory
from agentrl_jax.setup import build_inputs
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.setup.play_responses import play_responses
from agentrl_jax.text.grammar import ParsedResponse
from agentrl_jax.text.pieces import encode_pieces
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax import registry
from envs_jax.scripted_commands import command_of, written
from envs_jax.splits import Split
from envs_jax.token_environment import Command

NAMED = {"optimal": "oracle"}
"""Policies of `imitation.plans` that have another name in the registry."""

AT_ONCE = 256
"""Episodes that one program plays, because the state of each may be a whole corpus."""


def policy_of(task: Task, plans: str) -> int:
    """The number of the scripted policy of a task of commands that `imitation.plans` names; ValueError without one."""
    policies = registry.spec(task.name).policies
    name = NAMED.get(plans, plans)
    if name not in policies:
        known = ", ".join(("optimal", *(other for other in policies if other not in NAMED.values())))
        raise BadValue.of("imitation.plans", plans, f"expected one of {known} for {task.name}")
    return list(policies).index(name)


def command_demonstrations(
    batched_env: CompiledEnv,
    chosen: Sequence[int],
    splits: LevelSplits,
    key: Key[Array, ""],
    prompt: PromptConfig,
    imitation: ImitationConfig,
    context: Context,
    tokenizer: Tokenizer,
) -> Trajectory:
    """Plays `imitation.levels` training levels of each of the tasks `chosen` by the scripted policy `imitation.plans`.

    Responses are commands without a thought; an episode ends where the policy writes none. They have the tokens of
    the environment's pieces, as observations do, or with the canonical encoder those of the whole text.

    Raises:
        ValueError: a task has no such policy, or a response is longer than `prompt.max_response_tokens`.
    """
    task = np.repeat(np.asarray(chosen), imitation.levels)
    group = np.tile(np.arange(imitation.levels), len(chosen))
    parts = []
    for first in range(0, len(task), AT_ONCE):
        rows = np.minimum(np.arange(first, first + min(AT_ONCE, len(task))), len(task) - 1)
        ids = build_inputs.episode_ids(
            group=group[rows], member=np.zeros_like(rows), task=task[rows], level=np.full(len(rows), -1)
        )
        settings = RolloutSettings(
            temperature=jnp.ones(len(rows), jnp.float32),
            horizon=jnp.int32(prompt.max_turns),
            max_actions=jnp.int32(prompt.max_actions),
            env_params=batched_env.env_params,
            split=splits.of(Split.TRAIN),
        )
        played = _played(batched_env, key, ids, settings, prompt, imitation.plans, context, tokenizer)
        left = len(task) - first
        parts.append(jax.tree.map(lambda x, left=left: x[:left], played))
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


def _played(
    batched_env: CompiledEnv,
    key: Key[Array, ""],
    ids: EpisodeIds,
    settings: RolloutSettings,
    prompt: PromptConfig,
    plans: str,
    context: Context,
    tokenizer: Tokenizer,
) -> Trajectory:
    number, turns, per_turn = ids.task.shape[0], prompt.max_turns, batched_env.max_actions_per_turn
    tokens = np.zeros((number, turns, prompt.max_response_tokens), np.int32)
    length, actions = np.zeros((number, turns), np.int32), np.full((number, turns, per_turn), -1, np.int32)
    for index in sorted(set(np.asarray(ids.task).tolist())):
        task = batched_env.tasks[index]
        write = functools.partial(_commands, task, turns, batched_env.shared_noise)
        program = jit_once(write, ("commands", task.env, turns, batched_env.shared_noise))
        split = jnp.broadcast_to(settings.split, len(batched_env.tasks))[index]
        commands = jax.device_get(
            program(key, ids, settings.env_params[index], split, jnp.int32(policy_of(task, plans)))
        )
        for row, turn in np.argwhere(np.asarray(ids.task)[:, None] == np.full(turns, index)):
            command = jax.tree.map(lambda x, at=(row, turn): x[at], commands)
            response = response_tokens(task, prompt, command, tokenizer)
            if len(response) > prompt.max_response_tokens:
                raise BadValue.of(
                    "max_response_tokens",
                    prompt.max_response_tokens,
                    f"but a command of {plans} in {task.name} takes {len(response)} tokens; use at least as many",
                )
            tokens[row, turn, : len(response)], length[row, turn] = response, len(response)
            actions[row, turn, 0] = command.action
    given = jnp.asarray(actions[..., 0] >= 0, jnp.int32)
    parsed = ParsedResponse(actions=jnp.asarray(actions), num_valid=given, num_parsed=given, format_ok=given > 0)
    play = functools.partial(play_responses, batched_env, context=context, ended=False)
    return jit_once(play, ("play_commands", play))(key, settings, ids, jnp.asarray(tokens), jnp.asarray(length), parsed)


def response_tokens(task: Task, prompt: PromptConfig, command: Command, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a command as a response, with an empty thought where the format has one; none for no command."""
    text = written(task.env, command).decode("utf-8", "replace")
    if not text:
        return []
    thought = f"{'' if prompt.forced_tag else '<think>'}</think>" if prompt.think else ""
    before, after = task.env.command_templates[int(command.action)]
    argument = text.removeprefix(before).removesuffix(after)
    by_length = sorted(task.env.pieces, key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, by_length))})", argument)
    parts = [part for part in (thought, before, *pieces, after) if part]
    return encode_pieces(tokenizer, parts, joined=prompt.encoder == "canonical")


def _commands(
    task: Task,
    turns: int,
    shared_noise: bool,
    key: Key[Array, ""],
    ids: EpisodeIds,
    params: Any,
    split: Int[Array, ""],
    policy: Int[Array, ""],
) -> Command:
    """The commands of a policy, leaves [E, T, ...], on the levels and with the noise of the episodes `ids`."""
    env, spec = task.env, registry.spec(task.name)

    def episode(level_key: jax.Array, noise_key: jax.Array) -> Command:
        start, _ = start_state(env, level_key, jnp.int32(-1), jnp.bool_(True), params=params, split=split)

        def turn(state: Any, number: jax.Array) -> tuple[Any, Command]:
            action_key = rng.action_key(noise_key, number)
            command = command_of(env, spec.scripts, spec.policies, policy, action_key, state, params)
            return env.step_env(action_key, state, command, params)[1], command

        return jax.lax.scan(turn, start, jnp.arange(turns))[1]

    return jax.vmap(episode)(rng.level_key(key, ids), rng.noise_key(key, ids, shared=shared_noise))
