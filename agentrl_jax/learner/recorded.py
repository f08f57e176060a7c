"""Token-level values of the first episodes of a rollout, for its record in the run folder. Training never reads them.

Shapes: `R` recorded episodes, `T` turns, `L` tokens of a response; `N` rows with `K` response positions, see
`rollout.packing.Sequences`.
"""

from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from agentrl_jax.models import actor_critic, decoder
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.packing import pack_trajectories
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
    context: str,
    context_tokens: int,
) -> RecordedScores:
    """Scores the sampled tokens of R episodes under a decoder of the shape `model.decoder`, without a critic."""
    rows = pack_trajectories(trajectory, context, context_tokens)
    temperature, mask = temperature[rows.episode], rows.response_mask
    scores = actor_critic.score_tokens({"policy": policy}, model, rows.tokens, rows.position, temperature, mask=mask)
    shape = trajectory.response.tokens.shape
    return RecordedScores(*(jnp.where(mask, x, 0.0).reshape(shape) for x in (scores.logprob, scores.entropy)))


def recorded_advantages(
    advantage: Float[Array, "N K"],
    mask: Bool[Array, "N K"],
    trajectory: Trajectory,
    episodes: int,
    shards: Shards,
) -> RecordedAdvantages:
    """Advantages of the first `episodes` of the batch, on every device, from the rows of this device's episodes."""
    here, *shape = trajectory.response.tokens.shape
    number = jnp.arange(episodes * (len(advantage) // here))
    found = shards.gather_rows((jnp.where(mask, advantage, 0.0), mask), number)
    return RecordedAdvantages(*(x.reshape(episodes, *shape) for x in found))
