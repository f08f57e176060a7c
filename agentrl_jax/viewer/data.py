"""What the page shows of a run: its metrics and alarms, and its recorded rollouts in packed blocks."""

import contextlib
import dataclasses
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.algos.collapse import ALARMS
from agentrl_jax.environments.kinds import kind_of
from agentrl_jax.errors import UserError, refusals, shortened
from agentrl_jax.rollout.trajectory import TRUNCATIONS
from agentrl_jax.runs.records import read_rows, to_plain
from agentrl_jax.runs.rollout_records import RolloutRecord, read_record, record_path, recorded_iterations
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.setup import build_model
from agentrl_jax.setup.level_files import make_env
from agentrl_jax.setup.stored_traits import stored_traits
from agentrl_jax.viewer import scenes
from agentrl_jax.viewer.columns import pack
from agentrl_jax.viewer.episodes import Scenes, pack_episodes, summary_columns
from agentrl_jax.viewer.imported import to_float
from agentrl_jax.viewer.pieces import Pieces
from agentrl_jax.viewer.replay_notes import replay_notes
from agentrl_jax.viewer.screenshots import PageScreenshots
from agentrl_jax.viewer.text_scenes import served_scenes

METRICS = {
    "train/success": "success in training",
    "validation/success": "success in validation",
    "train/return": "return with penalties",
    "train/raw_return": "return",
    "rollout/in_group_std": "in-group std of returns",
    "actor/entropy": "entropy (nats per token)",
    "actor/grad_norm": "gradient norm",
    "actor/kl": "divergence from the reference (nats per token)",
    "train/response_tokens": "response tokens per turn",
    "train/turns": "turns per episode",
    "train/valid_format": "share of turns with valid format",
    "rollout/logprob_gap_mean": "mean log-prob gap (nats)",
}
"""Metrics of metrics.jsonl that the page plots, with their names there."""

NO_LOGPROBS = (
    "A scripted policy samples no tokens: it has no log-probabilities, entropies and advantages, and its actions are "
    "written with the small tokenizer of the package."
)
"""What the page says instead of the numbers of tokens."""

_LINES = ("random", "optimal")
_SHOWN = 5
"""Damaged files that are named on the page."""

Progress = Callable[[str], None]
_Key = tuple[int, int, int]
"""Number, time and size of a recorded iteration."""


class RunData:
    """The data of a run's page. Blocks are kept, so that `refresh` packs only iterations that are new.

    Raises:
        UserError: the folder holds no run, or its tokenizer cannot be used.
    """

    remedy = "show fewer iterations with --newest"
    """What helps if the page would be too large."""

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        place: str = "",
        newest: int = 0,
        boards: bool = True,
        note: Progress = lambda line: None,
    ):
        """Opens the folder of a run.

        Args:
            run: folder of the run.
            place: address of the run in an object store, if the folder is a copy of it.
            newest: how many of the recorded iterations are shown, counted from the newest; 0 for all.
            boards: compute the states of the episodes again and draw them.
            note: shows a line about the progress.
        """
        self.place = place or str(run)
        self.source, self._newest, self._boards, self._note = Path(run), newest, boards, note
        self._config = read_config(run)
        with refusals(self.place):
            model = self._config.model
            self._tokenizer = build_model.load_tokenizer(model, build_model.load_model(model, weights=False))
        url = self._config.env.url
        # By themselves, those that were played as services in this process are what they are elsewhere, too.
        kinds = [kind_of(task.env, "" if url == "local" else url) for task in self._config.tasks]
        # Before a board is drawn, so that an environment that cannot be made is reported once.
        self._actions = {
            task.label: list(make_env(task)[0].actions)
            for task, kind in zip(self._config.tasks, kinds)
            if not (kind.on_host or kind.stored)
        }
        if any(kind.stored for kind in kinds):
            self._actions |= {label: list(x.actions) or ["action"] for label, x in stored_traits(self.source).items()}
        self._pieces = Pieces(self._tokenizer)
        self._screenshots = PageScreenshots(run, note)
        self._packed: dict[_Key, tuple[dict[str, Any], dict[str, np.ndarray], bytes]] = {}
        self._damaged: dict[_Key, UserError] = {}
        self.levels: frozenset[tuple[str, str]] = frozenset()

    def stamp(self) -> str:
        """A text that changes when the run has new metrics or rollouts."""
        metrics = self.source / "metrics.jsonl"
        size = metrics.stat().st_size if metrics.exists() else 0
        return json.dumps([size, self._keys()])

    def refresh(self) -> tuple[dict[str, Any], list[bytes]]:
        """Returns what the page's index says about the run, and the blocks: first of all rows, then per iteration.

        Iterations whose file is damaged are left out.

        Raises:
            UserError: the run has no recorded rollout, or all files are damaged.
        """
        keys = self._keys()
        if not keys:
            raise UserError.at(
                self.place,
                "has no recorded rollouts; train it with train.trajectories_every above 0, or wait for the first "
                "recorded iteration",
            )
        for number, key in enumerate(keys, start=1):
            if key not in self._packed and key not in self._damaged:
                try:
                    self._packed[key] = self._pack(key[0])
                    self._note(f"{self._packed[key][0]['label']} ({number} of {len(keys)})")
                except UserError as error:
                    self._damaged[key] = error
                    self._note(f"{error}; left out")
        self._packed = {key: self._packed[key] for key in keys if key in self._packed}
        self._damaged = {key: self._damaged[key] for key in keys if key in self._damaged}
        if not self._packed:
            raise next(iter(self._damaged.values()))
        headers, rows, blocks = zip(*self._packed.values())
        columns = {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}
        self.levels = _levels(columns, headers[-1]["tasks"])
        return self._index(headers), [pack({}, columns), *blocks]

    def _keys(self) -> list[_Key]:
        """The recorded iterations; a roll-back writes an iteration again."""
        keys = []
        for iteration in recorded_iterations(self.source)[-self._newest :]:
            with contextlib.suppress(FileNotFoundError):  # the run deletes its oldest files
                found = record_path(self.source, iteration).stat()
                keys.append((iteration, found.st_mtime_ns, found.st_size))
        return keys

    def _pack(self, iteration: int) -> tuple[dict[str, Any], dict[str, np.ndarray], bytes]:
        record = read_record(record_path(self.source, iteration))
        evaluation = record.header.evaluation
        header = {
            "iteration": record.header.iteration,
            "label": record.header.label,
            "evaluation": None if evaluation is None else dataclasses.asdict(evaluation),
            "step": record.header.step,
            "roll_backs": record.header.roll_backs,
            "recorded": len(record.task),
            "episodes": record.header.episodes,
            "group_size": record.header.group_size,
            "horizon": record.header.horizon,
            "temperature": record.header.temperature,
            "tasks": list(record.header.tasks),
        }
        drawn = self._scenes(record) if self._boards else None
        return header, summary_columns(record), pack_episodes(record, self._pieces, drawn)

    def _scenes(self, record: RolloutRecord) -> Scenes | None:
        """The scenes of a record; None where there are none. Boards are an extra: what stops them is only noted."""
        try:
            drawn = scenes.run_scenes(self.source, self._config, record, self._note)
        except UserError as error:
            self._note(f"no boards: {error}")
            return None
        if drawn is not None and not self._config.prompt.has_answer_block:
            return drawn
        read = served_scenes(self._config, record, self._tokenizer, self._screenshots)
        if drawn is None or read is None:
            return drawn if read is None else read
        return [of_text or of_boards for of_text, of_boards in zip(read, drawn)]

    def _index(self, headers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        rows = [row for _, row in read_rows(self.source / "metrics.jsonl").rows if row["stage"] == "rl"]
        lines, flaw = _baselines(self.source)
        flaws = [flaw] if flaw else []
        stage = self._of_stage(headers)
        replays = [""] * len(headers)
        if stage["replay"]:
            replays, flaw = replay_notes(self.source, self.place, headers)
            flaws += [flaw] if flaw else []
        for flaw in flaws:
            self._note(flaw)
        return {
            "kind": "run",
            "name": Path(self.place).resolve().name,
            **stage,
            "tasks": headers[-1]["tasks"],
            "actions": self._action_names(headers[-1]),
            "truncations": list(TRUNCATIONS),
            "iterations": [{**header, "replay_note": note} for header, note in zip(headers, replays)],
            "trend": {
                "iteration": [row["iteration"] for row in rows],
                "metrics": [
                    {"metric": metric, "name": name, "values": to_plain([to_float(row.get(metric)) for row in rows])}
                    for metric, name in METRICS.items()
                    if any(to_float(row.get(metric)) is not None for row in rows)
                ],
            },
            "lines": lines,
            "notes": [*self._left_out(), *flaws],
            "alarms": _alarms(rows),
            "pieces": self._pieces.table(),
            "sprites": scenes.SPRITES,
        }

    def _left_out(self) -> list[str]:
        if not self._damaged:
            return []
        names = [record_path(self.source, iteration).name for iteration, _, _ in self._damaged]
        shown = ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])
        return [f"Left out because the file cannot be read: {_counted(len(names), 'recorded iteration')} ({shown})."]

    def _action_names(self, header: dict[str, Any]) -> dict[str, list[str]]:
        """The names of actions by the label of the task; a response to a service is one action without a name."""
        # Actions of scripted policies on a service in their own process have the environment's own numbers.
        named = self._config.prompt.has_answer_block or (header["evaluation"] or {}).get("policy") is not None
        known = self._actions if named else {}
        return {task.label: known.get(task.label, ["action"]) for task in self._config.tasks}

    def _of_stage(self, headers: Sequence[dict[str, Any]]) -> dict[str, str]:
        """What the page says of rollouts in training, or of the episodes of an evaluation, which have no replay."""
        evaluation = headers[-1]["evaluation"]
        if evaluation is None:
            recorded, replay = (
                _counted(len(headers), "recorded iteration"),
                f"agentrl replay {shlex.quote(self.place)}",
            )
            return {"stage": "training", "recorded": recorded, "about": "", "replay": replay, "policy": ""}
        panel = f" on {evaluation['panel']}" if evaluation["panel"] else ""
        if policy := evaluation["policy"]:
            about = f"Evaluation of the scripted policy {policy}{panel}. {NO_LOGPROBS}"
            plays = _counted(len(headers), "play")
            return {"stage": "evaluation", "recorded": plays, "about": about, "replay": "", "policy": policy}
        samples = sum(header["evaluation"]["sample"] is not None for header in headers)
        parts = [
            *(["greedy play"] if samples < len(headers) else []),
            *([_counted(samples, "sample")] if samples else []),
        ]
        tries = f", with up to {evaluation['attempts']} attempts at a level" if evaluation["attempts"] > 1 else ""
        about = f"Evaluation of {evaluation['run']}, iteration {evaluation['iteration']}{panel}{tries}."
        return {"stage": "evaluation", "recorded": " and ".join(parts), "about": about, "replay": "", "policy": ""}


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _alarms(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The alarms that were raised, with the iterations in which they were."""
    raised = {a: [row["iteration"] for row in rows if row.get(f"alarm/{a.name}")] for a in ALARMS}
    return [
        {"name": alarm.name, "about": alarm.about, "collapse": alarm.collapse, "iterations": iterations}
        for alarm, iterations in raised.items()
        if iterations
    ]


def _levels(columns: Mapping[str, np.ndarray], tasks: Sequence[str]) -> frozenset[tuple[str, str]]:
    """Task and level, 16 hexadecimal digits, of all episodes that count in a comparison."""
    high, low = columns["level_high"], columns["level_low"]
    counts = ~columns["failed"] & ((high > 0) | (low > 0))
    numbers = np.unique(np.stack([columns["task"][counts], high[counts], low[counts]], 1).astype(np.int64), axis=0)
    return frozenset((tasks[task], f"{first:08x}{second:08x}") for task, first, second in numbers.tolist())


def _baselines(run: Path) -> tuple[list[dict[str, Any]], str]:
    """Success rates of random and optimal play with their intervals, from the summary of a finished run.

    Also why there are none although there is a summary; empty if it can be read.
    """
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return [], ""
    except (ValueError, OSError) as error:
        why = shortened(error)
        return [], f"summary.json cannot be read ({why}); the lines of random and optimal play are left out."
    success = summary.get("success") if isinstance(summary, dict) else None
    lines = []
    for name in _LINES:
        line = success.get(name) if isinstance(success, dict) else None
        if isinstance(line, dict) and to_float(line.get("mean")) is not None:
            known = {key: to_float(line.get(key)) for key in ("mean", "low", "high")}
            about = summary.get("optimal_is", "") if name == "optimal" else ""
            lines.append(to_plain({"name": name, "about": str(about), **known}))
    return lines, ""
