"""The order in which rows are learned from: Grain's, a function of the seed and of the number of the step."""

import dataclasses
import functools
from typing import Any

import numpy as np
from jaxtyping import Int


@dataclasses.dataclass(frozen=True)
class Order:
    """Epochs over a number of rows, each in another order, with every row once.

    Batches go on over the end of an epoch, so that none is smaller but the last. Nothing is kept between steps: the
    state of the input is the number of the step, which every checkpoint has.

    Attributes:
        rows: number of rows, at least 1.
        batch: rows of a step.
        epochs: number of epochs.
        steps: number of steps; 0: as many as the epochs have. Further steps are those of further epochs.
        seed: of the orders.
    """

    rows: int
    batch: int
    epochs: int
    steps: int
    seed: int

    @property
    def count(self) -> int:
        """Number of steps."""
        return self.steps or self._of_epochs

    @property
    def _of_epochs(self) -> int:
        return -(-self.rows * self.epochs // self.batch)

    def at(self, step: int) -> Int[np.ndarray, " n"]:
        """The numbers of the rows of a step, from 0; fewer than `batch` only in the last step of all epochs."""
        return np.asarray(self._batches[step])

    def epoch(self, steps: int) -> float:
        """Epochs that so many steps have taken."""
        taken = steps * self.batch / self.rows
        return taken if self.count > self._of_epochs else min(taken, self.epochs)

    @functools.cached_property
    def _batches(self) -> Any:
        import grain  # takes a second, which only those who learn from data wait for

        shuffled = grain.MapDataset.range(self.rows).seed(self.seed).shuffle()
        return shuffled.repeat(None if self.count > self._of_epochs else self.epochs).batch(self.batch)
