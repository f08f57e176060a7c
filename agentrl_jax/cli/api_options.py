"""Options of an API model, and what they say of the calls of its evaluations."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from agentrl_jax.cli.checks import check_at_least_1, check_items, check_level_file, check_seconds
from agentrl_jax.errors import UserError
from agentrl_jax.terminal import to_stderr

if TYPE_CHECKING:
    from agentrl_jax.evaluate.api_models.tasks import TaskOptions
    from agentrl_jax.evaluate.panels import Panel


@dataclasses.dataclass(frozen=True)
class ApiOptions:
    """Options of an API model."""

    api: str | None = None
    """Name of a model behind an OpenAI-compatible API, to evaluate it in --env or on --panel instead of a run; with
    --base_url and --out."""
    base_url: str = ""
    """Address of the API before /chat/completions, e.g. http://127.0.0.1:8001/v1 of `agentrl serve-model`."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the key, which is sent as the bearer token and written nowhere."""
    style: Literal["auto", "ragen", "compact", "chat"] = "auto"
    """Prompts of an API model. ragen: answers in tags, for compiled environments; compact: the same in few words, for
    policies trained so; chat: ReAct's Thought and Action, for services. auto: ragen where it is possible."""
    think: bool = False
    """Ask an API model for a think block in the style ragen or compact."""
    actions_per_turn: int = 5
    """Maximum number of actions that a turn carries out in the style ragen or compact."""
    max_tokens: int = 512
    """Maximum number of tokens of a reply. An episode whose reply is cut counts as such, and not as a failure."""
    concurrency: int = 16
    """Episodes that an API model plays at once."""
    request_timeout: float = 120.0
    """Seconds of one attempt of a request to an API, up to the end of its answer."""
    retries: int = 8
    """Attempts after the first one, for the status 429, errors of the server, broken connections and cut answers; other
    refusals get at most two."""
    price_in: float | None = None
    """Price of a million tokens that an API model reads, to sum up the cost."""
    price_out: float | None = None
    """Price of a million tokens that an API model writes."""
    token_ids: bool = False
    """Ask for the token ids of prompts and replies (vLLM, `agentrl serve-model`), keep them, and send those of earlier
    replies back, which `agentrl serve-model` reads as they were sampled."""
    extra: str = ""
    """Further fields of every request to an API as a JSON object, e.g. '{"reasoning_effort": "low"}'; null leaves a
    usual field out, e.g. '{"temperature": null}'."""


class Asked(NamedTuple):
    """What a command asks of an API model."""

    options: "TaskOptions"
    call: dict[str, Any]
    """The arguments of `evaluate_api` by name, besides the task and the folder."""
    panel: "Panel | None"


def asked(command: Any, given: ApiOptions, **of_task: Any) -> Asked:
    """Reads the options of a command with `env`, `panel`, `out`, `items`, `episodes`, `levels`, `seed`, `url`,
    `token_file` and `temperature` besides `given`; `of_task` are further ones of the task.

    Raises:
        UserError: an option is missing or cannot be used.
    """
    named = command.env is not None or command.panel is not None
    if given.api is None or not named or not given.base_url or command.out is None:
        raise UserError(
            "--api evaluates an API model: give --env ENV or --panel NAME, --base_url ADDRESS and --out FOLDER too",
            key="--api",
        )
    check_at_least_1(command, "episodes")
    check_at_least_1(given, "actions_per_turn", "max_tokens", "concurrency")
    check_seconds(given, "request_timeout")
    check_items(command)
    if given.retries < 0:
        raise UserError.of("--retries", given.retries, "expected 0 or more")
    temperature = 0.0 if command.temperature is None else command.temperature
    for name, value in (("temperature", temperature), ("price_in", given.price_in), ("price_out", given.price_out)):
        if value is not None and not 0 <= value < float("inf"):
            raise UserError.of(f"--{name}", value, "expected 0 or more")
    check_level_file(command.levels)
    extra = _extra(given.extra)
    from agentrl_jax.evaluate.api_models.evaluate import read_key
    from agentrl_jax.evaluate.api_models.tasks import TaskOptions

    options = TaskOptions(
        **{name: getattr(given, name) for name in _OF_TASK},
        env=command.env or "",
        **{name: getattr(command, name) for name in _OF_COMMAND},
        **of_task,
    )
    panel = None
    if command.panel is not None:
        from agentrl_jax.evaluate.api_models.on_panel import on_panel
        from agentrl_jax.evaluate.panels import get_panel

        panel = get_panel(command.panel)
        options = on_panel(options, panel)
    call = {
        "model": given.api,
        "base_url": given.base_url,
        "key": read_key(given.key_variable, required=given.key_variable != ApiOptions().key_variable),
        "temperature": temperature,
        "extra": extra,
        "report": to_stderr,
        **{name: getattr(given, name) for name in _PASSED_ON},
    }
    return Asked(options, call, panel)


def refuse(options: Any, names: Sequence[str], where: str) -> None:
    """Refuses options that are given, but are only read somewhere else."""
    for name in names:
        if getattr(options, name) != getattr(type(options)(), name):
            raise UserError.of(f"--{name}", getattr(options, name), f"which is read only {where}; leave it out")


_OF_TASK = ("style", "think", "actions_per_turn", "max_tokens", "concurrency")
_OF_COMMAND = ("items", "episodes", "levels", "seed", "url", "token_file")
_PASSED_ON = ("token_ids", "request_timeout", "retries", "price_in", "price_out")


def _extra(text: str) -> dict[str, Any]:
    from agentrl_jax.strict_json import parse_object

    try:
        found = parse_object(text.encode() or b"{}", "--extra")
    except ValueError as error:
        raise UserError.of("--extra", text, 'expected a JSON object such as {"top_p": 0.9}') from error
    for name in ("model", "messages", "stream", "n"):
        if name in found:
            raise UserError(
                f"--extra sets {name}, which the evaluation sets itself; leave it out", key="--extra", value=name
            )
    return found
