"""The number of turns that each iteration of a run plays."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from agentrl_jax.algos.schedules import AdaptiveHorizon, AdaptiveRule, stepwise
from agentrl_jax.config import Config


class Horizon:
    """Turns by iteration, as `algo.horizon` says. Only the adaptive rule has a state, which checkpoints keep."""

    def __init__(self, config: Config):
        algo = config.algo
        self.kind, self.horizons, self.every = algo.horizon, algo.horizons, algo.horizon_every
        self.longest = config.prompt.max_turns
        self.rule = AdaptiveRule(algo.horizons, algo.horizon_every, algo.horizon_gain, algo.horizon_spread)
        self.state = AdaptiveHorizon()

    def turns(self, iteration: int) -> int:
        """Turns of an iteration, counted from 0."""
        if self.kind == "stepwise":
            return stepwise(iteration, self.horizons, self.every)
        return self.horizons[self.state.stage] if self.kind == "adaptive" else self.longest

    def observe(self, metrics: Mapping[str, Any]) -> None:
        """Takes the metrics of an iteration into account, unless every environment of it broke."""
        if self.kind == "adaptive" and metrics["train/failed"] < 1.0:
            self.state = self.state.after(self.rule, metrics["train/success"], metrics["rollout/in_group_std"])

    def saved(self) -> dict[str, Any]:
        """The state as JSON keeps it."""
        return dataclasses.asdict(self.state)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Goes on from `saved`."""
        numbers = {name: tuple(saved[name]) for name in ("success", "spread")}
        self.state = AdaptiveHorizon(**{**saved, **numbers})
