"""Responses that a rollout takes instead of sampling them. Shapes: `E` episodes, `B` rows, `N` turns."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from agentrl_jax.rollout.trajectory import Response


class GivenResponses(struct.PyTreeNode):
    """Responses of the first N turns of episodes; with `all_turns`, nothing is sampled."""

    responses: Response
    """[E, N]; an empty one is sampled unless all turns are given."""
    all_turns: bool = struct.field(pytree_node=False)

    @classmethod
    def of(cls, responses: Response, turns: int) -> "GivenResponses":
        """Those of a rollout with at most so many turns."""
        return cls(responses, responses.length.shape[1] >= turns)

    def includes(self, episode: Int[Array, " B"], turn: Int[Array, " B"]) -> Bool[Array, " B"]:
        """Whether the response in a turn of each row's episode is given, where some are sampled."""
        return self.responses.length.at[episode, turn].get(mode="fill", fill_value=0) > 0

    def token(self, episode: Int[Array, " B"], turn: Int[Array, " B"], number: Int[Array, " B"]) -> Int[Array, " B"]:
        """Token `number` of each response."""
        tokens = self.responses.tokens.at[episode, turn].get(mode="clip")
        return jnp.take_along_axis(tokens, number[:, None], axis=1, mode="clip")[:, 0]

    def length(self, episode: Int[Array, " B"], turn: Int[Array, " B"]) -> Int[Array, " B"]:
        """Tokens of each response."""
        return self.responses.length.at[episode, turn].get(mode="clip")
