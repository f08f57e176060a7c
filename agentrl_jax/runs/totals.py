"""What a run has spent."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass
class Totals:
    """What a run has spent; stored in its checkpoints."""

    sampled_tokens: int = 0
    trained_tokens: int = 0
    environment_steps: int = 0
    episodes: int = 0
    skipped_updates: int = 0
    seconds: float = 0.0

    @classmethod
    def stored(cls, found: Mapping[str, Any]) -> "Totals":
        """The totals of a checkpoint, whichever of them its version knew."""
        return cls(**{field.name: found[field.name] for field in dataclasses.fields(cls) if field.name in found})

    def count(self, counters: Mapping[str, int]) -> None:
        """Adds the counters of a rollout, as `programs.total_stats` returns them."""
        for name in ("sampled_tokens", "environment_steps", "episodes"):
            setattr(self, name, getattr(self, name) + counters[name])
