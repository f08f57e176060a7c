"""`agentrl replay`: plays a recorded episode of a run again, bit for bit."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from agentrl_jax.config import load_resolved
from agentrl_jax.errors import UserError
from agentrl_jax.runs.config_history import ConfigHistory, read_history
from agentrl_jax.terminal import Terminal, visible


@dataclasses.dataclass(frozen=True)
class Replay:
    """Play a recorded episode again, from the nearest checkpoint before it, and compare it bit for bit.

    Or rebuild a checkpoint that was not kept: --rebuild STEP --out FOLDER.
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder of the run, e.g. runs/demo."""
    iteration: int | None = None
    """A recorded iteration, from 1; every train.trajectories_every-th one and the last are recorded."""
    row: int = 0
    """Episode of its rollout, from 0."""
    rebuild: int | None = None
    """Step of a checkpoint that was not kept: writes the run as it was then into a new folder, to start from."""
    out: str | None = None
    """New folder for --rebuild."""
    json: bool = False
    """Print one JSON object with episode, different, equal_rows, rows and start instead of text."""


def run(command: Replay) -> None:
    """Prints the episode or writes the folder, and says whether the bits are those of the run; exit code 1 if not."""
    if (command.iteration is None) == (command.rebuild is None):
        raise UserError.of("--iteration", command.iteration, "expected either an iteration, or --rebuild STEP")
    if (command.rebuild is None) != (command.out is None):
        raise UserError.of("--out", command.out, "expected a folder with --rebuild, and none without it")
    from agentrl_jax.parallel.mesh import simulate_cpu_devices

    # Before JAX is used, which importing the environments does. What is wrong with the folder is said later.
    file = Path(command.run) / "config.yaml"
    if file.is_file():
        config = load_resolved(file)
        step = config.rows_before_rl + (command.iteration or 0) if command.rebuild is None else command.rebuild
        simulate_cpu_devices(ConfigHistory(config, read_history(Path(command.run))).at(step).device_count)
    from agentrl_jax.train.replay_rollout import rebuild, replay_row

    if command.rebuild is not None and command.out is not None:
        different = rebuild(command.run, command.rebuild, command.out, Terminal(stderr=True))
        said = f"not in {', '.join(different[:8])}" if different else "bit for bit"
        print(f"{command.out}: checkpoint {command.rebuild}; its row of metrics equals that of the run: {said}")
        sys.exit(bool(different))
    assert command.iteration is not None
    found = replay_row(command.run, command.iteration, command.row, Terminal(stderr=True))
    if command.json:
        print(json.dumps(dataclasses.asdict(found), allow_nan=False))
    else:
        _print(found.episode)
        fields = "every field" if not found.different else f"not in {', '.join(found.different)}"
        print(f"equal to the record bit for bit: {fields}; {found.equal_rows} of {found.rows} recorded rows are equal")
    if found.different:
        sys.exit(1)


def _print(episode: dict[str, Any]) -> None:
    print(visible(episode["prompt"]))
    for number, turn in enumerate(episode["turns"], start=1):
        print(f"--- turn {number}\n{visible(turn['observation'])}\n>>> {visible(turn['response'])}")
        print(f"    actions {turn['actions']}, reward {turn['reward']:g}, format errors {turn['format_error']}")
    outcome = "success" if episode["success"] else "no success"
    print(f"--- {outcome}, return {episode['return']:g}, group {episode['group']}, member {episode['member']}")
