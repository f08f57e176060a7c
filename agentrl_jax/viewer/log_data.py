"""What the page shows of a rollout log of another program, or of the evaluation of an API model.

That is messages by role, outcomes, returns and metadata.
"""

import collections
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from agentrl_jax.services.scenes import text_reader_of
from agentrl_jax.viewer.api_folder import FILES, is_api_folder, load_api_folder
from agentrl_jax.viewer.api_scenes import level_scenes
from agentrl_jax.viewer.columns import pack, quantize, smallest
from agentrl_jax.viewer.episodes import QUANTIZED, pack_scenes
from agentrl_jax.viewer.imported import ImportedEpisode, Scalar, load_imported
from agentrl_jax.viewer.log_files import find_files
from agentrl_jax.viewer.screenshots import PageScreenshots
from agentrl_jax.viewer.text_scenes import attempts_scenes, list_characters
from envs_jax.scenes import SPRITES, Scene

ROLES = ("system", "user", "assistant", "tool", "reasoning", "refusal")
"""Roles of messages; blocks hold their positions."""
OUTCOMES = ("solved", "unsolved", "unknown", "cut", "refused", "unfinished")
"""Outcomes of episodes; the column `outcome` holds their positions."""

_ITEM = re.compile(r"(?:lmrlgym_)?([a-z]+)_")
"""Begins the id of an item of AgentGym with the name of its environment."""

_OF_LOG = {
    "solved": "The log says that the task was solved.",
    "unsolved": "The log says that the task was not solved.",
    "unknown": "The log does not say whether the task was solved.",
}
_OF_API = {
    "solved": "The task was solved.",
    "unsolved": "All replies were carried out, and the task was not solved.",
    "cut": "The last reply was cut by a limit of tokens, and was not carried out.",
    "refused": "The model or its provider withheld the last reply.",
    "unfinished": "The episode has not ended: no further reply came, or the evaluation still goes on.",
}
"""Outcomes that episodes of each kind can have, and what the page says at their end."""
BLOCK_CHARACTERS = 2**20
"""A block ends with the episode with which it has this many characters; the page decodes the blocks that it shows."""

Progress = Callable[[str], None]
_Shown = tuple[ImportedEpisode, list[Scene]]


class LogData:
    """The data of the page of a log, or of the folder of an API model's evaluation."""

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        newest: int = 0,
        boards: bool = True,
        note: Progress = lambda line: None,
    ):
        """Names a log.

        Args:
            source: the file, or the folder of its files or of an API model's evaluation.
            newest: how many of the steps of a folder with steps are shown, counted from the newest; 0 for all.
            boards: draw boards, or what the texts say of the states.
            note: shows a line about the progress, and one for each of the first unusable episodes.
        """
        self.source, self.place = Path(source), str(source)
        self._newest, self._boards, self._note, self.of_api = newest, boards, note, is_api_folder(source)
        self.remedy = "evaluate fewer items in one folder" if self.of_api else "split the log"
        """What helps if the page would be too large."""
        self.levels: frozenset[tuple[str, str]] = frozenset()

    def stamp(self) -> str:
        """A text that changes when the log has new episodes or replies."""
        if self.of_api:
            files = [self.source / name for name in FILES]
        else:
            files = [file.path for file in find_files(self.source, newest=self._newest)]
        found = [(str(file), file.stat()) for file in files if file.exists()]
        return hashlib.sha256(json.dumps([[name, s.st_size, s.st_mtime_ns] for name, s in found]).encode()).hexdigest()

    def refresh(self) -> tuple[dict[str, Any], list[bytes]]:
        """Returns what the page's index says about the log, and the blocks: first of all rows, then of the episodes.

        Raises:
            UserError: the file is missing, too large, or has no episode that can be read.
        """
        self._note(f"reading {self.source}")
        if self.of_api:
            episodes, about, settings = load_api_folder(self.source, self._note)
        else:
            episodes, about, settings = load_imported(self.source, newest=self._newest, report=self._note), "", {}
        self._note(f"packing {len(episodes)} episodes")
        counts, blocks, drawn = [], [], False
        for part in _parts(self._with_scenes(episodes, settings)):
            counts.append(len(part))
            blocks.append(_pack(part))
            drawn |= any(scenes for _, scenes in part)
        entry = {
            "kind": "log",
            "name": self.source.resolve().name if self.source.is_dir() else self.source.name,
            "source": "api" if self.of_api else "log",
            "about": about,
            "outcomes": list(OUTCOMES),
            "ends": _OF_API if self.of_api else _OF_LOG,
            "logprobs": any("tokens" in m for episode in episodes for m in episode.messages),
            "drawn": drawn,
            "blocks": counts,
            "roles": list(ROLES),
            **_steps(episodes),
            "alarms": [],
            "sprites": SPRITES,
        }
        if entry["iterations"]:
            self.remedy = "show fewer steps with --newest"
        header = {
            "labels": [_label(number, e) for number, e in enumerate(episodes, start=1)],
            "names": [episode.name for episode in episodes],
            "levels": [e.level for e in episodes] if self.of_api else [],
            "task": episodes[0].task,
        }
        self.levels = frozenset((e.task, e.level) for e in episodes if e.level and e.outcome != "unfinished")
        return entry, [pack(header, _summary_columns(episodes)), *blocks]

    def _with_scenes(self, episodes: Sequence[ImportedEpisode], settings: Mapping[str, Any]) -> Iterable[_Shown]:
        """The episodes with their scenes, as far as there are any: boards, or what texts say."""
        if not self._boards:
            return ((episode, []) for episode in episodes)
        drawn = level_scenes(self.source, settings, episodes, self._note)
        if drawn is not None:
            return drawn
        screenshots = PageScreenshots(self.source, self._note) if self.of_api else None
        return ((episode, _scenes(episode, screenshots)) for episode in episodes)


def _steps(episodes: Sequence[ImportedEpisode]) -> dict[str, Any]:
    """The training steps of a log, which the page filters like the iterations of a run."""
    counts = collections.Counter(episode.step for episode in episodes if episode.step is not None)
    steps = [
        {"iteration": step, "label": f"step {step}", "recorded": count, "episodes": count}
        for step, count in sorted(counts.items())
    ]
    return {"iterations": steps, "recorded": f"{len(steps)} step{'' if len(steps) == 1 else 's'}"}


def _label(number: int, episode: ImportedEpisode) -> str:
    label = episode.label or f"episode {number}"
    return label if episode.step is None else f"step {episode.step} · {label}"


def _outcome(episode: ImportedEpisode) -> int:
    known = {None: "unknown", True: "solved", False: "unsolved"}[episode.success]
    return OUTCOMES.index(episode.outcome or known)


def _characters(episode: ImportedEpisode) -> int:
    return sum(len(message["content"]) for message in episode.messages)


def _parts(shown: Iterable[_Shown]) -> Iterator[list[_Shown]]:
    """Consecutive episodes that share a block, with their scenes."""
    part: list[_Shown] = []
    characters = 0
    for episode, scenes in shown:
        part.append((episode, scenes))
        # Metadata and messages without text take space, too.
        characters += _characters(episode) + 100 * (1 + len(episode.messages) + len(episode.metadata))
        characters += list_characters(scenes)
        if characters >= BLOCK_CHARACTERS:
            yield part
            part, characters = [], 0
    if part:
        yield part


def _summary_columns(episodes: Sequence[ImportedEpisode]) -> dict[str, np.ndarray]:
    """What lists and filters need to know about each episode. Returns are f32, NaN where they are unknown."""
    returns = np.asarray([np.nan if e.reward is None else e.reward for e in episodes], np.float64)
    largest = float(np.finfo(np.float32).max)
    steps = [e.step for e in episodes if e.step is not None]
    return {
        **({"iteration": np.asarray(steps, np.int32)} if steps else {}),
        "return": np.clip(returns, -largest, largest).astype(np.float32),
        "outcome": np.asarray([_outcome(e) for e in episodes], np.uint8),
        "turns": smallest(np.asarray([sum(m["role"] == "assistant" for m in e.messages) for e in episodes], np.int64)),
        "characters": np.asarray([_characters(e) for e in episodes], np.int32),
    }


def _pack(shown: Sequence[_Shown]) -> bytes:
    """Packs messages and metadata as numbers of distinct texts: logs repeat their prompts and keys."""
    episodes, scenes = zip(*shown)
    numbers: dict[str, int] = {}

    def numbered(texts: list[str]) -> np.ndarray:
        return smallest(np.asarray([numbers.setdefault(text, len(numbers)) for text in texts], np.int64))

    messages = [message for episode in episodes for message in episode.messages]
    tokens = [message.get("tokens", []) for message in messages]
    logprob = np.asarray([value for of_message in tokens for _, value in of_message], np.float32)
    table, indices = quantize(logprob, QUANTIZED["logprob"])
    entries = [entry for episode in episodes for entry in episode.metadata.items()]
    columns = {
        "message_count": smallest(np.asarray([len(e.messages) for e in episodes], np.int64)),
        "message_role": np.asarray([ROLES.index(message["role"]) for message in messages], np.uint8),
        "message_text": numbered([message["content"] for message in messages]),
        "message_note": numbered([message.get("note", "") for message in messages]),
        "token_count": smallest(np.asarray([len(of_message) for of_message in tokens], np.int64)),
        "token_text": numbered([text for of_message in tokens for text, _ in of_message]),
        "logprob_table": table,
        "logprob": indices,
        "metadata_count": smallest(np.asarray([len(e.metadata) for e in episodes], np.int64)),
        "metadata_key": numbered([key for key, _ in entries]),
        "metadata_value": numbered([_text(value) for _, value in entries]),
    }
    header: dict[str, Any] = {"texts": list(numbers)}
    if any(scenes):
        header["scenes"], scene_columns = pack_scenes(scenes)
        columns |= scene_columns
    return pack(header, columns)


def _scenes(episode: ImportedEpisode, screenshots: PageScreenshots | None) -> list[Scene]:
    """The scenes of an episode of a service, which the environment's name or the id of the item says."""
    item = episode.metadata.get("item_id")
    named = _ITEM.match(item) if isinstance(item, str) else None
    name = episode.task or (named[1] if named else "")
    if text_reader_of(name) is None:
        return []
    parts: list[list[str]] = [[]]
    responses, again = [], []
    for message in episode.messages:
        if message["role"] == "assistant":
            responses.append(message["content"])
            parts.append([])
        elif message["role"] in ("user", "tool"):
            parts[-1] += [message["content"]] if parts[-1] or message["content"] else []
        if message.get("again"):
            again.append(len(responses))
    texts = ["\n".join(part) for part in parts]
    scenes = attempts_scenes(name, texts if texts[-1] else texts[:-1], responses, again)
    if screenshots is None or again:
        return scenes
    item, sample = (episode.metadata.get(name) for name in ("item", "sample"))
    return screenshots.add(scenes, name, cast(int, sample), cast(int, item), responses)


def _text(value: Scalar) -> str:
    """Text as it is, other values as in JSON, which keeps the digits of numbers that the page could not hold."""
    return value if isinstance(value, str) else json.dumps(value)
