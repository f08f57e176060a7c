"""The held-out levels of a run: every task's panel, validations during learning and the evaluation at its ends."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from agentrl_jax.config import Config
from agentrl_jax.evaluate.panel import Panel, Params
from agentrl_jax.rollout.host import HostWorld
from agentrl_jax.rollout.metrics import trajectory_metrics
from agentrl_jax.rollout.world import CompiledWorld
from agentrl_jax.train.programs import RolloutProgram


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Panels of all tasks.

    Attributes:
        config: the run's.
        panels: one a task, in their order.
    """

    config: Config
    panels: tuple[Panel, ...]

    @classmethod
    def of_run(
        cls, config: Config, world: CompiledWorld | HostWorld, program: RolloutProgram, players: int = 1
    ) -> "HeldOut":
        """Those of a run.

        Args:
            config: the run's.
            world: its tasks.
            program: rollout of single episodes.
            players: what the episodes of a dispatch have to be a multiple of.
        """
        chunk = min(config.train.validation_episodes, config.evaluation.episodes)
        chunk = -(-chunk // players) * players
        seed = config.evaluation.seed
        tasks = range(len(config.tasks))
        return cls(config, tuple(Panel(program, chunk, world, config, task, seed) for task in tasks))

    @property
    def levels(self) -> tuple[int, ...]:
        """Levels of the evaluation of each task."""
        return tuple(panel.number(self.config.evaluation.episodes) for panel in self.panels)

    @property
    def unseen(self) -> bool:
        """No task draws its training levels from the same pack."""
        return not any(panel.given for panel in self.panels)

    def outcomes(self, params: Params) -> dict[str, list[bool]]:
        """Success on every level of the evaluation, over all tasks, "sampled" and "greedy"."""
        temperatures = {"sampled": self.config.evaluation.temperature, "greedy": 0.0}
        wanted = self.config.evaluation.episodes

        def played(temperature: float) -> list[bool]:
            parts = [panel.play(params, panel.number(wanted), temperature).success for panel in self.panels]
            return np.concatenate(parts).tolist()

        return {how: played(temperature) for how, temperature in temperatures.items()}

    def validation(self, params: Params) -> dict[str, float]:
        """Metrics of every task on the first of its levels, and the mean of their success."""
        train, penalty = self.config.train, jnp.float32(self.config.prompt.format_penalty)
        row: dict[str, float] = {}
        success, episodes = [], 0
        for task, panel in zip(self.config.tasks, self.panels):
            number = panel.number(train.validation_episodes)
            episodes += number
            trajectory = panel.play(params, number, train.validation_temperature)
            metrics = trajectory_metrics(trajectory, (task.label,), 1, penalty)
            row |= {f"validation/{task.label}/{key}": float(value) for key, value in metrics.items()}
            success.append(row[f"validation/{task.label}/success"])
        return row | {"validation/success": float(np.mean(success)), "validation/episodes": episodes}

    def baselines(self) -> list[tuple[np.ndarray, np.ndarray] | None]:
        """Of each task success of random and of optimal play on its levels; None where it is not known."""
        return [panel.baselines(panel.number(self.config.evaluation.episodes)) for panel in self.panels]
