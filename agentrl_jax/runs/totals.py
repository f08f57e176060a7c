"""What a run has spent."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass
class Totals:
    """What a run has spent; stored in its checkpoints."""

    sampled_tokens: int = 0
    trained_tokens: int = 0
    environment_steps: int = 0
    episodes: int = 0
    skipped_updates: int = 0
    seconds: float = 0.0

    def count(self, counters: Mapping[str, int]) -> None:
        """Adds the counters of a rollout, as `programs.total_stats` returns them."""
        for name in ("sampled_tokens", "environment_steps", "episodes"):
            setattr(self, name, getattr(self, name) + counters[name])
