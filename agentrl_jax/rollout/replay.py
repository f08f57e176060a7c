"""Log-probabilities of recorded responses, worked out by the rollout's own steps.

Another order of the same additions rounds differently: a parallel forward pass gives log-probabilities that differ from
those of the rollout in their last bits. A replay runs the engine itself over the record, with the same rows, chunks,
slots and refills, so that with the rollout's parameters it gives the rollout's bits.

Shapes: `E` episodes, `B` rows, `T` turns, `L` response tokens, `P` prompt tokens, `O` observation tokens.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from agentrl_jax.models import decoder
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.rollout import engine
from agentrl_jax.rollout.engine_config import EngineConfig
from agentrl_jax.rollout.envs.batched_env import Message
from agentrl_jax.rollout.trajectory import EpisodeIds, Response, RolloutSettings, Trajectory, TurnResult, unplayed


def replay_logprobs(
    params: decoder.Params,
    model: DecoderConfig,
    config: EngineConfig,
    trajectory: Trajectory,
    temperature: jax.Array,
    tasks: int,
    varying: Callable[[Any], Any] = lambda tree: tree,
) -> jax.Array:
    """Log-probability of every recorded token under `params`, by the steps of the rollout that recorded it.

    It asks no environment and draws nothing. Meant for values only: a gradient through its loops is not defined.

    Args:
        params: parameters of the policy, stacked.
        model: shape of the policy, as in the rollout (static).
        config: as in the rollout (static).
        trajectory: the E episodes that one device has played, all of them and in their order.
        temperature: f32[E] the one each episode was sampled at.
        tasks: number of tasks that the rollout could have played (static).
        varying: see `engine.final_state`.

    Returns:
        f32[E, T, L]; 0 where no token was sampled, or where it was taken greedily.

    Raises:
        ValueError: the record has another number of turns or of tokens in a response than `config`, or a number of
            episodes that its slots and members do not fit.
    """
    turns, max_response_tokens = trajectory.response.tokens.shape[1:]
    if (turns, max_response_tokens) != (config.max_turns, config.max_response_tokens):
        raise ValueError(
            f"a record of {turns} turns with responses of {max_response_tokens} tokens cannot be replayed by an engine "
            f"of {config.max_turns} turns with {config.max_response_tokens}; give the engine's configuration of its "
            "rollout"
        )
    row = jnp.arange(trajectory.num_turns.shape[0], dtype=jnp.int32)
    settings = RolloutSettings(
        temperature=temperature, horizon=jnp.max(trajectory.num_turns), max_actions=jnp.int32(0), env_params=()
    )
    state = engine.final_state(
        params,
        model,
        RecordedEnv(trajectory, tasks),
        # Where a response ended is in the record.
        dataclasses.replace(config, stop_at_answer=False),
        jax.random.key(0),  # nothing is drawn
        trajectory.ids.replace(group=row),
        settings,
        responses=trajectory.response,
        constrain_sharding=varying,
    )
    return state.trajectory.response.logprob


class RecordedState(struct.PyTreeNode):
    """What B slots replay.

    Attributes:
        row: i32[B] row of the record.
        turn: i32[B] turns answered.
    """

    row: jax.Array
    turn: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class RecordedEnv:
    """A `BatchedEnv` that answers with what was recorded. Every episode is a group of its own: its row of the record.

    Attributes:
        trajectory: the record, E episodes.
        tasks: number of tasks.
    """

    trajectory: Trajectory
    tasks: int

    @property
    def prefix(self) -> jax.Array:
        """i32[tasks, P]; that of a task which has no episode here is another's and is not read."""
        return self.trajectory.prompt[self._an_episode]

    @property
    def prefix_length(self) -> jax.Array:
        """i32[tasks]."""
        return self.trajectory.prompt_length[self._an_episode]

    @property
    def _an_episode(self) -> jax.Array:
        return jnp.argmax(self.trajectory.ids.task == jnp.arange(self.tasks)[:, None], axis=1)

    @property
    def grammars(self) -> tuple[()]:
        """None: what a response asked for is in the record."""
        return ()

    @property
    def observation_tokens(self) -> int:
        """O."""
        return self.trajectory.observation.shape[2]

    def reset(
        self, key: jax.Array, settings: RolloutSettings, ids: EpisodeIds, mask: jax.Array | None = None
    ) -> tuple[RecordedState, Message]:
        """See `BatchedEnv.reset`."""
        state = RecordedState(row=ids.group, turn=jnp.zeros_like(ids.group))
        return state, self._message(state)

    def step(
        self,
        settings: RolloutSettings,
        state: RecordedState,
        response: Response,
        parsed: Any,
        mask: jax.Array,
        *,
        opens: bool,
    ) -> tuple[RecordedState, TurnResult, Message]:
        """See `BatchedEnv.step`; an episode is over after its last recorded turn."""
        state = state.replace(turn=state.turn + mask)
        over = state.turn >= self.trajectory.num_turns[state.row]
        return state, self.empty_result(mask.shape[0]).replace(terminated=over), self._message(state)

    def empty_result(self, batch: int) -> TurnResult:
        """See `BatchedEnv.empty_result`."""
        return unplayed(batch, 0, ())

    def _message(self, state: RecordedState) -> Message:
        def at(x):
            return x.at[state.row, state.turn].get(mode="clip")

        return Message(
            tokens=at(self.trajectory.observation),
            length=at(self.trajectory.observation_length),
            overflow=jnp.zeros(state.row.shape, bool),
        )
