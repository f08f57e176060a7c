"""From which checkpoint of a run the rollout of an iteration is played again."""

from collections.abc import Callable, Sequence
from pathlib import Path

from agentrl_jax.errors import UserError, refusals
from agentrl_jax.strict_json import parse_object


def replay_start(
    run: Path, iteration: int, step: int, roll_backs: int, steps: Sequence[int], known: Callable[[int], int]
) -> int | None:
    """The newest checkpoint before a rollout from which the run went on to it; None for the start of the run.

    After a roll-back a run goes on from one checkpoint of before it, with other keys, so that checkpoints of other
    numbers of roll-backs do not lead to the rollout.

    Args:
        run: folder of the run on this machine.
        iteration: number of the iteration.
        step: its step; checkpoints have the numbers of the steps after which they were written.
        roll_backs: roll-backs before the iteration.
        steps: the complete checkpoints, ascending.
        known: function from a checkpoint to the number of roll-backs before it.

    Raises:
        UserError: no checkpoint is left that leads to the rollout, or the file of a roll-back cannot be read.
    """
    went_back_to = None
    if roll_backs:
        file = run / "roll_backs" / f"{roll_backs}.json"
        with refusals():
            went_back_to = parse_object(file.read_bytes(), str(file)).get("step")
    fit = [s for s in steps if s < step and (s == went_back_to or known(s) == roll_backs)]
    if roll_backs and not fit:
        raise UserError.at(
            run,
            f"iteration {iteration} was played after roll-back {roll_backs}, and neither a checkpoint of after it nor "
            f"that of step {went_back_to} is left; replay a later iteration, or keep more checkpoints (train.keep)",
            iteration,
        )
    return max(fit, default=None)
