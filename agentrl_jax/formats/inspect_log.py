"""Recorded rollouts as a log of Inspect (inspect.aisi.org.uk), made and written by its own package.

A group is a sample and its members are the epochs of the sample; in an evaluation, groups are levels. The package is an
extra, so that it is imported in functions.
"""

import dataclasses
import datetime
import re
from collections.abc import Sequence
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from agentrl_jax.errors import UserError
from agentrl_jax.formats.episodes import Episode, RecordedEpisodes, Turn
from agentrl_jax.runs.rollout_records import Header

_METRICS = {"success": ("accuracy", "stderr"), "return": ("mean", "stderr")}
"""The scores of a sample, and what the log says about each over all samples."""


def write_log(sources: Sequence[RecordedEpisodes], folder: Path, extension: str) -> Path:
    """Writes one log of some records into a folder and returns its path; `extension` is eval or json.

    The name has the form that Inspect lists: time, task and run, joined by underscores.

    Raises:
        UserError: the package is not installed.
    """
    try:
        from inspect_ai import log
    except ImportError as error:
        raise UserError(
            f"an Inspect log needs the package inspect-ai ({error}); install it: pip install "
            "'inspect-ai>=0.3.285,<0.4'",
            key="inspect-ai",
        ) from error

    made, source = as_log(sources), sources[0]
    time = made.eval.created[:19].replace(":", "-")
    path = (
        folder / f"{time}+00-00_{_plain(made.eval.task)}_{_plain(source.run)}-{source.header.iteration:06d}.{extension}"
    )
    log.write_eval_log(made, str(path), format=extension)
    return path


def _plain(text: str) -> str:
    """The text with hyphens in place of all that has a meaning in the name of a file; Inspect has a file per sample."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text)


def as_log(sources: Sequence[RecordedEpisodes]) -> Any:
    """Recorded episodes as an Inspect log: those of an iteration, or of some samples of one evaluation.

    Scores are `success` (C or I) and `return` (raw, without penalties). An episode whose environment failed is a
    sample with an error and without scores. Every response is a model event with its log-probabilities. The time of
    the log is that of the record, since the times of episodes are not recorded.
    """
    from inspect_ai import log, model

    source = sources[0]
    header, time, name = source.header, source.time, f"agentrl_jax/{source.model}"
    identity = f"{source.run}-{header.iteration:06d}"
    samples = [_sample(each, episode, name) for each in sources for episode in each]
    ids = list(dict.fromkeys(sample.id for sample in samples))
    spec = log.EvalSpec(
        eval_id=identity,
        run_id=source.run,
        created=time.isoformat(),
        task=" ".join(header.tasks),
        task_id=identity,
        dataset=log.EvalDataset(name=source.run, samples=len(ids), sample_ids=ids, shuffled=False),
        model=name,
        model_generate_config=model.GenerateConfig(
            temperature=source.temperature, max_tokens=source.config.prompt.max_response_tokens
        ),
        config=log.EvalConfig(
            epochs=max(sample.epoch for sample in samples), epochs_reducer=["mean"], turn_limit=header.horizon
        ),
        packages={"agentrl_jax": package_version("agentrl_jax")},
        metadata=_metadata(header),
        scorers=[{"name": score, "metrics": _definitions(metrics)} for score, metrics in _METRICS.items()],
    )
    made = log.EvalLog(
        status="success",
        eval=spec,
        plan=log.EvalPlan(name="rollout", steps=[log.EvalPlanStep(solver="policy")]),
        stats=log.EvalStats(
            started_at=time.isoformat(),
            completed_at=time.isoformat(),
            model_usage={name: sum((sample.model_usage[name] for sample in samples), model.ModelUsage())},
        ),
        samples=samples,
    )
    log.recompute_metrics(made)
    return made


def _metadata(header: Header) -> dict[str, Any]:
    """What the log says about where its episodes are from."""
    if header.evaluation is not None:
        known = dataclasses.asdict(header.evaluation)
        return {"step": header.step, **{key: value for key, value in known.items() if key != "sample"}}
    return {key: getattr(header, key) for key in ("step", "iteration", "roll_backs", "group_size", "episodes")}


def _definitions(metrics: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{"name": f"inspect_ai/{metric}", "options": {}} for metric in metrics]


def _sample(source: RecordedEpisodes, episode: Episode, name: str) -> Any:
    from inspect_ai import log, model, scorer

    messages: list[Any] = [] if episode.system is None else [model.ChatMessageSystem(content=episode.system)]
    opening = len(messages)
    events = []
    limit, time = source.config.prompt.max_response_tokens, source.time
    for number, turn in enumerate(episode.turns):
        messages.append(model.ChatMessageUser(content=turn.message))
        context = [*messages[:opening], *messages[opening + 2 * source.context.first_read(number) :]]
        output = _output(turn, name, limit, source.tokenizer)
        events.append(_event(list(context), output, name, source.temperature, time))
        messages.append(output.message)
    if episode.unanswered is not None:
        messages.append(model.ChatMessageUser(content=episode.unanswered))
    usage = sum((event.output.usage for event in events), model.ModelUsage())
    details = {key: getattr(episode, key) for key in ("task", "group", "member", "row", "truncation")}
    tokens = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
    scores = {
        "success": scorer.Score(value=scorer.CORRECT if episode.success else scorer.INCORRECT),
        "return": scorer.Score(value=episode.reward),
    }
    failure = log.EvalError(message="the environment failed, or it had no level", traceback="", traceback_ansi="")
    cut = episode.truncation == "turns"
    return log.condense_sample(
        log.EvalSample(
            id=f"{_plain(episode.task)}-{episode.group:06d}",
            epoch=episode.member + 1,
            input=messages[: opening + 1],
            target="",
            messages=messages,
            output=events[-1].output if events else model.ModelOutput(model=name),
            scores=None if episode.failed else scores,
            error=failure if episode.failed else None,
            limit=log.EvalSampleLimit(type="turn", limit=source.header.horizon) if cut else None,
            turn_count=len(events),
            metadata=details | {"turns": len(episode.turns)} | tokens | episode.extra,
            events=events,
            model_usage={name: usage},
            started_at=time.isoformat(),
            completed_at=time.isoformat(),
        )
    )


def _output(turn: Turn, name: str, limit: int, tokenizer: Any) -> Any:
    from inspect_ai import model

    said = model.ChatMessageAssistant(
        content=turn.response, source="generate", model=name, metadata=turn.extra | turn.token_numbers
    )
    logprobs = [
        model.Logprob(
            token=tokenizer.decode([token], skip_special=False),
            logprob=value,
            bytes=list(tokenizer.token_bytes[token] or b"") or None,  # a token may be a part of a character
        )
        for token, value in zip(turn.token_ids, turn.logprobs)
    ]
    cut = not turn.ended and len(turn.token_ids) == limit
    choice = model.ChatCompletionChoice(message=said, stop_reason="max_tokens" if cut else "stop")
    if logprobs:
        choice.logprobs = model.Logprobs(content=logprobs)
    read, sampled = len(turn.prompt_token_ids), len(turn.token_ids)
    usage = model.ModelUsage(input_tokens=read, output_tokens=sampled, total_tokens=read + sampled)
    return model.ModelOutput(model=name, choices=[choice], usage=usage)


def _event(context: list[Any], output: Any, name: str, temperature: float | None, time: datetime.datetime) -> Any:
    from inspect_ai import event, model

    return event.ModelEvent(
        model=name,
        input=context,
        tools=[],
        tool_choice="none",
        config=model.GenerateConfig(temperature=temperature),
        output=output,
        timestamp=time,
        completed=time,
        working_start=0.0,
    )
