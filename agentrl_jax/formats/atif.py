"""Episodes in ATIF, the Agent Trajectory Interchange Format of Harbor (RFC 0001), versions 1.7 and 1.8.

Version 1.8 adds audio to messages and nothing else. These episodes are text, so that both versions differ in
`schema_version` only. The fields are those of `harbor.models.trajectories` in Harbor 0.25.0.
"""

import dataclasses
import json
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from agentrl_jax.formats.episodes import Episode, RecordedEpisodes, Turn


def write_files(source: RecordedEpisodes, folder: Path, version: str) -> None:
    """Writes one file per episode, ITERATION-ROW.json, into a folder."""
    for episode in source:
        text = json.dumps(as_atif(source, episode, version), allow_nan=False, ensure_ascii=False)
        path = folder / f"{source.header.iteration:06d}-{episode.row:06d}.json"
        path.write_text(text + "\n", encoding="utf-8")


def as_atif(source: RecordedEpisodes, episode: Episode, version: str) -> dict[str, Any]:
    """One episode as an ATIF trajectory, plain data for JSON.

    Steps are the system message (if there is one), the first observation as a user message, and one agent step per
    turn, which holds the observation that follows it. Rewards, success and advantages have no field in ATIF and are
    under `extra` of the steps and the root; values per token other than log-probabilities are under `metrics.extra`.
    Steps of a scripted policy have no tokens and metrics.
    """
    header = source.header
    absent = {"tasks", *(["evaluation"] if header.evaluation is None else [])}
    steps: list[dict[str, Any]] = []
    if episode.system is not None:
        steps.append({"source": "system", "message": episode.system})
    first = episode.turns[0].message if episode.turns else episode.unanswered
    steps.append({"source": "user", "message": first or ""})
    following = [*(turn.message for turn in episode.turns[1:]), episode.unanswered]
    steps += [_agent_step(turn, observed, source.scripted) for turn, observed in zip(episode.turns, following)]
    prompts = sum(len(turn.prompt_token_ids) for turn in episode.turns)
    sampled = sum(len(turn.token_ids) for turn in episode.turns)
    return {
        "schema_version": f"ATIF-v{version}",
        "session_id": source.run,
        "trajectory_id": f"{source.run}-{header.iteration:06d}-{episode.row:06d}",
        "agent": {
            "name": "agentrl_jax",
            "version": package_version("agentrl_jax"),
            "model_name": source.model,
            "extra": {"iteration": header.iteration, "temperature": source.temperature_of(episode)},
        },
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "final_metrics": {
            "total_prompt_tokens": prompts,
            "total_completion_tokens": sampled,
            "total_steps": len(steps),
        },
        "extra": {
            **{name: getattr(episode, name) for name in ("task", "group", "member", "row")},
            **{name: getattr(episode, name) for name in ("reward", "success", "failed", "truncation")},
            **episode.extra,
            **{name: value for name, value in dataclasses.asdict(header).items() if name not in absent},
        },
    }


def _agent_step(turn: Turn, observed: str | None, scripted: bool) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": turn.response, "extra": {**turn.extra, "ended": turn.ended}}
    if not scripted:
        step["llm_call_count"] = 1
        step["metrics"] = {
            "prompt_tokens": len(turn.prompt_token_ids),
            "completion_tokens": len(turn.token_ids),
            "prompt_token_ids": turn.prompt_token_ids,
            "completion_token_ids": turn.token_ids,
            "logprobs": turn.logprobs,
            "extra": turn.token_numbers,
        }
    return step if observed is None else step | {"observation": {"results": [{"content": observed}]}}
