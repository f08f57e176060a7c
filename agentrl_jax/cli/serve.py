"""`agentrl serve`: an environment over HTTP, with AgentGym's protocol."""

import dataclasses
import secrets
from typing import Annotated, Any, Literal

import tyro

from agentrl_jax.cli.checks import check_at_least_1, check_seconds
from agentrl_jax.errors import UserError, refusals


@dataclasses.dataclass(frozen=True)
class Serve:
    """Serve an environment over HTTP, with AgentGym's protocol, until a signal arrives."""

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """A text environment, e.g. textcraft, or a compiled one, e.g. Bandit; `agentrl envs` lists both. Or retriever: a
    search over a corpus, POST /retrieve as Search-R1's clients call it."""
    corpus: str = ""
    """Of retriever and searchqa: file .jsonl with a passage a line, with id and contents, or id, title and text.
    Without it searchqa has invented worlds."""
    questions: str = ""
    """Of searchqa: file .jsonl with a question a line, with question and golden_answers."""
    retriever: str = "bm25"
    """Of both: what searches: bm25, static, or a control: random, empty, shuffled; of searchqa also oracle, or the
    address of a retriever, http://HOST:PORT/retrieve."""
    topk: int = 3
    """Of both: passages for a query; for retriever, where a request names no number."""
    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 lets other machines in: then set a token too."""
    port: int = 8000
    """Port to listen on; 0 for any free one."""
    max_instances: int = 256
    """Maximum number of instances open at once. At the limit, a new one replaces a finished one, or else the one idle
    longest, see reclaim_after; if there is none, the new one is refused with status 503."""
    reclaim_after: float = 300.0
    """Seconds without a request after which an unfinished instance may be replaced by a new one; 0 for never."""
    idle_timeout: float = 3600.0
    """Seconds without a request after which an instance is closed; 0 for never."""
    request_timeout: float = 300.0
    """Seconds that a request may take; then its instance is abandoned."""
    max_body: int = 1024 * 1024
    """Largest body of a request, in bytes."""
    max_action: int = 65536
    """Longest action, in characters; longer ones are refused with status 422."""
    max_connections: int = 512
    """Maximum number of connections open at once; idle ones are closed for new ones."""
    allowed_hosts: tuple[str, ...] = ()
    """Further host names under which clients may reach this server, besides the address it listens on."""
    workers: int = 64
    """Maximum number of requests processed at once."""
    token_file: str = ""
    """File with the bearer token that every request needs (Authorization: Bearer TOKEN); empty for none."""
    compat: Literal["none", "upstream"] = "none"
    """upstream: reproduce the bugs of AgentGym's own servers, for parity with published runs."""
    announce: bool = False
    """For a parent process: print the address as a line of JSON when it listens, and end when standard input closes."""


RETRIEVER, SEARCHQA = "retriever", "searchqa"
_READ_BY = {**dict.fromkeys(("corpus", "retriever", "topk"), (RETRIEVER, SEARCHQA)), "questions": (SEARCHQA,)}


def run(command: Serve) -> None:
    """Serves until a signal arrives."""
    from agentrl_jax.services.server.access import read_token, served_hosts
    from agentrl_jax.services.server.limits import Limits
    from agentrl_jax.services.server.run import serve

    check_at_least_1(command, "max_instances", "max_body", "max_action", "max_connections", "workers")
    check_seconds(command, "request_timeout")
    for name in ("idle_timeout", "reclaim_after"):
        check_seconds(command, name, never=True)
    if not 0 <= command.port < 2**16:
        raise UserError.of("--port", command.port, f"expected a number from 0 to {2**16 - 1}")
    token = read_token(command.token_file)
    upstream = command.compat == "upstream"
    for name, read_by in _READ_BY.items():
        given = getattr(command, name)
        if command.env not in read_by and given != getattr(Serve, name):
            raise UserError.of(f"--{name}", given, f"which is for {' and '.join(read_by)}; leave it out")
        if command.env == SEARCHQA and not command.corpus and given != getattr(Serve, name):
            why = "but there is no --corpus; give it, or leave this out to serve questions about invented worlds"
            raise UserError.of(f"--{name}", given, why)
    limits = Limits(
        instances=command.max_instances,
        idle_timeout=command.idle_timeout,
        seconds=command.request_timeout,
        body_bytes=command.max_body,
        action_chars=command.max_action,
        reclaim_after=command.reclaim_after,
        hosts=served_hosts(command.host, command.allowed_hosts),
        any_address=command.host in ("0.0.0.0", "::"),
        workers=command.workers,
        token=token,
        first_handle=0 if upstream else secrets.randbelow(2**30),  # so that all that follow fit into 31 bits
    )
    serve(
        _retriever(command, limits) if command.env == RETRIEVER else _environment(command, limits, upstream),
        host=command.host,
        port=command.port,
        token=token,
        connections=command.max_connections,
        announce=command.announce,
    )


def _environment(command: Serve, limits: Any, upstream: bool) -> Any:
    from agentrl_jax.services.catalog import get_service
    from agentrl_jax.services.protocol import routes_of
    from agentrl_jax.services.server.app import create_app

    with refusals():
        service = _searchqa(command) if command.corpus else get_service(command.env)
        service.make(upstream).close()  # reports now what is missing, not to the first client
    return create_app(service, routes_of(service.name), limits, upstream=upstream)


def _searchqa(command: Serve) -> Any:
    from agentrl_jax.services.environments.searchqa.env import searchqa_service

    check_at_least_1(command, "topk")
    if not command.questions:
        raise UserError.of("--questions", "", "expected a file .jsonl with a question a line")
    return searchqa_service(command.corpus, command.questions, retriever=command.retriever, topk=command.topk)


def _retriever(command: Serve, limits: Any) -> Any:
    from agentrl_jax.retrieval.corpus import read_corpus
    from agentrl_jax.retrieval.registry import make_retriever
    from agentrl_jax.services.server.retriever_app import create_retriever_app

    check_at_least_1(command, "topk")
    if not command.corpus:
        raise UserError.of("--corpus", "", "expected a file .jsonl with a passage a line")
    if command.retriever == "oracle" or ":" in command.retriever:
        raise UserError.of("--retriever", command.retriever, "which is not served; use bm25, static or a control")
    with refusals():
        corpus = read_corpus(command.corpus)
        found = make_retriever(command.retriever, corpus, 0)
    return create_retriever_app(corpus, found, limits, topk=command.topk)
