"""`agentrl serve-model`: a policy behind an OpenAI-compatible endpoint."""

import dataclasses
from typing import Annotated, Literal

import tyro

from agentrl_jax.cli.checks import check_at_least_1, check_download, check_seconds
from agentrl_jax.errors import UserError, text_flaw


@dataclasses.dataclass(frozen=True)
class ServeModel:
    """Serve the policy of a run, or a pretrained model, over OpenAI's chat API until a signal arrives."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder of a run; or a model, as `agentrl chat` takes it."""
    checkpoint: str = "last"
    """last, best (the highest success in validation), or the step of a checkpoint."""
    name: str = ""
    """Name of the model in requests; empty: the name of the folder."""
    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 lets other machines in: then set a token too."""
    port: int = 8001
    """Port to listen on; 0 for any free one."""
    opening: Literal["run", "none"] = "run"
    """run: responses begin with the text that the run inserts before them (prompt.forced_tag); none: they do not."""
    context: int = 2048
    """Maximum number of tokens of a prompt with its response; at most the positions of a pretrained model."""
    max_tokens: int = 512
    """Maximum number of tokens of a response."""
    max_batch: int = 16
    """Maximum number of responses that are sampled at once."""
    max_waiting: int = 256
    """Maximum number of responses that wait; more are refused with status 429."""
    request_timeout: float = 300.0
    """Seconds that a request may take; then it is answered with status 504."""
    max_body: int = 1024 * 1024
    """Largest body of a request, in bytes."""
    max_connections: int = 512
    """Maximum number of connections open at once; idle ones are closed for new ones."""
    allowed_hosts: tuple[str, ...] = ()
    """Further host names under which clients may reach this server, besides the address it listens on."""
    token_file: str = ""
    """File with the bearer token that every request needs (Authorization: Bearer TOKEN); empty for none."""
    announce: bool = False
    """For a parent process: print the address as a line of JSON when it listens, and end when standard input closes."""
    online: bool = False
    """Download the model from the Hugging Face Hub if there is no such folder or file."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""


def run(command: ServeModel) -> None:
    """Serves until a signal arrives."""
    check_at_least_1(command, "context", "max_tokens", "max_batch", "max_waiting", "max_body", "max_connections")
    check_seconds(command, "request_timeout")
    if not 0 <= command.port < 2**16:
        raise UserError.of("--port", command.port, f"expected a number from 0 to {2**16 - 1}")
    if flaw := text_flaw(command.name):
        raise UserError(f"--name has {flaw}; expected plain text", key="--name")
    check_download(command)
    from agentrl_jax.model_server.run import serve_model

    serve_model(**dataclasses.asdict(command))
