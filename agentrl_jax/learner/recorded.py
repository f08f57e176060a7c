"""Token-level values of the first episodes of a rollout, for its record in the run folder. Training never reads them.

Shapes: `R` recorded episodes, `T` turns, `L` tokens of a response; `N` rows with `K` response positions, see
`rollout.packing.Sequences`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from agentrl_jax.learner.batch import Batch
from agentrl_jax.learner.settings import LearnerConfig
from agentrl_jax.models import actor_critic, decoder
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.contexts import Context
from agentrl_jax.rollout.packing import layout, pack_trajectories
from agentrl_jax.rollout.trajectory import Trajectory


class RecordedScores(struct.PyTreeNode):
    """What the policy that sampled the tokens says about them in one parallel forward pass; 0 where there is none."""

    logprob: Float[Array, "R T L"]
    entropy: Float[Array, "R T L"]


class RecordedAdvantages(NamedTuple):
    """What the learner makes of the tokens."""

    advantage: Float[Array, "R T L"]
    trained: Bool[Array, "R T L"]


def recorded_scores(
    policy: decoder.Params,
    trajectory: Trajectory,
    temperature: Float[Array, " R"],
    *,
    model: ActorCritic,
    context: Context,
    context_tokens: int,
) -> RecordedScores:
    """Scores the sampled tokens of R episodes under a decoder of the shape `model.decoder`, without a critic."""
    rows = pack_trajectories(trajectory, context, context_tokens)
    temperature, mask = temperature[rows.episode], rows.response_mask
    scores = actor_critic.score_tokens({"policy": policy}, model, rows.tokens, rows.position, temperature, mask=mask)
    shape, by_episode = trajectory.response.tokens.shape, layout(trajectory, context).of_episodes
    found = (by_episode(jnp.where(mask, x, 0.0)) for x in (scores.logprob, scores.entropy))
    return RecordedScores(*(x.reshape(shape) for x in found))


def recorded_advantages(
    batch: Batch, trajectory: Trajectory, config: LearnerConfig, shards: Shards
) -> RecordedAdvantages:
    """Advantages of the first `recorded_episodes`, on every device, from the `Batch` of this device's episodes."""
    by_episode, number = layout(trajectory, config.context).of_episodes, jnp.arange(config.recorded_episodes)
    arrays = jax.tree.map(by_episode, (jnp.where(batch.mask, batch.advantage, 0.0), batch.mask))
    shape = len(number), *trajectory.response.tokens.shape[1:]
    return RecordedAdvantages(*(x.reshape(shape) for x in shards.gather_rows(arrays, number)))
