"""The number of turns of an episode, by iteration."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from agentrl_jax.algos.schedules import AdaptiveHorizonState, stepwise
from agentrl_jax.config import algo


class Horizon:
    """Turns by iteration, following `algo.horizon`. Only the adaptive rule has a state, which checkpoints store."""

    def __init__(self, plan: algo.Horizon, max_turns: int):
        self.plan, self.max_turns = plan, max_turns
        self.state = AdaptiveHorizonState()

    def turns(self, iteration: int) -> int:
        """Returns the turns of an iteration; iterations count from 0."""
        if self.plan.kind == "stepwise":
            return stepwise(iteration, self.plan.turns, self.plan.every)
        return self.plan.turns[self.state.stage] if self.plan.kind == "adaptive" else self.max_turns

    def observe(self, metrics: Mapping[str, Any]) -> None:
        """Updates the adaptive rule from the metrics of an iteration, unless all of its episodes failed."""
        if self.plan.kind == "adaptive" and metrics["train/failed"] < 1.0:
            self.state = self.state.after(self.plan, metrics["train/success"], metrics["rollout/in_group_std"])

    def saved(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        return dataclasses.asdict(self.state)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restores the state from the result of `saved`, whichever of its parts the version of a checkpoint knew."""
        names = [field.name for field in dataclasses.fields(AdaptiveHorizonState) if field.name in saved]
        known: dict[str, Any] = {
            name: tuple(saved[name]) if isinstance(saved[name], list) else saved[name] for name in names
        }
        self.state = AdaptiveHorizonState(**known)
