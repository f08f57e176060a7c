"""Log-probabilities of recorded responses, computed by the same steps as the rollout.

Floating-point sums depend on their order, so a parallel forward pass gives log-probabilities that differ from those of
the rollout in their last bits. A replay runs the engine itself over the recorded trajectory, with the same rows,
chunks, slots and refills, on the same devices. With the rollout's parameters its result is equal bit for bit; in other
slots, batches or on other devices, log-probabilities differ in their last bits too (up to 1.8e-5 where measured).

Shapes: `E` episodes, `B` rows, `K` tasks, `T` turns, `L` response tokens, `P` prompt tokens.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from agentrl_jax.errors import BadValue
from agentrl_jax.models import decoder
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.rollout.engine import Engine
from agentrl_jax.rollout.engine_config import EngineConfig
from agentrl_jax.rollout.envs.batched_env import Message
from agentrl_jax.rollout.given import GivenResponses
from agentrl_jax.rollout.trajectory import EpisodeIds, Response, RolloutSettings, Trajectory, TurnResult, unplayed


def replay_logprobs(
    params: decoder.Params,
    model: DecoderConfig,
    config: EngineConfig,
    trajectory: Trajectory,
    temperature: Float[Array, " E"],
    tasks: int,
    varying: Callable[[Any], Any] = lambda tree: tree,
) -> Float[Array, "E T L"]:
    """Log-probability of every recorded token under `params`, computed by the steps of the rollout.

    0 where no token was sampled or the token was greedy. No environment is stepped and nothing is sampled. For values
    only: there is no gradient through its loops. `params`, `model` and `config` are as in the rollout, `trajectory`
    has all episodes that one device played, in the same order, `tasks` is the number of tasks that the rollout could
    have played, and `varying` is the engine's `constrain_sharding`.

    Raises:
        ValueError: turns or response tokens of the trajectory do not match `config`, or its number of episodes does
            not fit the slots and the group size.
    """
    turns, max_response_tokens = trajectory.response.tokens.shape[1:]
    if (turns, max_response_tokens) != (config.bounds.turns, config.max_response_tokens):
        raise BadValue(
            f"a record of {turns} turns with responses of {max_response_tokens} tokens cannot be replayed by an engine "
            f"of {config.bounds.turns} turns with {config.max_response_tokens}; give the engine's configuration of its "
            "rollout",
            key="turns",
            value=turns,
        )
    row = jnp.arange(trajectory.num_turns.shape[0], dtype=jnp.int32)
    settings = RolloutSettings(
        temperature=temperature, horizon=jnp.max(trajectory.num_turns), max_actions=jnp.int32(0), env_params=()
    )
    # The trajectory says where each response ended, and no key is used, because nothing is sampled.
    config, key = dataclasses.replace(config, stop_at_answer=False), jax.random.key(0)
    ids, batched_env = trajectory.ids.replace(group=row), RecordedEnv(trajectory, tasks)
    given = GivenResponses(trajectory.response, all_turns=True)
    engine = Engine(params, model, batched_env, config, key, ids, settings, varying, given)
    return engine.run().trajectory.response.logprob


class RecordedState(struct.PyTreeNode):
    """The replayed episodes of B slots."""

    row: Int[Array, " B"]
    """Row of the recorded trajectory."""
    turn: Int[Array, " B"]
    """Turns finished."""


@dataclasses.dataclass(frozen=True, eq=False)
class RecordedEnv:
    """A `BatchedEnv` that returns recorded turns. Every episode is its own group; the group number is its row."""

    trajectory: Trajectory
    tasks: int
    """Number of tasks."""

    @property
    def prefix(self) -> Int[Array, "K P"]:
        """See `BatchedEnv.prefix`; a task without episodes here has that of another task, which is never read."""
        return self.trajectory.prompt[self._example]

    @property
    def prefix_length(self) -> Int[Array, " K"]:
        """See `BatchedEnv.prefix_length`."""
        return self.trajectory.prompt_length[self._example]

    @property
    def _example(self) -> Int[Array, " K"]:
        """An episode of each task."""
        return jnp.argmax(self.trajectory.ids.task == jnp.arange(self.tasks)[:, None], axis=1)

    @property
    def grammars(self) -> tuple[()]:
        """Empty: the parsed actions are in the recorded trajectory."""
        return ()

    @property
    def observation_tokens(self) -> int:
        """See `BatchedEnv.observation_tokens`."""
        return self.trajectory.observation.shape[2]

    def reset(
        self, key: Key[Array, ""], settings: RolloutSettings, ids: EpisodeIds, mask: Bool[Array, " B"] | None = None
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
        mask: Bool[Array, " B"],
        *,
        fresh: bool = False,
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
            join=jax.tree.map(at, self.trajectory.join),
        )
