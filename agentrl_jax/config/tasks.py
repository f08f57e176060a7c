"""The tasks of a batch."""

from pydantic import Field

from agentrl_jax.config.fields import AboveZero, Section, Size, Text
from agentrl_jax.config.sampling import Draws, Sampling

PANEL = "panel"
NAMED_LEVELS = (PANEL, "other-levels")
"""In place of a file with levels to evaluate on, stored items of BabyAI: the 90 that AgentGym-RL tests on, and 23 of
each of the 22 levels that it neither trains nor tests on."""


class TaskConfig(Section):
    """One task of the batch: an environment and its number of groups."""

    env: Text
    """Name of an environment, e.g. SimpleSokoban, or of a service, e.g. textcraft (`agentrl envs` lists both); or
    the import path of a Python environment, e.g. my_module:Guess, or of a compiled one, e.g.
    compiled:my_module:LightsOut."""
    groups: Size
    """Groups per batch; every member of a group plays the same level."""
    loss_weight: AboveZero = 1.0
    """Factor on the losses of the task's tokens."""
    temperature: AboveZero | None = None
    """Sampling temperature of the task's training episodes; none: rollout.temperature, with its schedule."""
    max_turns: Size | None = None
    """Most turns of the task's episodes, at most prompt.max_turns; none: as many."""
    name: str = ""
    """Name of the task in metrics; empty: the environment's name, or that of its class, with -2 and so on where it has
    several tasks."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Options passed to envs_jax.make with the name, or to the class of a Python environment; set one with
    --tasks.0.options.NAME VALUE."""
    items: str = ""
    """Items of a service to train on: numbers such as 0-399,450, or an item file in AgentGym's layout. Those of a
    Python environment, or its seeds, are divided by content or number where this is empty."""
    held_out: str = ""
    """Items of a service for the evaluation before and after training, in the same form."""
    validation: str = ""
    """Items of a service for validations during a run, in the same form; none of `items` or `held_out`."""
    levels: str = ""
    """Level pack (.npy, int8[N,H,W]) or text file of levels for training and evaluation; empty: generated levels."""
    sampling: Sampling = Draws()
    """How the levels of a batch are chosen."""

    @property
    def label(self) -> str:
        """The task's name in metrics."""
        return self.name or self.env.rpartition(":")[2]
