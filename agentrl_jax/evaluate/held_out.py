"""The held-out levels of a run: validation during training, and evaluation before and after it."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt32

from agentrl_jax.config import Config, EvalConfig, TrainConfig
from agentrl_jax.evaluate.baselines import concatenate
from agentrl_jax.evaluate.eval_set import EvalSet, Params
from agentrl_jax.evaluate.seen import seen_levels
from agentrl_jax.rollout.envs.level_splits import LevelSplits
from agentrl_jax.rollout.envs.mixed_env import TaskEnv
from agentrl_jax.rollout.metrics import trajectory_metrics
from agentrl_jax.rollout.returns import RewardRule, reward_rule
from agentrl_jax.rollout.trajectory import level_ids
from agentrl_jax.setup import build_inputs
from agentrl_jax.setup.programs import RolloutProgram
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax.budget import Baselines
from envs_jax.splits import Split, state_hashes


class Evaluated(NamedTuple):
    """Success on every level of all tasks, under "sampled" and "greedy", and each task's `level_ids`."""

    success: dict[str, list[bool]]
    levels: list[list[str]]
    mean_turns: float
    """Of a sampled episode."""
    mean_tokens: float
    """Sampled tokens of a sampled episode."""


def chunk_size(config: Config, replicas: int) -> int:
    """Number of held-out episodes of one dispatch, a multiple of the rollout's replicas."""
    wanted = min(config.train.validation_episodes, config.evaluation.episodes)
    return -(-wanted // replicas) * replicas


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Test levels (`eval_sets`) and validation levels of all tasks, in the order of `labels`, the tasks' names."""

    evaluation: EvalConfig
    train: TrainConfig
    rule: RewardRule
    labels: tuple[str, ...]
    eval_sets: tuple[EvalSet, ...]
    validations: tuple[EvalSet, ...]

    @classmethod
    def of_run(
        cls,
        config: Config,
        batched_env: TaskEnv,
        splits: LevelSplits,
        program: RolloutProgram,
        replicas: int = 1,
    ) -> "HeldOut":
        """Creates the eval sets of a run.

        `program` has group size 1; the number of episodes per dispatch has to be a multiple of `replicas`.
        """
        chunk = chunk_size(config, replicas)
        settings, seed = build_inputs.rollout_settings(config, batched_env, 1, 0.0), config.evaluation.seed

        def eval_sets(split: Split) -> tuple[EvalSet, ...]:
            return tuple(
                EvalSet(
                    program=program,
                    chunk=chunk,
                    batched_env=batched_env,
                    settings=settings,
                    prompt=config.prompt.replace(max_turns=config.turns[task]),
                    task=task,
                    levels=levels,
                    split=split,
                    seed=seed,
                )
                for task, levels in enumerate(splits.tasks)
            )

        return cls(
            config.evaluation,
            config.train,
            reward_rule(settings, build_inputs.reward_parts(config)),
            tuple(task.label for task in config.tasks),
            eval_sets(Split.TEST),
            eval_sets(Split.VALIDATION),
        )

    @classmethod
    def of_no_tasks(cls, config: Config) -> "HeldOut":
        """That of a run that plays nothing."""
        return cls(config.evaluation, config.train, RewardRule(0.0, 0.0, 0.0), (), (), ())

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of evaluation levels of each task."""
        return tuple(eval_set.number(self.evaluation.episodes) for eval_set in self.eval_sets)

    @functools.cached_property
    def board_hashes(self) -> list[UInt32[np.ndarray, "n 2"] | None]:
        """The state hashes of each task's evaluation levels; None where they are no boards."""
        found: list[np.ndarray | None] = []
        for eval_set, number in zip(self.eval_sets, self.levels):
            task = eval_set.batched_env.tasks[eval_set.task]
            boards = eval_set.boards(number) if task.has_boards else None
            found.append(None if boards is None else state_hashes(task.env, task.env_params, boards))
        return found

    @property
    def has_contents(self) -> bool:
        """Whether `contents` has those of all levels; otherwise nobody knows whether conversations are on one."""
        return bool(self.eval_sets) and not any(eval_set.batched_env.on_host for eval_set in self.eval_sets)

    def contents(self, tokenizer: Tokenizer) -> frozenset[str]:
        """Contents of the evaluation's compiled levels, as those of conversations: by system message and first message.

        Levels on the host have no text before they are played.
        """
        sets = [(found, count) for found, count in zip(self.eval_sets, self.levels) if not found.batched_env.on_host]
        return frozenset(itertools.chain.from_iterable(found.contents(count, tokenizer) for found, count in sets))

    def outcomes(self, params: Params, between: Callable[[], None] = lambda: None) -> Evaluated:
        """Plays every evaluation level twice: sampled and greedy; `between` is called after every dispatch."""
        success: dict[str, list[bool]] = {}
        levels: list[list[str]] = []
        for how, temperature in {"sampled": self.evaluation.temperature, "greedy": 0.0}.items():
            played = [
                eval_set.play(params, number, temperature, between=between)
                for eval_set, number in zip(self.eval_sets, self.levels)
            ]
            success[how] = np.concatenate([trajectory.success for trajectory in played]).tolist()
            levels = [level_ids(trajectory) for trajectory in played]
            if how == "sampled":
                turns = np.concatenate([trajectory.num_turns for trajectory in played])
                tokens = np.concatenate([trajectory.response.length.sum(axis=1) for trajectory in played])
        return Evaluated(success, levels, float(turns.mean()), float(tokens.mean()))

    def validation(self, params: Params) -> dict[str, float]:
        """Metrics of every task on its validation levels, and their mean success."""
        row: dict[str, float] = {}
        success, episodes = [], 0
        for label, eval_set in zip(self.labels, self.validations):
            number = eval_set.number(self.train.validation_episodes)
            episodes += number
            trajectory = eval_set.play(params, number, self.train.validation_temperature)
            metrics = trajectory_metrics(trajectory, (label,), 1, self.rule)
            row |= {f"validation/{label}/{key}": float(value) for key, value in metrics.items()}
            success.append(row[f"validation/{label}/success"])
        return row | {"validation/success": float(np.mean(success)), "validation/episodes": episodes}

    def seen(self, learned: set[str] | None, levels: list[list[str]]) -> dict[str, dict[str, Any]]:
        """What is known of the test levels of each task, by task label, see `seen.seen_levels`.

        `learned` has the ids of the levels that were learned from, None if unknown; `levels` has the ids of those that
        were played, for each task.
        """
        found = {}
        for label, eval_set, played in zip(self.labels, self.eval_sets, levels):
            task, boards = eval_set.batched_env.tasks[eval_set.task], eval_set.boards(len(played))
            found[label] = seen_levels(learned, played, eval_set.levels, task, boards)
        return found

    def baselines(self) -> Baselines | None:
        """The baselines on the levels of all tasks; None if those of a task are unknown."""
        return concatenate([eval_set.baselines(number) for eval_set, number in zip(self.eval_sets, self.levels)])
