"""Environments of Gymnasium by their ids, such as `gymnasium:Taxi-v4`: discrete actions, and texts.

The text of a state is its rendering as `ansi`, or an observation that is a text. Some renderings tell states apart by
colors alone (Taxi, FrozenLake): colors are then written as words. For others, subclass what `adapted` returns, with a
method `describe(self, observation)`, names in `actions`, or another rule of success:

    class Taxi(adapted("Taxi-v4")):
        def succeeded(self, reward, terminated): ...
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
from gymnasium.spaces import Discrete, Text

from agentrl_jax.environments.protocol import HostStep
from agentrl_jax.errors import BadValue

NAMES = {
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Blackjack": ("stick", "hit"),
}
"""Names of actions, as Gymnasium's pages give them; others are numbers."""

_COLOR = re.compile(r"\x1b\[(\d+)(?:;1)?m(.*?)\x1b\[0m", re.DOTALL)
_COLORS = dict(enumerate(("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson"), start=30))
_TRIED, _STEPS = 20, 30
"""Episodes, and steps of each, that are looked at to see whether texts tell states apart."""


class GymnasiumEnvironment:
    """An environment of Gymnasium as a `HostEnvironment`. A seed is that of Gymnasium's `reset`."""

    id = ""
    actions: tuple[str, ...] = ()
    reuse = True
    colors = False
    """Colors of a rendering are written as words."""

    def __init__(self, **options: Any):
        """Makes the environment with options of `gymnasium.make`."""
        self._env = _made(self.id, options)
        self._other: gymnasium.Env[Any, Any] | None = None
        self._options = options

    def describe(self, observation: Any) -> str:
        """The text of a state."""
        if isinstance(observation, str):
            return observation
        return _text(self._env.render(), self.colors) if self._env.render_mode == "ansi" else ""

    def succeeded(self, reward: float, terminated: bool) -> bool:
        """Whether an episode that ends with this reward is solved: unless overridden, if it is above 0."""
        return terminated and reward > 0

    def content(self, seed: int) -> str:
        """The first text, by which levels are told apart."""
        own, self._env = self._env, self._other or _made(self.id, self._options)
        try:
            return self.reset(seed)
        finally:
            self._env, self._other = own, self._env

    def reset(self, seed: int) -> str:
        """See `HostEnvironment`."""
        return self.describe(self._env.reset(seed=seed)[0])

    def step(self, response: str, actions: Sequence[str]) -> HostStep:
        """Takes the actions of a turn, until the episode ends; its reward is their sum."""
        total, observation, terminated, truncated = 0.0, None, False, False
        for action in actions:
            taken = self.actions.index(action) if self.actions else action
            observation, reward, terminated, truncated, _ = self._env.step(taken)
            total += float(reward)
            if terminated or truncated:
                break
        if not actions:
            return HostStep("No known action.", valid=False)
        return HostStep(
            self.describe(observation),
            reward=total,
            terminated=terminated,
            truncated=truncated,
            success=self.succeeded(float(reward), terminated),
        )

    def close(self) -> None:
        """See `HostEnvironment`."""
        self._env.close()


def adapted(name: str) -> type[GymnasiumEnvironment]:
    """The class of an environment by its id, to be subclassed.

    Raises:
        BadValue: there is no such environment, or its actions are neither discrete nor texts.
    """
    space = _made(name, {"max_episode_steps": 1}).action_space
    if isinstance(space, Discrete):
        first = int(space.start)
        if first:
            raise BadValue.of("env", f"gymnasium:{name}", f"whose actions begin with {first}; expected 0")
        known = NAMES.get(name.partition("-")[0], ())
        actions = known if len(known) == space.n else tuple(map(str, range(int(space.n))))
    elif isinstance(space, Text):
        actions = ()
    else:
        raise BadValue.of("env", f"gymnasium:{name}", f"whose actions are {space}; expected discrete ones, or texts")
    return type("".join(filter(str.isalnum, name)), (GymnasiumEnvironment,), {"id": name, "actions": actions})


def load(name: str) -> type[GymnasiumEnvironment]:
    """The class of an environment whose texts tell its states apart, with colors as words where they have to.

    Raises:
        BadValue: as `adapted`, or its states have no such texts.
    """
    kind = adapted(name)
    env = kind(max_episode_steps=_STEPS)
    for colors in (False, True):
        kind.colors = colors
        if _tells_apart(env):
            return kind
    raise BadValue.of(
        "env",
        f"gymnasium:{name}",
        "whose rendering as ansi does not tell its observations apart; subclass "
        "agentrl_jax.environments.gymnasium_adapter.adapted(...) with a method describe(self, observation)",
    )


def _made(name: str, options: dict[str, Any]) -> "gymnasium.Env[Any, Any]":
    try:
        plain = gymnasium.make(name, **options)
        if "ansi" in plain.metadata.get("render_modes", ()):
            plain = gymnasium.make(name, render_mode="ansi", **options)
    except (gymnasium.error.Error, TypeError, ModuleNotFoundError) as error:
        raise BadValue.of("env", f"gymnasium:{name}", f"which Gymnasium cannot make: {error}") from None
    if plain.spec is None or plain.spec.max_episode_steps is None:
        raise BadValue.of(
            "env", f"gymnasium:{name}", "which has no limit of steps; set the option max_episode_steps of the task"
        )
    return plain


def _tells_apart(env: GymnasiumEnvironment) -> bool:
    seen: dict[str, str] = {}
    return all(seen.setdefault(text, observation) == observation for text, observation in _states(env))


def _states(env: GymnasiumEnvironment) -> Iterator[tuple[str, str]]:
    """Texts, and observations, of some states of random play."""
    inner = env._env
    for seed in range(_TRIED):
        inner.action_space.seed(seed)
        observation, over = inner.reset(seed=seed)[0], False
        while not over:
            yield env.describe(observation), repr(observation)
            observation, _, terminated, truncated, _ = inner.step(inner.action_space.sample())
            over = terminated or truncated


def _text(rendered: Any, colors: bool) -> str:
    def plain(found: re.Match[str]) -> str:
        number = int(found[1])
        name = _COLORS.get(number, _COLORS.get(number - 10, ""))
        return f"({name} {found[2]})" if colors else found[2]

    return _COLOR.sub(plain, rendered).strip("\n")
