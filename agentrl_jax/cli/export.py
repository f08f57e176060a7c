"""`agentrl export`: writes a policy in Hugging Face's format."""

import dataclasses
from typing import Annotated, Literal

import tyro

from agentrl_jax.cli.checks import check_download


@dataclasses.dataclass(frozen=True)
class Export:
    """Write the policy of a run, or a pretrained model, in Hugging Face's format, for transformers, vLLM and others."""

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


def run(command: Export) -> None:
    """Writes the folder and says what is in it."""
    check_download(command)
    from agentrl_jax.studies.export import export

    print(export(**dataclasses.asdict(command)))
