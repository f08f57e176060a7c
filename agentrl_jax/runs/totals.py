"""What a run has spent."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass
class Totals:
    """What a run has spent, kept in its checkpoints."""

    sampled_tokens: int = 0
    trained_tokens: int = 0
    environment_steps: int = 0
    episodes: int = 0
    skipped_updates: int = 0
    seconds: float = 0.0

    def count(self, counters: Mapping[str, int]) -> None:
        """Adds a rollout, whose counters are those of `programs.total_stats`."""
        for name in ("sampled_tokens", "environment_steps", "episodes"):
            setattr(self, name, getattr(self, name) + counters[name])
