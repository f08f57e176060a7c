"""Records the first episodes of some iterations of a run: as text, and token by token."""

from typing import Any

import jax
import numpy as np

from agentrl_jax.learner.recorded import RecordedAdvantages, RecordedScores
from agentrl_jax.learner.state import TrainState
from agentrl_jax.parallel import hosts
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.rollout.transcript import transcripts
from agentrl_jax.runs.rollout_records import Header, RolloutRecord
from agentrl_jax.runs.run_folder import RunFolder
from agentrl_jax.setup.parts import RunParts
from agentrl_jax.train.iteration import IterationInputs


class Recorder:
    """The records of a run. The methods must be called on all processes, in the order of an iteration."""

    def __init__(self, parts: RunParts):
        """Prepares the records of a run; nothing is written yet."""
        self.parts = parts

    def due(self, iteration: int) -> bool:
        """Whether an iteration, from 0, is recorded."""
        train = self.parts.config.train
        every, number = train.trajectories_every, iteration + 1
        return every > 0 and (number % every == 0 or number == train.iterations)

    def take(self, state: TrainState, trajectory: Trajectory, inputs: IterationInputs) -> tuple[Any, RecordedScores]:
        """The recorded episodes of a rollout on the host, with their scores by the policy that sampled them."""
        assert self.parts.recorded is not None
        scores = self.parts.recorded(state.merged_params(), trajectory, inputs.rollout.temperature)
        episodes = self.parts.recorded_episodes
        return hosts.fetch((jax.tree.map(lambda x: x[:episodes], trajectory), scores))

    def write(
        self,
        folder: RunFolder,
        step: int,
        iteration: int,
        inputs: IterationInputs,
        taken: tuple[Any, RecordedScores],
        advantages: RecordedAdvantages,
        roll_backs: int,
    ) -> None:
        """Writes what `take` returned, with the advantages that the update returned.

        `step` is the row of metrics.jsonl; iterations count from 1.
        """
        (rows, scores), config = taken, self.parts.config
        names = tuple(task.label for task in config.tasks)
        groups = [task.groups * config.rollout.group_size for task in config.tasks]
        temperatures = np.asarray(inputs.rollout.temperature)[np.cumsum([0, *groups[:-1]])].tolist()
        one = len({*temperatures}) == 1
        texts = transcripts(rows, self.parts.tokenizer, names)
        folder.log_trajectories([{"step": step, "iteration": iteration, **text} for text in texts])
        header = Header(
            step=step,
            iteration=iteration,
            roll_backs=roll_backs,
            tasks=names,
            group_size=config.rollout.group_size,
            episodes=len(inputs.ids.group),
            horizon=int(inputs.rollout.horizon),
            temperature=temperatures[0] if one else None,
            temperatures=() if one else tuple(temperatures),
        )
        record = RolloutRecord.of_trajectory(header, rows, scores, hosts.fetch(advantages))
        folder.log_rollout(record, config.train.recorded_mb * 10**6)
