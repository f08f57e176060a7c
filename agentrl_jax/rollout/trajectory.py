"""Inputs and outputs of a rollout.

Shapes: `E` episodes, `K` tasks, `T` turns, `P` prompt tokens, `O` tokens of an observation, `L` tokens of a response,
`A` actions of one turn, `X` tokens of a hint.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt

from agentrl_jax.algos.masked import Mean
from agentrl_jax.parallel import hosts
from agentrl_jax.rollout.contexts import Join
from envs_jax.splits import Split

TRUNCATIONS = ("turns", "actions", "context")
"""Why an episode is truncated: the turns of `RolloutSettings.horizon` are played, a limit of actions or steps is
reached (`RolloutSettings.max_actions`, or a limit of the environment), or the context is full."""


class Hints(struct.PyTreeNode):
    """What a teacher reads in the prompts of E episodes besides, such as plans, see `rollout.hints`."""

    tokens: Int[Array, "E X"]
    """Padded on the right."""
    length: Int[Array, " E"]
    """0: the episode has none, and its prompt stays as it is."""
    at: Int[Array, " E"]
    """Tokens of the task's prefix before the hint; the others follow it."""
    turns: Int[Array, " E"]
    """First turns of the episode that a teacher judges, because their situation is one that the hint is about."""


class RolloutSettings(struct.PyTreeNode):
    """Traced settings: changing a value does not recompile the program.

    The engine does not read what is added to rewards, see `returns.RewardRule`.
    """

    temperature: Float[Array, " E"]
    """Of sampling; 0 is greedy."""
    horizon: Int[Array, ""]
    """Turns that may be played, at most the static T."""
    task_turns: Int[Array, " K"] | None = struct.field(default=None, kw_only=True)
    """The same for each task, where `horizon` is no less; None: as many for all."""
    max_actions: Int[Array, ""]
    """Primitive actions that an episode may execute."""
    env_params: tuple[Any, ...]
    """Environment parameters of each task."""
    format_penalty: Float[Array, ""] | float = 0.0
    overlong_buffer: Float[Array, ""] | float = 0.0
    overlong_penalty: Float[Array, ""] | float = 0.0
    reward_numbers: dict[str, Float[Array, ""]] = struct.field(default_factory=dict)
    split: Int[Array, "*K"] | int = int(Split.ANY)
    """The `envs_jax.splits.Split` that compiled tasks sample levels from, one for each task or for all."""
    hints: Hints | None = None
    """Hints that are shown to the policy, where each episode has its own slot and one context; None: none."""

    def turns_of(self, task: Int[Array, " B"]) -> Int[Array, "*B"]:
        """Turns that episodes of these tasks may be played."""
        return self.horizon if self.task_turns is None else jnp.minimum(self.horizon, self.task_turns[task])


class EpisodeIds(struct.PyTreeNode):
    """The episodes that a rollout plays. These ids and the rollout's key determine everything random in an episode."""

    group: Int[Array, " E"]
    """Number of the group; its members share level and prompt."""
    member: Int[Array, " E"]
    """Number within the group."""
    task: Int[Array, " E"]
    level: Int[Array, " E"]
    """Row of the task's level pack, or item of a service; -1: sampled with the group's key; -2 - n: the level of number
    n, sampled with a key of its own, see `rng.numbered_level_key`."""


class Response(struct.PyTreeNode):
    """Responses of a batch of rows; in a trajectory the batch is [E, T]."""

    tokens: Int[Array, "*batch L"]
    """Sampled tokens, padded on the right."""
    length: Int[Array, "*batch"]
    logprob: Float[Array, "*batch L"]
    """Log-probability of each token under the distribution it was sampled from."""
    ended: Bool[Array, "*batch"]
    """The last token is a sampled end-of-turn token."""


class TurnResult(struct.PyTreeNode):
    """Results of one turn for a batch of rows; in a trajectory the batch is [E, T]."""

    actions: Int[Array, "*batch A"]
    """Executed primitive actions, padded with -1."""
    reward: Float[Array, "*batch"]
    """Sum of the primitive rewards, without penalties."""
    valid: Bool[Array, "*batch"]
    """The response has at least one valid action."""
    format_error: Int[Array, "*batch"]
    """1 where an action could not be parsed or there was none."""
    state_hash: UInt[Array, "*batch 2"]
    """Hash of the state before the response."""
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]
    """A limit of steps or actions was reached first."""
    success: Bool[Array, "*batch"]
    failed: Bool[Array, "*batch"]
    """The environment raised an error or had no level of the split; the episode is not trained on."""
    info: dict[str, Float[Array, "*batch"]]
    """Numeric environment information."""


def unplayed(batch: int, max_actions: int, info_keys: Sequence[str], xp: ModuleType = jnp) -> TurnResult:
    """A `TurnResult` of `batch` turns that were not played, in jax.numpy, or in numpy where JAX must not be called."""
    flags = ("valid", "terminated", "truncated", "success", "failed")
    return TurnResult(
        actions=xp.full((batch, max_actions), -1, xp.int32),
        reward=xp.zeros(batch, xp.float32),
        format_error=xp.zeros(batch, xp.int32),
        state_hash=xp.zeros((batch, 2), xp.uint32),
        info={name: xp.zeros(batch, xp.float32) for name in info_keys},
        **{name: xp.zeros(batch, bool) for name in flags},
    )


class Trajectory(struct.PyTreeNode):
    """E episodes, stored by turn. A turn that was not played has length 0 everywhere."""

    prompt: Int[Array, "E P"]
    """The task's prefix."""
    prompt_length: Int[Array, " E"]
    observation: Int[Array, "E T O"]
    """Tokens inserted before each response, which are not trained."""
    observation_length: Int[Array, "E T"]
    join: Join
    """How the observations join what was read before; leaves [E, T, ...]."""
    response: Response
    """All of its tokens were sampled and are trained."""
    turn: TurnResult
    num_turns: Int[Array, " E"]
    ids: EpisodeIds
    overflow: Bool[Array, " E"]
    """An observation did not fit its O tokens and was cut."""
    truncation: Int[Array, " E"]
    """Why the episode was truncated: 1 + the index in `TRUNCATIONS`; 0 where it was not, also where it failed."""
    final_observation: Int[Array, "E O"]
    """Where the episode was truncated, the observation that the next response would have answered."""
    final_observation_length: Int[Array, " E"]
    """0 where the episode was not truncated."""
    final_join: Join
    """Of the final observation; leaves [E, ...]."""

    @property
    def response_mask(self) -> Bool[Array, "E T L"]:
        """Tokens sampled from the policy, the loss mask."""
        return jnp.arange(self.response.tokens.shape[-1]) < self.response.length[..., None]

    @property
    def turn_mask(self) -> Bool[Array, "E T"]:
        """Turns that were played."""
        return jnp.arange(self.turn.reward.shape[1]) < self.num_turns[:, None]

    @property
    def returns(self) -> Float[Array, " E"]:
        """Raw return, without penalties."""
        return jnp.sum(self.turn.reward, axis=1)

    @property
    def failed(self) -> Bool[Array, " E"]:
        """The environment failed."""
        return jnp.any(self.turn.failed, axis=1)

    @property
    def success(self) -> Bool[Array, " E"]:
        """The task was solved."""
        return jnp.any(self.turn.success, axis=1)


class RolloutStats(struct.PyTreeNode):
    """Counters of one rollout: scalars inside the engine, one number per device outside."""

    decode_steps: Int[Array, "*devices"]
    """Forward passes of one token over the slots."""
    sampled_tokens: Int[Array, "*devices"]
    prefill_steps: Int[Array, "*devices"]
    """Forward passes over observations."""
    slot_steps: Int[Array, "*devices"]
    """decode_steps x slots; sampled_tokens / slot_steps is the active token share."""
    episodes: Int[Array, "*devices"]
    failed: Int[Array, "*devices"]
    """Episodes whose environment failed."""
    solved: Int[Array, "*devices"]
    """Other episodes that solved their task."""
    environment_steps: Int[Array, "*devices"]
    """Primitive actions executed."""
    rounds: Int[Array, "*devices"]
    """How often E episodes were played; more than 1 only with `resampling`."""
    measured: dict[str, Mean] = struct.field(default_factory=dict)
    """With `resampling`, the metrics of all episodes played as `learner.measures.measure` computes them; otherwise
    empty, since the trajectory has all episodes."""


def level_ids(trajectory: Trajectory) -> list[str]:
    """The hash of the first state of every played episode, as 16 hexadecimal digits."""
    hashes, turns = hosts.fetch((trajectory.turn.state_hash[:, 0], trajectory.num_turns))
    return hexadecimal(hashes[turns > 0])


def hexadecimal(hashes: np.ndarray) -> list[str]:
    """Hashes u32[n, 2] as text."""
    return [f"{first:08x}{second:08x}" for first, second in hashes.tolist()]
