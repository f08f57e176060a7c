"""What a reader of the page should know before a replay: that it first trains a part of the run again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_jax.errors import MAX_FOREIGN, UserError, shortened
from agentrl_jax.runs.checkpoint import complete_steps, unchecked_roll_backs
from agentrl_jax.runs.remote import CHECKPOINTS
from agentrl_jax.runs.replay_start import replay_start


def replay_notes(run: Path, place: str, headers: Sequence[Mapping[str, Any]]) -> tuple[list[str], str]:
    """Returns a sentence for each recorded iteration, empty where its replay starts at once, and a flaw.

    The flaw says why the checkpoints could not be read, in which case there are no sentences; it is usually empty.

    Args:
        run: folder of the run on this machine.
        place: where the run and so its checkpoints are: the same folder, or an address in an object store.
        headers: iteration, step and roll_backs of each iteration.
    """
    saved = f"{place}/{CHECKPOINTS}"
    try:
        steps = complete_steps(saved)
        roll_backs = {step: unchecked_roll_backs(saved, step) for step in steps}
    except Exception as error:  # each store has its own errors
        why = shortened(error, MAX_FOREIGN)
        flaw = f"The checkpoints cannot be listed ({why}), so that it is not known how replays start."
        return [""] * len(headers), flaw
    return [_note(run, header, steps, roll_backs) for header in headers], ""


def _note(run: Path, header: Mapping[str, Any], steps: Sequence[int], roll_backs: Mapping[int, int]) -> str:
    step = header["step"]
    try:
        start = replay_start(run, header["iteration"], step, header["roll_backs"], steps, lambda s: roll_backs[s])
    except UserError:
        return "No replay: the iteration was played after a roll-back, and no checkpoint that leads to it is left."
    again = step - 1 - (start or 0)
    if not again:
        return ""
    what = f"{again} step{'' if again == 1 else 's'}"
    if start is None:
        return (
            f"No checkpoint before this iteration is left: the replay first trains {what} again, from the start of the "
            "run, which can take minutes or longer."
        )
    return (
        f"No checkpoint is right before this iteration: the replay first trains {what} again, from the checkpoint of "
        f"step {start}, which can take minutes or longer."
    )
