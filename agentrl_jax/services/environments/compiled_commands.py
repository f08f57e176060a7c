"""Environments of commands (`envs_jax.token_environment`) as services, beside `compiled` for those of action names."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from agentrl_jax.services.action_parsing import ParsedAction
from agentrl_jax.services.environment import ScriptedPolicy, Service
from agentrl_jax.services.environments.compiled import Compiled, programs
from agentrl_jax.text.grammar import CommandGrammar
from agentrl_jax.text.reference import find_command
from envs_jax import registry
from envs_jax.scripted_commands import command_of, written
from envs_jax.token_environment import TokenEnvironment


def _grammar(env: TokenEnvironment) -> CommandGrammar:
    return CommandGrammar(actions=env.actions, templates=env.command_templates, think=False, forced=False)


class CompiledCommands(Compiled):
    """One episode. An action is a response, of which the first command is read."""

    def __init__(self, tag: str):
        super().__init__(tag)
        self._grammar = _grammar(self._programs.env)

    def _read(self, action: str) -> tuple[list[tuple[int, Any]], str]:
        data = action.encode("utf-8", "replace")
        found, env = find_command(data, self._grammar), self._programs.env
        if found is None:
            return [(-1, env.null_action)], ""
        return [(found.action, env.command(found.action, data[found.first : found.end]))], ""


@functools.cache
def _program(tag: str) -> Callable[[int, jax.Array, Any], Any]:
    """(the number of a scripted policy, key, state) -> its command in an environment."""
    env, params = programs(tag)[:2]
    spec = registry.spec(tag)
    command = functools.partial(command_of, env, spec.scripts, spec.policies)
    return jax.jit(functools.partial(command, params=params))


class _Player:
    """Plays a scripted policy, which knows the state by playing along."""

    def __init__(self, tag: str, policy: str, item: int, seed: int):
        self._instance, self._key, self._turn = CompiledCommands(tag), jax.random.key(seed), 0
        self._env, self._command = programs(tag).env, _program(tag)
        self._policy = list(registry.spec(tag).policies).index(policy)
        self._instance.reset(item)

    def act(self, observation: str) -> str:
        """The next command as text; empty for none."""
        command = self._command(self._policy, jax.random.fold_in(self._key, self._turn), self._instance.state)
        self._turn += 1
        text = written(self._env, command).decode("utf-8", "replace")
        self._instance.step(text)
        return text


def commands_service(tag: str) -> Service:
    """The service of an environment of commands; its scripted policies are those of the registry."""
    env, spec = programs(tag).env, registry.spec(tag)

    def player(policy: str) -> Callable[..., ScriptedPolicy]:
        return lambda item, seed=0: _Player(tag, policy, item, seed)

    policies = {name: player(name) for name in spec.policies}
    return Service(
        name=tag,
        make=lambda upstream: CompiledCommands(tag),
        items=2**32,
        instruction=f"{env.instruction}\nThink, then write {' or '.join(_grammar(env).listed)} once in each response.",
        read=lambda response: ParsedAction(response),
        marked=False,
        turns=spec.max_actions,
        solved=lambda answer: answer.info.get("success") is True,
        success_rule=spec.success_rule,
        oracle=policies.get("oracle"),
        random=policies["random"],
        policies=policies,
    )
