"""The held-out levels of a run: validation during training, and evaluation before and after it."""

import dataclasses
from typing import Any

import numpy as np

from agentrl_jax.config import Config
from agentrl_jax.evaluate.eval_set import EvalSet, Params
from agentrl_jax.evaluate.lines import pool
from agentrl_jax.evaluate.seen import seen_levels
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.envs.level_splits import LevelSplits
from agentrl_jax.rollout.metrics import trajectory_metrics
from agentrl_jax.rollout.returns import Penalties
from agentrl_jax.rollout.trajectory import level_ids
from agentrl_jax.setup.programs import RolloutProgram
from envs_jax.budget import Baselines
from envs_jax.splits import Split


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """Results of evaluating a policy.

    Attributes:
        success: success on every level, over all tasks, under "sampled" and "greedy".
        levels: the levels' ids for each task, see `level_ids`.
    """

    success: dict[str, list[bool]]
    levels: list[list[str]]


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Eval sets of all tasks.

    Attributes:
        config: the run's configuration.
        eval_sets: one per task, in their order, of test levels.
        validations: one per task, in their order, of validation levels.
    """

    config: Config
    eval_sets: tuple[EvalSet, ...]
    validations: tuple[EvalSet, ...]

    @classmethod
    def of_run(
        cls,
        config: Config,
        batched_env: CompiledEnv | HostEnv,
        splits: LevelSplits,
        program: RolloutProgram,
        replicas: int = 1,
    ) -> "HeldOut":
        """Creates the eval sets of a run.

        Args:
            config: the run's configuration.
            batched_env: environment with its tasks.
            splits: how the levels of the tasks are split.
            program: rollout with group size 1.
            replicas: the number of episodes per dispatch has to be a multiple of this.
        """
        chunk = min(config.train.validation_episodes, config.evaluation.episodes)
        chunk = -(-chunk // replicas) * replicas
        seed = config.evaluation.seed

        def eval_sets(split: Split) -> tuple[EvalSet, ...]:
            return tuple(
                EvalSet(program, chunk, batched_env, config, task, levels, split, seed)
                for task, levels in enumerate(splits.tasks)
            )

        return cls(config, eval_sets(Split.TEST), eval_sets(Split.VALIDATION))

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of evaluation levels of each task."""
        return tuple(eval_set.number(self.config.evaluation.episodes) for eval_set in self.eval_sets)

    def outcomes(self, params: Params) -> Evaluated:
        """Plays every evaluation level twice: sampled and greedy."""
        temperatures = {"sampled": self.config.evaluation.temperature, "greedy": 0.0}
        wanted = self.config.evaluation.episodes
        success: dict[str, list[bool]] = {}
        levels: list[list[str]] = []
        for how, temperature in temperatures.items():
            played = [eval_set.play(params, eval_set.number(wanted), temperature) for eval_set in self.eval_sets]
            success[how] = np.concatenate([trajectory.success for trajectory in played]).tolist()
            levels = [level_ids(trajectory) for trajectory in played]
        return Evaluated(success, levels)

    def validation(self, params: Params) -> dict[str, float]:
        """Metrics of every task on its validation levels, and their mean success."""
        train, algo = self.config.train, self.config.algo
        penalties = Penalties(self.config.prompt.format_penalty, algo.overlong_buffer, algo.overlong_penalty)
        row: dict[str, float] = {}
        success, episodes = [], 0
        for task, eval_set in zip(self.config.tasks, self.validations):
            number = eval_set.number(train.validation_episodes)
            episodes += number
            trajectory = eval_set.play(params, number, train.validation_temperature)
            metrics = trajectory_metrics(trajectory, (task.label,), 1, penalties)
            row |= {f"validation/{task.label}/{key}": float(value) for key, value in metrics.items()}
            success.append(row[f"validation/{task.label}/success"])
        return row | {"validation/success": float(np.mean(success)), "validation/episodes": episodes}

    def seen(self, learned: set[str] | None, levels: list[list[str]]) -> dict[str, dict[str, Any]]:
        """What is known of the test levels of each task, by task label, see `seen.seen_levels`.

        Args:
            learned: ids of the levels that were learned from; None if unknown.
            levels: ids of the levels that were played, for each task.
        """
        found = {}
        for config, eval_set, played in zip(self.config.tasks, self.eval_sets, levels):
            task, boards = eval_set.batched_env.tasks[eval_set.task], eval_set.boards(len(played))
            found[config.label] = seen_levels(learned, played, eval_set.levels, task, boards)
        return found

    def baselines(self) -> Baselines | None:
        """The baselines on the levels of all tasks; None if those of a task are unknown."""
        return pool(
            [eval_set.baselines(eval_set.number(self.config.evaluation.episodes)) for eval_set in self.eval_sets]
        )
