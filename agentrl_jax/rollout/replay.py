"""Log-probabilities of recorded responses, computed by the same steps as the rollout.

Floating-point sums depend on their order, so a parallel forward pass gives log-probabilities that differ from those of
the rollout in their last bits. A replay runs the engine itself over the recorded trajectory, with the same rows,
chunks, slots and refills. With the rollout's parameters its result is equal bit for bit.

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
    """Log-probability of every recorded token under `params`, computed by the steps of the rollout.

    No environment is stepped and nothing is sampled. For values only: there is no gradient through its loops.

    Args:
        params: parameters of the policy, stacked.
        model: shape of the policy, as in the rollout (static).
        config: as in the rollout (static).
        trajectory: all E episodes that one device played, in the same order.
        temperature: f32[E] sampling temperature of each episode.
        tasks: number of tasks that the rollout could have played (static).
        varying: used as `constrain_sharding` of `engine.final_state`.

    Returns:
        f32[E, T, L]; 0 where no token was sampled or the token was greedy.

    Raises:
        ValueError: turns or response tokens of the trajectory do not match `config`, or its number of episodes does
            not fit the slots and the group size.
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
        # The trajectory says where each response ended.
        dataclasses.replace(config, stop_at_answer=False),
        jax.random.key(0),  # nothing is sampled
        trajectory.ids.replace(group=row),
        settings,
        responses=trajectory.response,
        constrain_sharding=varying,
    )
    return state.trajectory.response.logprob


class RecordedState(struct.PyTreeNode):
    """The replayed episodes of B slots.

    Attributes:
        row: i32[B] row of the recorded trajectory.
        turn: i32[B] turns answered.
    """

    row: jax.Array
    turn: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class RecordedEnv:
    """A `BatchedEnv` that returns recorded turns. Every episode is its own group; the group number is its row.

    Attributes:
        trajectory: the recorded episodes, E.
        tasks: number of tasks.
    """

    trajectory: Trajectory
    tasks: int

    @property
    def prefix(self) -> jax.Array:
        """i32[tasks, P]; a task without episodes here has the prefix of another task, which is never read."""
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
        """Empty: the parsed actions are in the recorded trajectory."""
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
