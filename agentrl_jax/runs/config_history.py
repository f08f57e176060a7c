"""Which settings of a run may change while it goes on, and what each was at every step.

config.history.jsonl has a row for each command that changed some: `step` of the checkpoint where the run went on, and
`changed`, the old and the new value by key, as JSON. The rows after that step were computed with the new values, and
are again with these when the run resumes from an earlier checkpoint, or a rollout is replayed.
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_jax.config import Config, decode, differences, to_dict
from agentrl_jax.config.algo import AlgoConfig
from agentrl_jax.config.fields import TRACED
from agentrl_jax.config.keys import FILLED, sections_of, takes_own
from agentrl_jax.config.migrations import FORMAT, by_key, migrated, scheduled_rates
from agentrl_jax.config.optim import Optim
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.io import atomic_write
from agentrl_jax.strict_json import parse_object

HISTORY = "config.history.jsonl"
_FREE = (
    "iterations checkpoint_every keep keep_every validate_every trajectories_every trajectories recorded_mb "
    "max_bad_updates on_collapse max_roll_backs loggers"
)
_SERVICES = "url token_file deadline workers processes retries max_failed"
ROUNDING = frozenset(f"mesh.{name}" for name in ("fsdp", "sequence", "tensor", "rollout")) | {
    "devices",
    "algo.grad_accum_steps",
    "algo.length_buckets",
    "model.attention",
    "model.remat",
    "optim.offload",
    "rollout.slots",
}
"""Keys of the devices, their mesh and how they divide the work, on which only the rounding depends."""
MAY_CHANGE = (
    frozenset(f"train.{name}" for name in _FREE.split())
    | frozenset(f"env.{name}" for name in _SERVICES.split())
    | ROUNDING
    | {
        "algo.distillation.accept_weak_teacher",
        "train.stop.at",
        "train.stop.alpha",
        "train.stop.patience",
        "train.metrics",
        "train.best.evaluate",
    }
)
"""Keys that may change when a run is resumed or has ended, since no computed number depends on them. `evaluation` is
not among them, because the initial policy was evaluated with it and is compared with the final one. Neither are
`validation_temperature` and `validation_episodes`, because validations are compared with earlier ones."""

_SCHEDULES, _RATES = "algo.schedules", "optim.schedule"
_SECTIONS = {f"algo.{name}": field.annotation for name, field in AlgoConfig.model_fields.items()}
FROM_NOW_ON = frozenset(
    ["optim.warmup", "optim.warmup_share", _RATES, "train.critic_warmup"]
    + ["algo.entropy_coef", "algo.entropy_step", "rollout.temperature", _SCHEDULES]
    + [
        f"{key}.{traced}"
        for key, kind in {**_SECTIONS, "optim": Optim}.items()
        for part in sections_of(kind)
        for traced, number in part.model_fields.items()
        if TRACED in number.metadata
    ]
)
"""Keys that may change on request: numbers that compiled programs take as arguments, and how they change over the
iterations. A schedule is always that of the whole run: after a change, iteration i has the value that it would have had
with the new settings from the start. `prompt.format_penalty` and `algo.overlong_penalty` are not among them, because
the returns of validations, which are compared with earlier ones, depend on them."""


def changed_keys(stored: Config, config: Config) -> list[str]:
    """Dotted keys in which two configurations of a run differ, its folder aside.

    Schedules are one key, loggers are, and the section of a rule of the user whose code has changed.
    """
    keys = [key for key in differences(stored, config) if key != "run_dir"]
    changed = [key.removesuffix(_SOURCE) for key in keys if key.endswith(_SOURCE)]
    wholes = {_SCHEDULES: _SCHEDULES, _RATES: _RATES, "train.loggers": "train.loggers"}
    if not any(key.startswith("train.metrics.") for key in changed):
        wholes["train.metrics."] = "train.metrics"
    wholes |= {f"{section}.{name}": section for section in changed for name in FILLED}
    return [*dict.fromkeys(next((wholes[each] for each in wholes if key.startswith(each)), key) for key in keys)]


_SOURCE = ".source"
_OF_RULES = tuple(key for key, kind in _SECTIONS.items() if takes_own(kind))
_OWN = (*_OF_RULES, "optim")
"""Sections that may be rules of the user; those before have numbers that programs take as arguments."""


_TERM = re.compile(r"algo\.advantage\.terms\.\d+\.rule\b")


def _from_now_on(key: str) -> bool:
    """Whether a key may change on request, as those of a term of a sum may, and numbers of a rule of the user."""
    key, terms = _TERM.subn("algo.advantage", key)
    weight = not terms and re.fullmatch(r"algo\.advantage\.terms\.\d+\.weight", key)
    return bool(weight) or key in FROM_NOW_ON or key.startswith(tuple(f"{section}.numbers." for section in _OF_RULES))


def _is_rule(key: str) -> bool:
    """Whether a key is a section that may be a rule of the user."""
    below = key.startswith(("algo.rewards.", "train.metrics.")) and key.count(".") == 2
    return key in _OWN or below or bool(_TERM.fullmatch(key))


def check_changes(
    folder: Path,
    keys: Sequence[str],
    stored: Config,
    config: Config,
    done: int,
    *,
    accept: bool,
    rules_changed: bool = False,
) -> None:
    """Refuses changes of a run that has done `done` iterations; `accept` is the request to change what may be changed.

    `rules_changed` is the request to go on with other code of the user's rules.

    Raises:
        UserError: a key is none that may change, or may only on request.
    """
    old, new = to_dict(stored), to_dict(config)
    reason = _why_refused([key for key in keys if not (rules_changed and _is_rule(key))], stored, config, done, accept)
    if not reason:
        return
    shown = ", ".join(f"{key} ({value_at(old, key)} there, {value_at(new, key)} now)" for key in keys[:8])
    more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
    raise UserError.at(
        folder,
        f"holds a run with another configuration; these keys differ: {shown}{more}; {reason}",
        shown,
    )


def _why_refused(keys: Sequence[str], stored: Config, config: Config, done: int, accept: bool) -> str:
    other = "give another folder with --run_dir, or delete this one"
    fixed = [key for key in keys if key not in MAY_CHANGE and not _from_now_on(key)]
    if fixed and _is_rule(fixed[0]):
        return f"the code of {fixed[0]} has changed; add --rules_changed to go on with it from here on, or {other}"
    if fixed:
        return f"{fixed[0]} decides what has been done already; {other}"
    moved = [key for key in keys if key in ROUNDING]
    if moved and config.algo.dynamic_sampling > 1:
        return f"with algo.dynamic_sampling, {moved[0]} decides which groups are kept; {other}"
    if "train.iterations" in keys and config.train.iterations < done:
        return f"{done} iterations have been done; {other}"
    if accept:
        return ""
    later = [key for key in keys if _from_now_on(key)]
    if "train.iterations" in keys and any(_ends_with_run(each) for each in (stored, config)):
        later.append("train.iterations")
    if not later:
        return ""
    why = f"{later[0]} decides what has been done already"
    if later == ["train.iterations"]:
        why = "the learning rates depend on train.iterations (optim.schedule, optim.warmup_share)"
    return f"{why}; add --accept_changes to go on with the new value from here on, or {other}"


def _ends_with_run(config: Config) -> bool:
    """Whether learning rates depend on the number of iterations."""
    optim, schedule = config.optim, config.optim.schedule
    return bool(optim.warmup_share) or (schedule.kind != "constant" and not schedule.iterations)


def record_changes(folder: Path, step: int, keys: Sequence[str], stored: Config, config: Config) -> None:
    """Adds a row to the history, atomically; the run goes on from the checkpoint of `step`."""
    old, new = to_dict(stored), to_dict(config)
    change = {
        "step": step,
        "format": FORMAT,
        "changed": {key: [value_at(old, key), value_at(new, key)] for key in keys},
    }
    file = folder / HISTORY
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    with atomic_write(file) as stream:
        stream.write(before + json.dumps(change) + "\n")


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The rows of the history of a run; none if nothing was changed.

    Raises:
        UserError: a row cannot be read.
    """
    file, rows = folder / HISTORY, []
    lines = file.read_bytes().splitlines() if file.exists() else []
    for number, line in enumerate(lines, 1):
        with refusals():
            row = parse_object(line, f"{file}, line {number}")
        if not isinstance(row.get("step"), int) or not isinstance(row.get("changed"), dict):
            raise UserError.at(file, f"line {number} is no change of a run; restore the file", number)
        rows.append(row)
    return rows


_COUNTS = ROUNDING | {"train.iterations"}
"""Keys on whose earlier values computed numbers depend, beside those that change on request and rules of the user."""


class ConfigHistory:
    """The configuration of a run at each step: a function of its present one, `config`, and of the rows before."""

    def __init__(self, config: Config, rows: Sequence[Mapping[str, Any]] = ()):
        """Takes rows as of `read_history`, in which only what computed numbers depend on counts."""
        self.config, self._rows = config, rows
        self._known: dict[tuple[bool, ...], Config] = {}

    def at(self, step: int) -> Config:
        """The configuration with which the row `step` of metrics.jsonl is computed.

        Raises:
            UserError: a stored value is none of its key.
        """
        passed = tuple(step > row["step"] for row in self._rows)
        if passed not in self._known:
            self._known[passed] = self._changed(passed) if self._rows else self.config
        return self._known[passed]

    def _changed(self, passed: Sequence[bool]) -> Config:
        values: dict[str, str] = {}
        for row, is_passed in zip(self._rows, passed):
            for key, (old, new) in row["changed"].items():
                if not (key in _COUNTS or _from_now_on(key) or _is_rule(key)):
                    continue
                if is_passed:
                    values[key] = new
                else:
                    values.setdefault(key, old)
        data = to_dict(self.config)
        for key, text in values.items():
            *above, name = key.split(".")
            value = json.loads(text)
            older = {_SCHEDULES: by_key, _RATES: scheduled_rates}
            functools.reduce(_item, above, data)[name] = older.get(key, lambda x: x)(value)
        return decode(data, source=HISTORY)


def _item(tree: Any, name: str) -> Any:
    return tree[int(name)] if isinstance(tree, list) else tree[name]


def edited_keys(stored: Mapping[str, Any] | None, config: Config) -> Iterator[tuple[str, str, str]]:
    """Keys whose values are others than in the record of a checkpoint, with both values as JSON.

    `stored` is what `to_record` returned, None in checkpoints of earlier versions; `config` is the configuration at the
    checkpoint's step. Keys that may always change are left out. Raises LookupError, TypeError, ValueError or
    AttributeError if `stored` is no such record.
    """
    if stored is None or stored["format"] > FORMAT:
        return
    before = decode(migrated(stored["keys"], stored["format"]), source="the configuration of a checkpoint")
    old, new = to_dict(before), to_dict(config)
    for key in changed_keys(before, config):
        if key not in MAY_CHANGE and not key.startswith("hosts."):
            yield key, value_at(old, key), value_at(new, key)


def to_record(config: Config) -> dict[str, Any]:
    """What a checkpoint stores of the configuration that it was computed with."""
    return {"format": FORMAT, "keys": to_dict(config)}


def value_at(tree: Any, key: str) -> str:
    """The value at a dotted key of nested mappings and lists, as JSON, or `absent`."""
    for name in key.split("."):
        if isinstance(tree, list):
            tree = {str(index): entry for index, entry in enumerate(tree)}
        if not isinstance(tree, dict) or name not in tree:
            return "absent"
        tree = tree[name]
    return json.dumps(tree)
