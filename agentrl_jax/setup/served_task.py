"""A service, or a Python environment, as a task of a run."""

import dataclasses
from collections.abc import Sequence

from agentrl_jax.config import TaskConfig
from agentrl_jax.services.environment import Service
from agentrl_jax.services.pools import InstancePool
from agentrl_jax.setup.python_task import PythonTask


@dataclasses.dataclass(frozen=True, eq=False)
class ServedTask:
    """One service of a run, with its items of training, evaluation and validation."""

    config: TaskConfig
    service: Service
    training: Sequence[int]
    held_out: tuple[int, ...]
    validation: tuple[int, ...]
    pool: InstancePool
    address: str
    """Where the service runs, in words, for messages."""
    python: PythonTask | None = None
    """The workers of a Python environment, which `service` adapts; None for other services."""

    def training_item(self, row: int) -> int:
        """The item that episodes with this number of a training level play."""
        return self.training[row] if self.python is None else self.python.training_item(row)
