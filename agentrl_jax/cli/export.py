"""`agentrl export`: writes a policy in Hugging Face's format, or recorded rollouts in the format of another tool."""

import dataclasses
from typing import Annotated, Literal

import tyro

from agentrl_jax.cli.checks import check_download
from agentrl_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Export:
    """Write the policy of a run, or a pretrained model, in Hugging Face's format, for transformers, vLLM and others.

    With --trajectories, write recorded rollouts of a run for other tools instead.
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """Folder of a run, e.g. runs/demo, or a model as for `agentrl chat`."""
    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FOLDER")]
    """New folder to write."""
    checkpoint: str = "last"
    """Checkpoint of a run: last, best (the highest success in validation), or a step."""
    adapter: bool = False
    """Write only the adapter of a run that has one (model.lora), for PEFT; otherwise it is merged into the weights."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type of the weights; default: float32."""
    online: bool = False
    """Download the model from the Hugging Face Hub if there is no such folder or file."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""
    trajectories: Literal["atif", "inspect"] | None = None
    """Write the recorded rollouts of an iteration instead of the policy: atif, one JSON file per episode in the Agent
    Trajectory Interchange Format; inspect, a log for `inspect view` (needs the extra `inspect`)."""
    iteration: int | None = None
    """Iteration whose rollouts are written; default: the last one that was recorded, or, of an evaluation that was
    recorded (`agentrl eval --record`), all: 1 is greedy play, 2 the first sample."""
    version: Literal["1.7", "1.8"] = "1.7"
    """Version of ATIF."""
    log_format: Literal["eval", "json"] = "eval"
    """Inspect log: eval, a compressed file; json, one JSON file."""


_OF_TRAJECTORIES = ("iteration", "version", "log_format")
_OF_POLICY = ("checkpoint", "adapter", "dtype", "online", "revision")


def run(command: Export) -> None:
    """Writes the folder and says what is in it."""
    defaults, recorded = Export(command.model, command.folder), command.trajectories is not None
    for name in _OF_POLICY if recorded else _OF_TRAJECTORIES:
        if getattr(command, name) != getattr(defaults, name):
            which = "without" if recorded else "with"
            raise UserError.of(
                f"--{name}", getattr(command, name), f"which is read only {which} --trajectories; leave it out"
            )
    for name, kind in (("version", "atif"), ("log_format", "inspect")):
        if recorded and command.trajectories != kind and getattr(command, name) != getattr(defaults, name):
            raise UserError.of(f"--{name}", getattr(command, name), f"which is read only with {kind}; leave it out")
    if command.trajectories is not None:
        from agentrl_jax.formats.export import export_trajectories

        options = {name: getattr(command, name) for name in _OF_TRAJECTORIES}
        print(export_trajectories(command.model, command.folder, command.trajectories, **options))
        return
    check_download(command)
    from agentrl_jax.studies.export import export

    options = {name: getattr(command, name) for name in _OF_POLICY}
    print(export(command.model, command.folder, **options))
