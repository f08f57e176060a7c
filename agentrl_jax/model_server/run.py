"""Starts the server of a model."""

import logging
from typing import Literal

from agentrl_jax.model_server.app import create_app
from agentrl_jax.model_server.served_model import load_served, make_sampler
from agentrl_jax.services.server.access import read_token, served_hosts
from agentrl_jax.services.server.limits import Limits
from agentrl_jax.services.server.run import serve

_log = logging.getLogger(__name__)


def serve_model(
    model: str,
    *,
    checkpoint: str,
    name: str,
    host: str,
    port: int,
    opening: Literal["run", "none"],
    context: int,
    max_tokens: int,
    max_batch: int,
    max_waiting: int,
    request_timeout: float,
    max_body: int,
    max_connections: int,
    allowed_hosts: tuple[str, ...],
    token_file: str,
    announce: bool,
    online: bool,
    revision: str | None,
) -> None:
    """Serves a model until a signal arrives; the arguments are the options of `agentrl serve-model`.

    Raises:
        UserError: the model, the token file or the address cannot be used.
    """
    limits = Limits(
        seconds=request_timeout,
        body_bytes=max_body,
        hosts=served_hosts(host, allowed_hosts),
        any_address=host in ("0.0.0.0", "::"),
        token=read_token(token_file),
    )
    found = load_served(model, checkpoint=checkpoint, name=name, opening=opening, online=online, revision=revision)
    if found.run:
        _log.info("%s: checkpoint %s of %s, iteration %s", found.name, found.step, model, found.iteration)
    if found.turns:
        _log.info("%s was trained on contexts of turns: %d (agent): it reads no earlier ones", found.name, found.turns)
    sampler = make_sampler(found, context=context, max_tokens=max_tokens, max_batch=max_batch)
    app = create_app(found, sampler, limits, max_waiting=max_waiting)
    serve(app, host=host, port=port, token=limits.token, connections=max_connections, announce=announce)
