"""`agentrl chat`: chats with a model."""

import dataclasses
from typing import Annotated, Literal

import tyro

from agentrl_jax.cli.checks import check_at_least_1, check_download
from agentrl_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Chat:
    """Chat with a pretrained model, or with the policy of a run that was trained from one."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """Folder of a run, folder with Hugging Face's files, a .gguf file, or smollm2-135m."""
    system: str = ""
    """System message; empty for the one that the model's chat template has, if any."""
    temperature: float = 0.0
    """Sampling temperature; 0 takes the most likely token."""
    max_tokens: int = 256
    """Longest response in tokens."""
    length: int = 2048
    """Maximum number of tokens in the whole conversation."""
    seed: int = 0
    """Seed of sampling."""
    thinking: Literal["auto", "on", "off"] = "auto"
    """Think before responses, for chat templates that support both (Qwen3); auto: as the run was trained
    (prompt.think), or the template's default."""
    online: bool = False
    """Download the model from the Hugging Face Hub if there is no such folder or file."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""


def run(command: Chat) -> None:
    """Chats until the input ends."""
    if command.temperature < 0:
        raise UserError.of("--temperature", command.temperature, "expected 0 or more")
    check_at_least_1(command, "max_tokens", "length")
    check_download(command)
    from agentrl_jax.evaluate.chat import chat

    chat(**dataclasses.asdict(command))
