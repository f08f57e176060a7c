"""A service as a task of a run."""

import dataclasses

from agentrl_jax.config import TaskConfig
from agentrl_jax.services.environment import Service
from agentrl_jax.services.pools import InstancePool


@dataclasses.dataclass(frozen=True, eq=False)
class ServedTask:
    """One service of a run, with its items of training, evaluation and validation."""

    config: TaskConfig
    service: Service
    training: tuple[int, ...]
    held_out: tuple[int, ...]
    validation: tuple[int, ...]
    pool: InstancePool
    address: str
    """Where the service runs, in words, for messages."""
