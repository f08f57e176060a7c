"""Replayed log-probabilities: values from a replay of the rollout, gradients from the parallel forward pass.

If ratios start at 1 only up to rounding, training is slightly off-policy from its first step. Here the values are those
of the rollout, so with unchanged parameters every ratio is 1 and every divergence 0, bit for bit.

Shapes: `E` episodes of a device, `N` rows with `K` response positions as in `rollout.packing.Sequences`.
"""

import dataclasses
from typing import Any

import jax
from jaxtyping import Array, Float

from agentrl_jax.errors import BadValue
from agentrl_jax.learner.settings import LearnerConfig
from agentrl_jax.models.actor_critic import ActorCritic, policy_decoder
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.engine_config import EngineConfig
from agentrl_jax.rollout.packing import layout
from agentrl_jax.rollout.replay import replay_logprobs
from agentrl_jax.rollout.trajectory import Trajectory


@dataclasses.dataclass(frozen=True, eq=False)
class Replayer:
    """Replays one rollout batch under any parameters."""

    trajectory: Trajectory
    """The E episodes that this device rolled out."""
    temperature: Float[Array, " E"]
    model: ActorCritic
    engine: EngineConfig
    """Of the rollout on each device."""
    tasks: int
    """Number of tasks of the run."""
    shards: Shards

    def __call__(self, params: dict[str, Any]) -> Float[Array, "N K"]:
        """Log-probabilities under the policy in `params`, for every row that `pack_trajectories` makes of the episodes.

        No gradient flows through them.
        """
        policy = self.model.gather(policy_decoder(params, self.model))
        replayed = replay_logprobs(
            policy,
            self.model.decoder,
            self.engine,
            self.trajectory,
            self.temperature,
            self.tasks,
            self.shards.varying,
        )
        replayed = jax.lax.stop_gradient(replayed)
        return layout(self.trajectory, self.engine.context).of_rows(replayed.reshape(len(replayed), -1))


def replayer(
    trajectory: Trajectory,
    temperature: Float[Array, " E"],
    model: ActorCritic,
    config: LearnerConfig,
    engine: EngineConfig | None,
    shards: Shards,
) -> Replayer | None:
    """The replayer of a rollout batch if `config.mismatch` is replay, else None; arguments as in `update.update`.

    Raises:
        ValueError: `mismatch` is replay, but `engine` is missing or not that of the rollout.
    """
    if config.mismatch.kind != "replay":
        return None
    if engine is None:
        raise BadValue(
            "mismatch is replay, which replays the rollout; give the rollout's EngineConfig",
            key="mismatch",
            value="replay",
        )
    learner, rollout = (config.context, config.group_size), (engine.context, engine.group_size)
    if learner != rollout:
        raise BadValue(
            f"mismatch is replay and the learner's context and group_size are {learner}, but those of the rollout "
            f"{rollout}; use the same",
            key="mismatch",
            value="replay",
        )
    return Replayer(trajectory, temperature, model, engine, len(config.task_names), shards)


@jax.custom_jvp
def with_gradient_of(value: Float[Array, "*shape"], source: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`value`, bit for bit, with the gradient of `source`.

    The usual `stop_gradient(value - source) + source` rounds, so its result may differ from `value`.
    """
    del source
    return value


@with_gradient_of.defjvp
def _gradient_of_source(primals, tangents):
    return primals[0], tangents[1]
