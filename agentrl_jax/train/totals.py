"""What a run has spent."""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp

from agentrl_jax.rollout.trajectory import Trajectory


@dataclasses.dataclass
class Totals:
    """What a run has spent, kept in its checkpoints."""

    sampled_tokens: int = 0
    trained_tokens: int = 0
    environment_steps: int = 0
    episodes: int = 0
    skipped_updates: int = 0
    seconds: float = 0.0

    def count(self, trajectory: Trajectory, counters: Mapping[str, int]) -> None:
        """Adds the episodes of a rollout, whose counters are those of `programs.total_stats`."""
        self.sampled_tokens += counters["sampled_tokens"]
        self.environment_steps += int(jnp.sum(trajectory.turn.actions >= 0))
        self.episodes += trajectory.num_turns.shape[0]
