"""Play an environment in the terminal, with the same text and functions that serve the agent."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.config import Config, PromptConfig, ServiceConfig, TaskConfig
from agentrl_jax.environments.kinds import kind_of
from agentrl_jax.errors import UserError
from agentrl_jax.rollout.envs.mixed_env import TaskEnv
from agentrl_jax.rollout.recording import empty_response
from agentrl_jax.rollout.trajectory import Response, RolloutSettings
from agentrl_jax.setup import build_inputs
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.setup.service_tasks import Services, batched_envs
from agentrl_jax.terminal import to_stderr
from agentrl_jax.text.grammar import CommandGrammar, ParsedResponse, ResponseGrammar
from agentrl_jax.text.reference import HostResponse, parse_response
from agentrl_jax.text.tokenizer import load_small

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
    kind = kind_of(env)
    most = kind.max_actions(env)
    prompt = PromptConfig(
        style=style if kind.has_answer_block else "chat",
        think=think,
        max_turns=max(most, PromptConfig().max_turns),  # a response may have no action
        max_actions=most,
    )
    items = str(seed) if kind.needs_items else ""
    config = Config(
        tasks=(TaskConfig(env=env, groups=1, levels=levels or "", items=items, held_out=items),),
        prompt=prompt,
        env=ServiceConfig(url="local", observation_tokens=MOST_BYTES) if items else ServiceConfig(),
    )
    services = Services.of(config, Path)
    try:
        _play(env, config.prompt, batched_envs(config, load_small(), services)[0], seed, numbered=bool(levels or items))
    finally:
        if services is not None:
            services.close()


def _play(env: str, prompt: PromptConfig, batched_env: TaskEnv, seed: int, *, numbered: bool) -> None:
    """Plays an episode on the first level, if levels are `numbered`, else on that of the seed."""
    tokenizer, turns, (task,) = load_small(), prompt.max_turns, batched_env.tasks
    grammar = task.response_format
    # Actions that the agent's prompt does not list are not listed here.
    listed = grammar.listed if task.lists_actions else ()
    settings = RolloutSettings(
        temperature=jnp.ones(1),
        horizon=jnp.int32(prompt.max_turns),
        max_actions=jnp.int32(prompt.max_actions),
        env_params=batched_env.env_params,
    )
    level = 0 if numbered else seed if task.has_items else -1
    ids = build_inputs.episode_ids(group=[0], member=[0], task=[0], level=[level])
    reset, step = compiled_game(batched_env)

    def show(tokens: np.ndarray) -> None:
        print(tokenizer.decode(tokens.tolist(), skip_special=False), end="", flush=True)

    if isinstance(grammar, CommandGrammar):
        how = f": {' or '.join(listed)}"
    else:
        example = f": {f' {grammar.separator} '.join(listed[:2])}" if listed else ""
        how = f", or with actions alone{example}"
    to_stderr(f"Response in the agent's format{how}. `quit` or Ctrl-D ends the game.")
    to_stderr("Compiling the environment, which may take a minute the first time.")
    state, message = reset(jax.random.key(seed), settings, ids)
    show(task.prompt.prefix)
    total, solved, ended = 0.0, False, f"after {turns} turns"
    for _ in range(turns):
        show(np.asarray(message.tokens[0, : message.length[0]]))
        try:
            line = input()
        except (EOFError, KeyboardInterrupt):
            line = "quit"
        if line.strip() == "quit":
            ended = "by you"
            break
        text = with_tags(line, grammar) if prompt.has_answer_block else line
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


def with_tags(line: str, grammar: ResponseGrammar | CommandGrammar) -> str:
    """The response for a typed line.

    A line without any tag is an answer and gets the missing tags; a command gets an empty thought. An opening tag that
    the prompt has already written is dropped. Everything else is unchanged.
    """
    if grammar.forced and line.lstrip().startswith(grammar.opening):
        return line.lstrip().removeprefix(grammar.opening)
    if isinstance(grammar, CommandGrammar):
        thought = ("" if grammar.forced else grammar.opening) + "</think>"
        return line if not grammar.think or "</think>" in line else thought + line
    if "<" in line:
        return line
    before = ("" if grammar.forced else grammar.opening) + ("</think><answer>" if grammar.think else "")
    return f"{before}{line.strip()}</answer>"


def on_device(response: HostResponse, grammar: ResponseGrammar | CommandGrammar) -> ParsedResponse:
    """A response parsed on the host as what `BatchedEnv.step` takes, for one row."""
    actions = (*response.actions, *(-1,) * (grammar.max_actions - response.num_valid))
    return ParsedResponse(
        actions=jnp.array([actions], jnp.int32),
        num_valid=jnp.array([response.num_valid], jnp.int32),
        num_parsed=jnp.array([response.num_parsed], jnp.int32),
        format_ok=jnp.array([response.format_ok]),
    )
