"""Environments of `envs_jax` as services: the same levels, texts, rewards and actions as in the compiled loop."""

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.services.action_parsing import last_action
from agentrl_jax.services.environment import ScriptedPolicy, Service, ServiceEnvironment, StepResult
from agentrl_jax.services.environments.common import ListedPolicy
from envs_jax import registry
from envs_jax.environment import TextEnvironment
from envs_jax.reference import Reference, Situation, reference_of_plans
from envs_jax.token_environment import TokenEnvironment

SEPARATOR = "||"
"""Separates the actions of one response."""

MAX_ACTIONS_PER_RESPONSE = 5
"""Maximum number of names in one response, known or not; the rest are ignored."""


class Programs(NamedTuple):
    """An environment and its functions compiled, not batched; shared by all instances.

    `max_actions` is the action budget of an episode, `per_response` the maximum number of names in one response.
    """

    env: TextEnvironment
    params: Any
    max_actions: int
    per_response: int
    reset: Callable[[jax.Array], Any]
    step: Callable[[jax.Array, Any, Any], tuple[Any, jax.Array, jax.Array, jax.Array, jax.Array]]


@functools.cache
def programs(tag: str) -> Programs:
    """The compiled functions of an environment with its default options; `ValueError` if there is none."""
    env, params = registry.make(tag)

    def step(key, state, action):
        _, state, reward, _, _ = env.step_env(key, state, action, params)
        return state, reward, env.is_done(state, params), env.is_terminated(state, params), env.success(state, params)

    # Where the possible actions change with the state, the names of later ones are not known yet.
    per_response = 1 if hasattr(env, "candidates") else MAX_ACTIONS_PER_RESPONSE
    reset = jax.jit(lambda key: env.reset_env(key, params)[1])
    return Programs(env, params, registry.spec(tag).max_actions, per_response, reset, jax.jit(step))


def item_key(item: int) -> jax.Array:
    """The key of an item's level; for items below 2**32 it is `jax.random.key(item)`."""
    low, high = item & 0xFFFFFFFF, item >> 32 & 0xFFFFFFFF
    return jax.random.wrap_key_data(jnp.array([high, low], jnp.uint32))


def noise_key(key: jax.Array) -> jax.Array:
    """The key of the random transitions of an episode, into which the number of a primitive action is folded."""
    return jax.random.fold_in(key, 1)


class Compiled(ServiceEnvironment):
    """One episode. Item i is the level generated from the key `jax.random.key(i)`.

    An action is one name, or several separated by `SEPARATOR` where the possible actions are always the same; case does
    not matter. Unknown names are skipped; the observation then starts with a line that lists the actions, or says that
    there is no such action if the environment does not list them. The episode ends with the environment's action budget
    at the latest, which is that of the compiled loop. The score is the sum of the rewards.
    """

    def __init__(self, tag: str):
        self._programs = programs(tag)
        self._names = {name.lower(): number for number, name in enumerate(self._programs.env.actions)}
        self._key, self._state = jax.random.key(0), None
        self.executed: list[int] = []
        """Ids of the primitive actions of the last step."""
        self._steps, self._score = 0, 0.0

    def reset(self, item: int) -> StepResult:
        """Generates the level of an item, any integer; its low 64 bits are used."""
        self._key = item_key(item)
        self._state = self._programs.reset(self._key)
        self._steps, self._score = 0, 0.0
        return StepResult(self._text())

    def step(self, action: str) -> StepResult:
        """Plays the named actions."""
        known, complaint = self._read(action)
        reward, done, terminated, success = 0.0, False, False, False
        self.executed = []
        for number, given in known:
            self.executed.append(number)
            key = jax.random.fold_in(noise_key(self._key), self._steps)
            self._state, earned, *ends = self._programs.step(key, self._state, given)
            self._steps += 1
            reward += float(earned)
            over, terminated, success = map(bool, ends)
            done = over or self._steps >= self._programs.max_actions
            if done:
                break
        self._score += reward
        info = {"success": success, "truncated": done and not terminated}
        return StepResult(complaint + self._text(), reward, self._score, done, info)

    def _read(self, action: str) -> tuple[list[tuple[int, Any]], str]:
        """The ids of the actions in a response and what the environment is given for each; and a complaint, if any."""
        named = [name.strip() for name in action.split(SEPARATOR)][: self._programs.per_response]
        known = [self._names[name.lower()] for name in named if name.lower() in self._names]
        env = self._programs.env
        names = f"Actions are {', '.join(env.actions)}." if env.lists_actions else "There is no such action."
        return [(number, jnp.int32(number)) for number in known], "" if len(known) == len(named) else f"{names}\n"

    @property
    def names(self) -> Sequence[str]:
        """The names of the actions, by their ids."""
        return self._programs.env.actions

    @property
    def state(self) -> Any:
        """The present state."""
        return self._state

    def situation(self, of: Situation) -> int:
        """The situation of the present state."""
        return int(of(self._state))

    def _text(self) -> str:
        return self._programs.env.render(self._state, self._programs.params)


def executed_actions(tag: str, item: int, actions: Sequence[str]) -> list[list[int]]:
    """The ids of the primitive actions that each action of an episode on an item carries out."""
    instance = Compiled(tag)
    instance.reset(item)
    found = []
    for action in actions:
        instance.step(action)
        found.append(instance.executed)
    return found


class _Oracle:
    """Takes the best action in the situation of each moment, which it knows by playing along: on slippery ice too."""

    def __init__(self, tag: str, item: int, reference: Reference):
        self._instance, self._reference, self._taken = Compiled(tag), reference, 0
        self._per_response = programs(tag).per_response
        self._instance.reset(item)

    def act(self, observation: str) -> str:
        """The next best actions, as many as a response may have; fewer, or an empty one, where none is known."""
        names: list[str] = []
        over = False
        while not over and len(names) < self._per_response:
            actions = self._reference.actions[0]
            number = int(
                actions[min(self._taken, len(actions) - 1), self._instance.situation(self._reference.situation)]
            )
            if number < 0:
                break
            self._taken += 1
            names.append(self._instance.names[number])
            over = self._instance.step(names[-1]).done
        return SEPARATOR.join(names)


class _Random:
    """Chooses actions uniformly at random, as many as a response may have."""

    def __init__(self, actions: Sequence[str], seed: int):
        self._actions, self._rng = actions, random.Random(seed)

    def act(self, observation: str) -> str:
        """Random actions."""
        return SEPARATOR.join(self._rng.choice(self._actions) for _ in range(MAX_ACTIONS_PER_RESPONSE))


def compiled_service(tag: str) -> Service:
    """The service of an environment of `envs_jax`; `ValueError` if there is none."""
    env, params, max_actions, per_response = programs(tag)[:4]
    spec = registry.spec(tag)
    if isinstance(env, TokenEnvironment):
        from agentrl_jax.services.environments.compiled_commands import commands_service

        return commands_service(tag)

    def oracle(item: int) -> ScriptedPolicy:
        level = np.asarray(env.sample_level(jax.random.key(item), params))[None]
        if spec.solve is None:
            assert spec.plan is not None
            found = reference_of_plans(spec.plan(env, params, level, max_actions), np.zeros(1, bool))
        else:
            start = jax.tree.map(lambda x: x[None], programs(tag).reset(item_key(item)))
            found = spec.solve(env, params, level, start, max_actions)
        return _Oracle(tag, item, found)

    def random_policy(item: int, seed: int) -> ScriptedPolicy:
        return ListedPolicy(f"player {seed} of {item}") if per_response == 1 else _Random(env.actions, seed)

    several = per_response > 1
    legend = " ".join(f"{symbol} is {meaning}." for symbol, meaning in env.legend)
    lines = (
        env.instruction,
        legend,
        f"Actions: {', '.join(env.actions)}. " * env.lists_actions + f"Put {SEPARATOR} between several." * several,
        f"Write your thoughts after Thought: and then your action{'s' * several} after Action:, on one line.",
    )
    return Service(
        name=tag,
        make=lambda upstream: Compiled(tag),
        items=2**32,
        instruction="\n".join(line for line in lines if line),
        read=last_action,
        turns=max_actions,
        solved=lambda answer: answer.info.get("success") is True,
        success_rule=spec.success_rule,
        oracle=oracle if spec.plan is not None else None,
        random=random_policy,
        executed=functools.partial(executed_actions, tag),
    )
