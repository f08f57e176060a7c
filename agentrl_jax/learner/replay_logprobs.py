"""Replayed log-probabilities: values from a replay of the rollout, gradients from the parallel forward pass.

If ratios start at 1 only up to rounding, training is slightly off-policy from its first step. Here the values are those
of the rollout, so with unchanged parameters every ratio is 1 and every divergence 0, bit for bit.

Shapes: `E` episodes of the whole rollout, `T` turns, `L` response tokens, `R` devices, `K` response positions of a row
as in `rollout.packing.Sequences`.
"""

import dataclasses
from typing import Any

import jax

from agentrl_jax.learner.settings import LearnerConfig
from agentrl_jax.models.actor_critic import ActorCritic, policy_decoder
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.engine_config import EngineConfig
from agentrl_jax.rollout.replay import replay_logprobs
from agentrl_jax.rollout.trajectory import Trajectory


@dataclasses.dataclass(frozen=True, eq=False)
class Replayer:
    """Replays one rollout batch under any parameters.

    Attributes:
        trajectory: all E episodes, replicated over the devices.
        temperature: f32[E] sampling temperature of each episode.
        model: shapes of policy and critic (static).
        engine: configuration of the rollout (static).
        tasks: number of tasks of the run (static).
        shards: each device replays the block of episodes that it rolled out.
    """

    trajectory: Trajectory
    temperature: jax.Array
    model: ActorCritic
    engine: EngineConfig
    tasks: int
    shards: Shards

    def __call__(self, params: dict[str, Any]) -> jax.Array:
        """Log-probabilities under the policy in `params`, for every row that `pack_trajectories` makes of the episodes.

        Returns:
            f32[E, K], or f32[E * T, K] if the context is single_turn; no gradient flows through them.
        """
        mine, temperature = self.shards.block((self.trajectory, self.temperature))
        policy = self.model.gather(policy_decoder(params, self.model))
        replayed = replay_logprobs(
            policy, self.model.decoder, self.engine, mine, temperature, self.tasks, self.shards.varying
        )
        replayed = jax.lax.stop_gradient(self.shards.join(replayed))
        episodes, turns, _ = replayed.shape
        return replayed.reshape(episodes if self.engine.context == "full" else episodes * turns, -1)


def replayer(
    trajectory: Trajectory,
    temperature: jax.Array,
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
        raise ValueError("mismatch is replay, which replays the rollout; give the rollout's EngineConfig")
    rule, played = (config.context, config.group_size), (engine.context, engine.group_size)
    if rule != played:
        raise ValueError(
            f"mismatch is replay and the learner's context and members are {rule}, but those of the rollout {played}; "
            "use the same"
        )
    return Replayer(trajectory, temperature, model, engine, len(config.task_names), shards)


@jax.custom_jvp
def with_gradient_of(value: jax.Array, source: jax.Array) -> jax.Array:
    """`value`, bit for bit, with the gradient of `source`.

    The usual `stop_gradient(value - source) + source` rounds, so its result may differ from `value`.
    """
    del source
    return value


@with_gradient_of.defjvp
def _gradient_of_source(primals, tangents):
    return primals[0], tangents[1]
