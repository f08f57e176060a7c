"""`agentrl eval --api`: a model behind an OpenAI-compatible API as the agent."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from agentrl_jax.cli.api_options import ApiOptions, asked
from agentrl_jax.cli.checks import check_at_least_1
from agentrl_jax.errors import UserError
from agentrl_jax.terminal import Terminal, to_stderr


@dataclasses.dataclass(frozen=True)
class EvalApiOptions(ApiOptions):
    """Options of an API model that is evaluated once."""

    attempts: int = 1
    """Most attempts of an API model at an item in one conversation: after a failure the item begins again, and the
    model reads that it failed. --turns counts within an attempt. Reported beside pass@k of --samples, and never as
    success without retries."""


def run(command: Any) -> None:
    """Prints the success of an API model; `command` is the `Eval` whose options are read besides `EvalApiOptions`.

    Exits with 1 while episodes are unfinished or failed, which the same command asks for again.
    """
    given: EvalApiOptions = command.of_api
    check_at_least_1(command, "samples", "turns")
    check_at_least_1(given, "attempts")
    if command.best_of is not None and command.best_of < 2:
        raise UserError.of("--best_of", command.best_of, "expected at least 2 samples to choose from")
    from agentrl_jax.evaluate.api_models.evaluate import evaluate_api
    from agentrl_jax.evaluate.retry import MOST_ATTEMPTS

    if given.attempts > MOST_ATTEMPTS:
        raise UserError.of("--attempts", given.attempts, f"expected at most {MOST_ATTEMPTS}")
    options, call, panel = asked(command, given, turns=command.turns, attempts=given.attempts)
    result = evaluate_api(
        **call,
        options=options,
        out=command.out,
        samples=command.samples,
        best_of=() if command.best_of is None else (command.best_of,),
        selector=command.selector,
        clusters=command.clusters,
        screenshots=command.screenshots,
    )
    if not command.json:
        _print_result(result)
    unfinished = result["episodes"]["unfinished"]
    if panel is not None and not unfinished:
        from agentrl_jax.evaluate import records
        from agentrl_jax.evaluate.api_models.on_panel import record_parts

        record = records.of_result(record_parts(result, options, panel))
        if command.json:
            print(record.model_dump_json())
        path = Path(command.out) / "record.json"
        records.write_record(record, str(path))
        to_stderr(f"record: {path}")
    elif command.json:
        print(json.dumps(result, allow_nan=False))
    if result["unfinished"]:
        lacking = "" if panel is None or not unfinished else f", so that there is no record of {panel.name}"
        to_stderr(
            f"agentrl: {unfinished} of {result['episodes']['asked']} episodes are unfinished and "
            f"{result['episodes']['failed']} failed{lacking}; give the same command again, which asks only for these"
        )
        sys.exit(1)


def _print_result(result: dict[str, Any]) -> None:
    from agentrl_jax.evaluate.api_models.report import as_table, lines_of, retry_lines_of, retry_tables

    terminal = Terminal()
    terminal.print(as_table(result), *lines_of(result))
    if "retry" in result:
        terminal.print(*retry_tables(result), *retry_lines_of(result))
