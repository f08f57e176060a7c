"""The end of a run by its validations: a success that is reached, or no better value for a while."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import scipy.stats

from agentrl_jax.config.schema import TrainConfig
from agentrl_jax.errors import UserError, shortened
from agentrl_jax.train.collapse_monitor import learning


def lower_bound(successes: int, episodes: int, alpha: float) -> float:
    """Clopper and Pearson's lower bound of a success rate, at one-sided level `alpha`."""
    return float(scipy.stats.beta.ppf(alpha, successes, episodes - successes + 1)) if successes else 0.0


class Target:
    """What the validations of a run say, a function of its rows alone; `reached` is why it ends, else empty.

    The k-th validation counts as success of at least `train.stop.at` where its lower bound at alpha / (k (k + 1)) is,
    so that a run ends by chance with a probability of at most alpha, however many validations there are.
    """

    def __init__(self, config: TrainConfig, rows: Iterable[dict[str, Any]]):
        """Starts from the rows of metrics.jsonl so far."""
        self.best, self.stop = config.best, config.stop
        self.reached = ""
        self._number = self._since_better = 0
        self._highest = -math.inf
        for row in learning(rows):
            self.see(row)

    def score(self, row: Mapping[str, Any]) -> float | None:
        """The value of a validation for `train.best`, higher is better; None without a validation.

        Raises:
            UserError: the row has no such metric.
        """
        if "validation/success" not in row:
            return None
        value = row.get(self.best.metric)
        if not isinstance(value, int | float):
            known = shortened(", ".join(sorted(name for name, x in row.items() if isinstance(x, float))), 2000)
            raise UserError.of("train.best.metric", self.best.metric, f"expected a metric of metrics.jsonl: {known}")
        if not math.isfinite(value):
            return None
        return -float(value) if self.best.mode == "min" else float(value)

    def see(self, row: Mapping[str, Any]) -> None:
        """Takes the row of an iteration into account."""
        if "validation/success" not in row:
            return
        self._number += 1
        if self.stop.at is not None:
            episodes, level = row["validation/episodes"], self.stop.alpha / (self._number * (self._number + 1))
            if lower_bound(round(row["validation/success"] * episodes), episodes, level) >= self.stop.at:
                self.reached = "target"
        if self.stop.patience:
            score = self.score(row)
            better = score is not None and score > self._highest
            self._highest = max(self._highest, -math.inf if score is None else score)
            self._since_better = 0 if better else self._since_better + 1
            if self._since_better >= self.stop.patience:
                self.reached = self.reached or "patience"
