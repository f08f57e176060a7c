"""A `TokenEnvironment` as one of action ids: each id is a script that writes a command.

So random play, constant actions, plans and the self-checks, which choose ids, play environments of commands as well.
A scripted policy chooses among the scripts.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, Int32, Key

from envs_jax.environment import TextEnvironment
from envs_jax.token_environment import Command, TokenEnvironment

Script = Callable[[Any, Any, Any], Command]
"""(env, state, params) -> the command of this state; pure."""

Choice = Callable[[Key[Array, ""], Any], Int32[Array, ""]]
"""A scripted policy: (key, state) -> the number of a script; pure."""


def command_of(
    env: TokenEnvironment,
    scripts: Mapping[str, Script],
    policies: Mapping[str, Choice],
    policy: Int[Array, ""],
    key: Key[Array, ""],
    state: Any,
    params: Any,
) -> Command:
    """The command that a policy, the number of one of `policies`, writes in a state: one program plays them all."""
    number = jax.lax.switch(policy, list(policies.values()), key, state)
    return ScriptedCommands(env, scripts).command(state, number, params)


def written(env: TokenEnvironment, command: Command) -> bytes:
    """A command with the text around its argument, on the host; empty for none."""
    if int(command.action) < 0:
        return b""
    before, after = env.command_templates[int(command.action)]
    return before.encode() + np.asarray(command.text)[: int(command.length)].tobytes() + after.encode()


class ScriptedCommands(TextEnvironment):
    """The same episodes, texts and hashes as those of `env`; action i is the command of the script i.

    The actions are the names of the scripts.
    """

    def __init__(self, env: TokenEnvironment, scripts: Mapping[str, Script]):
        """Adds the scripts to an environment."""
        self.env, self.scripts = env, dict(scripts)
        self.actions = tuple(scripts)
        self.pieces, self.piece_limits, self.legend = env.pieces, env.piece_limits, env.legend
        self.piece_groups = env.piece_groups
        self.instruction, self.test_levels = env.instruction, env.test_levels

    @property
    def name(self) -> str:
        """That of the environment."""
        return str(self.env.name)

    @property
    def default_params(self) -> Any:
        """Those of the environment."""
        return self.env.default_params

    def command(self, state: Any, action: Int[Array, ""], params: Any) -> Command:
        """The command of a script."""
        branches = [lambda state, script=script: script(self.env, state, params) for script in self.scripts.values()]
        return jax.lax.switch(action, branches, state)

    def reset_env(self, key: Key[Array, ""], params: Any) -> Any:
        """See `TextEnvironment`."""
        return self.env.reset_env(key, params)

    def step_env(self, key: Key[Array, ""], state: Any, action: Int[Array, ""], params: Any) -> Any:
        """Executes the command of a script."""
        return self.env.step_env(key, state, self.command(state, action, params), params)

    def describe(self, state: Any, params: Any) -> Any:
        """See `TextEnvironment`."""
        return self.env.describe(state, params)

    def success(self, state: Any, params: Any) -> Any:
        """See `TextEnvironment`."""
        return self.env.success(state, params)

    def state_hash(self, state: Any, params: Any) -> Any:
        """See `TextEnvironment`."""
        return self.env.state_hash(state, params)

    def level_hash(self, state: Any, params: Any) -> Any:
        """See `TextEnvironment`."""
        return self.env.level_hash(state, params)

    def reward_range(self, params: Any) -> Any:
        """See `TextEnvironment`."""
        return self.env.reward_range(params)

    def observation_space(self, params: Any) -> Any:
        """That of the environment."""
        return self.env.observation_space(params)
