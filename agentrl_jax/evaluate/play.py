"""Play an environment in the terminal, with the same text and functions that serve the agent."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.config import PromptConfig, TaskConfig
from agentrl_jax.environments.loading import is_path
from agentrl_jax.errors import UserError
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.mixed_env import TaskEnv
from agentrl_jax.rollout.recording import empty_response
from agentrl_jax.rollout.trajectory import Response, RolloutSettings
from agentrl_jax.setup import build
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.setup.python_task import single_env
from agentrl_jax.terminal import to_stderr
from agentrl_jax.text.grammar import ParsedResponse, ResponseGrammar
from agentrl_jax.text.reference import HostResponse, parse_response
from agentrl_jax.text.tokenizer import load_small
from envs_jax.registry import spec

PYTHON_ACTIONS = 100
"""Actions and turns of an episode of a Python environment, which names no limit."""

MOST_BYTES = 4096
"""Longest response that is read."""


def play(env: str, *, style: Literal["compact", "ragen"], think: bool, seed: int, levels: str | None) -> None:
    """Plays one episode. Standard output is exactly what the agent would read; hints go to standard error.

    A line from standard input is one response; there are turns for all actions. A bare list of actions gets the tags
    around it. The line `quit` or the end of the input ends the game. The first level of the file `levels` is played;
    None to generate one.

    Raises:
        UserError: the environment is unknown, or the levels cannot be read or do not fit it.
    """
    tokenizer = load_small()
    most = PYTHON_ACTIONS if is_path(env) else spec(env).max_actions
    turns = max(most, PromptConfig().max_turns)  # a response may have no action
    prompt = PromptConfig(style=style, think=think, max_turns=turns, max_actions=most)
    own = TaskConfig(env=env, groups=1, levels=levels or "")
    batched_env: TaskEnv
    params: tuple[Any, ...] = ()
    if is_path(env):
        batched_env = python = single_env(own, prompt, tokenizer)
        grammar = python.tasks[0].response_format
        listed = grammar.actions
    else:
        compiled = build.build_task(own, prompt, tokenizer)
        batched_env, params = CompiledEnv(tasks=(compiled,)), (compiled.env_params,)
        grammar = build.response_grammar(compiled.env.actions, prompt)
        # Actions that the agent's prompt does not list are not listed here.
        listed = grammar.actions if compiled.env.lists_actions else ()
    settings = RolloutSettings(
        temperature=jnp.ones(1),
        horizon=jnp.int32(prompt.max_turns),
        max_actions=jnp.int32(prompt.max_actions),
        env_params=params,
    )
    level = 0 if levels else seed if is_path(env) else -1
    ids = build.episode_ids(group=[0], member=[0], task=[0], level=[level])
    reset, step = compiled_game(batched_env)

    def show(tokens: np.ndarray) -> None:
        print(tokenizer.decode(tokens.tolist(), skip_special=False), end="", flush=True)

    example = f": {f' {grammar.separator} '.join(listed[:2])}" if listed else ""
    to_stderr(f"Response in the agent's format, or with actions alone{example}. `quit` or Ctrl-D ends the game.")
    to_stderr("Compiling the environment, which may take a minute the first time.")
    state, message = reset(jax.random.key(seed), settings, ids)
    show(batched_env.tasks[0].prompt.prefix)
    total, solved, ended = 0.0, False, f"after {turns} turns"
    for _ in range(prompt.max_turns):
        show(np.asarray(message.tokens[0, : message.length[0]]))
        try:
            line = input()
        except (EOFError, KeyboardInterrupt):
            line = "quit"
        if line.strip() == "quit":
            ended = "by you"
            break
        text = with_tags(line, grammar)
        if text != line:
            to_stderr(f"Sent as: {text}")
        data = text.encode("utf-8", "replace")[:MOST_BYTES]
        parsed = parse_response(data, grammar)
        known = parsed.num_valid if grammar.actions else parsed.num_parsed
        if known < parsed.num_parsed or not known:
            to_stderr("Not understood in full" + (f"; actions are {', '.join(listed)}." if listed else "."))
        # The response counts as truncated, so that the next message shows how its turn is closed.
        response = written(tokenizer.encode(data.decode("utf-8", "replace")))
        state, result, message = step(settings, state, response, on_device(parsed, grammar), jnp.ones(1, bool))
        if result.failed[0]:
            failures = batched_env.take_report().failures
            raise UserError(f"{env} failed: {'; '.join(f.error for f in failures) or 'no level was found'}", key=env)
        total += float(result.reward[0])
        solved |= bool(result.success[0])
        if result.terminated[0] or result.truncated[0]:
            ended = "by the environment" if result.terminated[0] else "at a limit of steps or actions"
            break
    to_stderr(f"\n{'Solved' if solved else 'Not solved'}, ended {ended}; return {total:g}.")


def written(tokens: list[int]) -> Response:
    """A response that did not end by itself, for one row; environments on the host read its tokens."""
    empty = empty_response(1, MOST_BYTES)
    return empty.replace(
        tokens=empty.tokens.at[0, : len(tokens)].set(jnp.array(tokens, jnp.int32)), length=jnp.array([len(tokens)])
    )


def compiled_game(batched_env: TaskEnv) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`batched_env.reset` and `batched_env.step` in one conversation, each compiled once in a process."""
    return jit_once(batched_env.reset, ("reset", batched_env)), jit_once(batched_env.step, ("step", batched_env))


def with_tags(line: str, grammar: ResponseGrammar) -> str:
    """The response for a typed line.

    A line without any tag is an answer and gets the missing tags. An opening tag that the prompt has already written is
    dropped. Everything else is unchanged.
    """
    if grammar.forced and line.lstrip().startswith(grammar.opening):
        return line.lstrip().removeprefix(grammar.opening)
    if "<" in line:
        return line
    before = ("" if grammar.forced else grammar.opening) + ("</think><answer>" if grammar.think else "")
    return f"{before}{line.strip()}</answer>"


def on_device(response: HostResponse, grammar: ResponseGrammar) -> ParsedResponse:
    """A response parsed on the host as what `BatchedEnv.step` takes, for one row."""
    actions = (*response.actions, *(-1,) * (grammar.max_actions - response.num_valid))
    return ParsedResponse(
        actions=jnp.array([actions], jnp.int32),
        num_valid=jnp.array([response.num_valid], jnp.int32),
        num_parsed=jnp.array([response.num_parsed], jnp.int32),
        format_ok=jnp.array([response.format_ok]),
    )
