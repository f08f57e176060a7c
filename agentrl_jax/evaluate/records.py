"""Records: one JSON object for one agent on one panel, with the outcome of every episode.

Everything that a table shows is computed from the outcomes again, see `leaderboard`; means that a record stores are for
people who read the file.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentrl_jax.config import Config
from agentrl_jax.errors import BadValue, shortened
from agentrl_jax.evaluate.panels import Panel, get_panel
from agentrl_jax.io import atomic_write, read_regular
from agentrl_jax.models.actor_critic import policy_decoder
from agentrl_jax.runs.provenance import code
from agentrl_jax.services.catalog import success_rule
from agentrl_jax.setup.policy import RunPolicy
from agentrl_jax.strict_json import parse_object

VERSION = 1
MAX_BYTES = 64 << 20
"""Largest size of a record that is read."""

_Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
_Shares = Annotated[list[_Share], Field(min_length=1)]
_Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_Finite = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PanelId(_Part):
    """The panel, and the digest that it had."""

    name: str
    sha256: _Digest


class Agent(_Part):
    """Who played: a checkpoint of a run, a scripted policy, or a model behind an API."""

    kind: Literal["run", "scripted", "api"]
    name: str
    iteration: int | None = None
    step: int | None = None
    parameters_sha256: _Digest | None = None
    """Of the policy's parameters, without those of a critic."""
    model: dict[str, int | str] | None = None


class Code(_Part):
    """The code that played; None where unknown."""

    version: str | None
    commit: str | None
    """As git describes the checkout of the package."""


class Decoding(_Part):
    """How the agent played; the limits are of one episode. None where it does not apply."""

    samples: Annotated[int, Field(ge=1)]
    """Sampled episodes on each level."""
    turns: int | None
    actions: int
    actions_per_turn: int | None
    seed: int
    temperature: float | None = None
    response_tokens: int | None = None
    context: str | None = None
    think: bool | None = None
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Of the environment as it was played."""


class Unanswered(_Part):
    """Numbers of the episodes of an API model that ended without a reply that could be carried out."""

    length: Annotated[int, Field(ge=0)]
    """It was cut by a limit of tokens."""
    refusal: Annotated[int, Field(ge=0)]
    """It was withheld by the model or its provider."""
    failed: Annotated[int, Field(ge=0)] = 0
    """The server refused the conversation, and why is not known; older records have none."""


class Outcomes(_Part):
    """Successes on each level, in the order of the panel."""

    samples: Annotated[list[Annotated[list[_Share | None], Field(min_length=1)]], Field(min_length=1)]
    """0 or 1 for each sampled episode; or one number, the probability of success, if `exact`. None for an episode of an
    API model that was not answered, see `unanswered`."""
    exact: bool = False
    unanswered: Unanswered | None = None
    """None where every episode was answered."""
    greedy: _Shares | None = None
    random: _Shares | None = None
    null: _Shares | None = None
    optimal: _Shares | None = None
    """Success of reference policies within the agent's limits."""
    categories: list[str] | None = None
    """Category of each level, if there are several."""


class Seen(_Part):
    """What is known of levels learned from, see `seen.seen_levels`."""

    held_out: bool | str
    levels: int
    distinct_levels: int
    seen_levels: int | None
    seen_images: int | None = None


class Record(_Part):
    """One agent on one panel."""

    version: Literal[1]
    panel: PanelId
    agent: Agent
    success_rule: str | None = None
    """When an episode counts as solved, in words; older records have none."""
    code: Code
    decoding: Decoding
    outcomes: Outcomes
    optimal_is: str | None
    """What the optimal policy is, see `envs_jax.budget.Baselines`."""
    mean_turns: _Finite | None
    """Mean number of turns of a sampled episode, of an answered one of an API model."""
    mean_tokens: _Finite | None
    """Mean number of sampled tokens of a sampled episode."""
    baseline_turns: dict[str, _Finite] = Field(default_factory=dict)
    """Mean numbers of turns of reference policies within the agent's limits, by the names of their outcomes, as far as
    known; older records have none."""
    seen: Seen | None
    results: dict[str, Any]
    """Success with its interval, and what else was computed when the record was made."""

    @model_validator(mode="after")
    def _exact_is_scripted(self) -> "Record":
        """Other agents' probabilities are not known, and a number between 0 and 1 is no outcome of theirs."""
        if self.outcomes.exact and self.agent.kind != "scripted":
            raise BadValue(
                f"outcomes are exact, which they may be only for agents of kind scripted, not {self.agent.kind}",
                key="outcomes",
                value=self.agent.kind,
            )
        return self

    @model_validator(mode="after")
    def _episodes_without_outcome(self) -> "Record":
        """Only an API model can leave an episode without an outcome, and says of how many and why."""
        missing = sum(outcome is None for row in self.outcomes.samples for outcome in row)
        known = self.outcomes.unanswered
        counted = 0 if known is None else sum(known.model_dump().values())
        if missing and self.agent.kind != "api":
            raise BadValue(
                f"{missing} outcomes are null, which they may be only for agents of kind api",
                key="outcomes",
                value=missing,
            )
        if missing != counted:
            raise BadValue(
                f"{missing} outcomes are null, but {counted} are counted as cut, refused or failed",
                key="outcomes",
                value=missing,
            )
        return self


def of_result(result: Mapping[str, Any]) -> Record:
    """The record of what `evaluate_run`, `scripted.evaluate_on_panel` or `on_panel.record_parts` returned."""
    outcomes = result["outcomes"]
    samples = [[None if x is None else float(x) for x in row] for row in outcomes["samples"]]
    named = {name: outcomes.get(name) for name in ("random", "null", "optimal", "categories", "unanswered")}
    greedy = outcomes.get("success_greedy")
    computed = (
        *("success", "success_answered", "success_greedy", "strict_success", "strict_success_greedy"),
        *("score", "return", "random", "null", "optimal"),
        *("pass_at", "pass_all", "best_of", "gap_closed", "categories"),
    )
    return Record.model_validate(
        {
            "version": VERSION,
            "outcomes": {"samples": samples, "exact": outcomes.get("exact", False), "greedy": greedy, **named},
            **{name: result[name] for name in ("panel", "agent", "decoding")},
            "success_rule": success_rule(get_panel(result["panel"]["name"]).env),
            "code": code(),
            **{name: result.get(name) for name in ("optimal_is", "mean_turns", "mean_tokens", "seen")},
            "baseline_turns": result.get("baseline_turns", {}),
            "results": {name: result[name] for name in computed if name in result},
        }
    )


def write_record(record: Record, path: str) -> None:
    """Writes a record atomically; an `OSError` names the file."""
    with atomic_write(path) as file:
        file.write(record.model_dump_json() + "\n")


def read_record(path: Path) -> Record:
    """Reads a record.

    Raises:
        ValueError: the file is too large, cannot be read, or is no record.
    """
    try:
        content = read_regular(path, MAX_BYTES + 1)
    except OSError as error:
        raise BadValue.at(path, f"cannot be read ({error.strerror})") from error
    if content is None:
        raise BadValue.at(path, "is no file; expected a record of `agentrl eval --panel`")
    if len(content) > MAX_BYTES:
        raise BadValue.at(path, f"larger than {MAX_BYTES >> 20} MiB; expected a record of `agentrl eval --panel`")
    try:
        return Record.model_validate(parse_object(content, str(path)))
    except ValidationError as error:
        first = error.errors()[0]
        where = shortened(".".join(map(str, first["loc"]))) or "record"
        raise BadValue.at(
            path, f"{where}: {first['msg']}; expected a record of `agentrl eval --panel`", where
        ) from error


def of_run(run: str, policy: RunPolicy, config: Config, temperature: float, samples: int) -> dict[str, Any]:
    """The parts `agent` and `decoding` of a run's record; `config` has the task that is played."""
    shape, prompt = policy.model.decoder, config.prompt
    parameters = policy_decoder(policy.params, policy.model)
    model = {
        "pretrained": config.model.pretrained,
        "layers": shape.num_layers,
        "embed_dim": shape.embed_dim,
        "heads": shape.num_heads,
        "kv_heads": shape.num_kv_heads,
        "mlp_width": shape.mlp_width,
        "vocab_size": shape.vocab_size,
        "dtype": shape.dtype,
        "parameters": sum(x.size for x in jax.tree.leaves(parameters)),
    }
    agent = {
        "kind": "run",
        "name": Path(run).resolve().name,
        "iteration": policy.iteration,
        "step": policy.step,
        "parameters_sha256": parameters_digest(parameters),
        "model": model,
    }
    decoding = {
        "temperature": temperature,
        "samples": samples,
        "seed": config.evaluation.seed,
        "turns": prompt.max_turns,
        "actions": prompt.max_actions if config.prompt.has_answer_block else prompt.max_turns,
        "actions_per_turn": prompt.max_actions_per_turn if config.prompt.has_answer_block else 1,
        "response_tokens": prompt.max_response_tokens,
        "context": config.agent.label,
        "think": prompt.think,
        "options": dict(config.tasks[0].options),
    }
    return {"agent": agent, "decoding": decoding}


def parameters_digest(parameters: Any) -> str:
    """SHA-256 of the names, dtypes, shapes and bytes of all arrays of a tree, in the order of their names."""
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(parameters)}
    found = hashlib.sha256()
    for name, leaf in sorted(leaves.items()):
        array = np.asarray(leaf)
        found.update(f"{name} {array.dtype} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def of_scripted(policy: str, panel: Panel, samples: int, seed: int) -> dict[str, Any]:
    """The parts `agent` and `decoding` of a scripted policy's record, which takes one action a turn."""
    decoding = {
        "samples": samples,
        "seed": seed,
        "turns": panel.max_actions,
        "actions": panel.max_actions,
        "actions_per_turn": 1,
        "options": dict(panel.options),
    }
    return {"agent": {"kind": "scripted", "name": policy}, "decoding": decoding}
