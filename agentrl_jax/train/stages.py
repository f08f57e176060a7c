"""The stages of a run: what it walks through, one after the other, over one state and one record."""

from typing import Any, Protocol

from agentrl_jax.config.stages import DpoStage
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.learner.state import TrainState
from agentrl_jax.offline.stage_data import StageData
from agentrl_jax.train.evolve import Evolve
from agentrl_jax.train.from_data import FromData
from agentrl_jax.train.imitation import Imitation
from agentrl_jax.train.iteration import Played
from agentrl_jax.train.progress import RunProgress
from agentrl_jax.train.reinforcement import Reinforcement
from agentrl_jax.train.step_pairs import StepPairs


class Stage(Protocol):
    """A part of a run with steps of its own kind, such as imitation. `train.run.Run` knows none by its name.

    What a stage needs to be resumed is in the state, in `RunProgress`, or in files that it writes before it goes on.
    """

    name: str
    """Of its rows of metrics.jsonl, under `stage`."""
    first_row: int
    """Number of rows of the stages before it."""
    rows: int
    """Most rows that it writes."""

    def begin(self, state: TrainState) -> TrainState:
        """The state before the first step, from that at the end of the stage before; calls `TrainState.next_stage`."""
        ...

    def resume(self, state: TrainState) -> None:
        """Called once in a process that goes on within the stage, or after it."""
        ...

    def new_stage_state(self) -> Any:
        """`TrainState.stage_state` before the first step, on the devices of the run."""
        ...

    def row(self, state: TrainState) -> int:
        """Number of rows that the run has written at a state of this stage, those of earlier stages included."""
        ...

    def ended(self, state: TrainState) -> bool:
        """Whether nothing is left to do."""
        ...

    def advance(self, state: TrainState) -> TrainState:
        """Does what belongs to the next row, writes it, and saves the state if that is due."""
        ...

    def recovered(self, state: TrainState) -> TrainState:
        """The state to go on from, which is an earlier one where the stage has gone wrong and is repeated."""
        ...

    def play(self, state: TrainState) -> Played:
        """The episodes of the next row, without learning from them.

        Raises:
            UserError: the stage plays no episodes of its own.
        """
        ...


def stages_of(progress: RunProgress, held_out: HeldOut, read: dict[int, StageData]) -> tuple[Stage, ...]:
    """The stages of a run, in their order; with tasks, the last is reinforcement learning, which may have no iteration.

    `read` has data that stages learn from, by their numbers in the configuration, where they are known already.
    """
    config, row = progress.parts.config, 0
    found: list[Stage] = []
    kinds = [stage.kind for stage in config.stages] or ["imitation"] * (config.imitation.chunks > 0)
    for index, kind in enumerate(kinds):
        if kind != "rl":
            if kind == "imitation":
                found.append(Imitation(progress, held_out, row))
            else:
                stage = config.stages[index]
                searches = isinstance(stage, DpoStage) and stage.levels
                of_kind = Evolve if kind == "evolve" else StepPairs if searches else FromData
                found.append(of_kind(progress, held_out, index, row, read))
            row += found[-1].rows
    return (*found, Reinforcement(progress, held_out, first_row=row)) if config.tasks else tuple(found)
