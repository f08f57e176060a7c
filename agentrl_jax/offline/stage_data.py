"""The data of a stage: read, made into rows of tokens, and divided into what is learned from and what is measured."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Set
from typing import Any

import numpy as np
from jaxtyping import Int

from agentrl_jax.config import Config
from agentrl_jax.config.stages import DataStage, DpoStage, SftStage
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.formats.dialogs import message_format
from agentrl_jax.learner.supervised import LEAST_BIN
from agentrl_jax.offline.conversations import Conversation, PreferencePair
from agentrl_jax.offline.order import Order
from agentrl_jax.offline.read import read_data, read_pairs
from agentrl_jax.offline.rows import Row, RowFormat, TokenRows, examples, pack
from agentrl_jax.text.styles import get_style
from agentrl_jax.text.tokenizer import Tokenizer

HELD_OUT, VALIDATION = "on a level of the evaluation", "kept for validation"


@dataclasses.dataclass(frozen=True)
class StageData:
    """The rows of a stage.

    Attributes:
        rows: the rows to learn from, those of a pair next to each other: the chosen one first.
        units: the numbers of the rows of each unit of learning: a row, a bin of rows, or a pair.
        measured: rows of the conversations that are not learned from.
        contents: content of every conversation that is learned from, without repetitions.
        counts: what was left out, by the reason.
        sha256: digest of the data.
        packed: units are bins.
        pairs: units are pairs.
    """

    rows: TokenRows
    units: list[list[int]]
    measured: TokenRows
    contents: list[str]
    counts: Counter[str]
    sha256: str
    packed: bool
    pairs: bool = False

    @functools.cached_property
    def size(self) -> int:
        """Tokens of the longest row or bin."""
        longest = max(self.rows.lengths.max(), self.measured.lengths.max(initial=0))
        return _rounded(max(longest, LEAST_BIN) if self.packed else longest)

    @functools.cached_property
    def width(self) -> int:
        """Most trained tokens of a row or bin."""
        of_units = max(int(self.rows.counts[unit].sum()) for unit in self.units) if self.packed else 0
        return _rounded(max(of_units, self.rows.counts.max(), self.measured.counts.max(initial=0)))

    def regrouped(self) -> "StageData":
        """The same data with a unit for each row, or with bins of them."""
        units = [[row] for row in range(len(self.rows))]
        if self.packed:
            units = pack(self.rows.lengths, max(int(self.rows.lengths.max()), LEAST_BIN))
        return dataclasses.replace(self, units=units)

    def order(self, stage: DataStage, seed: int) -> Order:
        """The order of the units; a step has about `stage.batch` rows where they are packed."""
        batch = max(1, round(stage.batch * len(self.units) / len(self.rows))) if self.packed else stage.batch
        return Order(len(self.units), min(batch, len(self.units)), stage.epochs, stage.steps, seed)

    def batches(self, numbers: list[Int[np.ndarray, " n"]], batch: int) -> Any:
        """The units of steps as `Examples`, `batch` units a step; missing ones are rows of zeros."""
        bins: list[list[int]] = []
        for of_step in numbers:
            chosen = [self.units[number] for number in of_step] + [[]] * (batch - len(of_step))
            bins += [part for unit in chosen for part in (unit[:1], unit[1:])] if self.pairs else chosen
        return examples(self.rows, bins, self.size, self.width, packed=self.packed)


def load(config: Config, index: int, tokenizer: Tokenizer, panel: Set[str] = frozenset()) -> StageData:
    """The data of stage `index`; conversations whose content is in `panel` are left out.

    Raises:
        UserError: the data cannot be read, are not those of `sha256`, or nothing can be learned from them.
    """
    stage = config.stages[index]
    assert isinstance(stage, DataStage)
    key = f"stages.{index}"
    with refusals(f"{key}.data"):
        pairs = isinstance(stage, DpoStage)
        found: Any = read_pairs(stage.data, stage.split) if pairs else read_data(stage.data, stage.split)
    if stage.sha256 not in ("", found.digest):
        why = f"but {', '.join(stage.data)} has {found.digest}; restore the data, or begin a new run"
        raise UserError.of(f"{key}.sha256", stage.sha256, why)
    form = row_format(config, stage, tokenizer)
    counts, contents = Counter(found.dropped), dict[str, None]()
    learned: list[Row] = []
    measured: list[Row] = []
    units: list[list[int]] = []
    for item in found.rows:
        content = _content(item)
        rows = [] if content in panel else _rows(form, item, counts)
        counts[HELD_OUT] += content in panel
        if rows and _share(content) < stage.validation:
            measured += rows
            counts[VALIDATION] += 1
        elif rows:
            first = len(learned)
            numbers = [*range(first, first + len(rows))]
            units += [numbers] if pairs else [[number] for number in numbers]
            learned += rows
            contents[content] = None
    if not learned:
        reasons = ", ".join(f"{number} {reason}" for reason, number in counts.items() if number) or "they are empty"
        raise UserError.of(f"{key}.data", [*stage.data], f"which leave nothing to learn from: {reasons}")
    packed = config.algo.packing and not pairs
    data = StageData(
        TokenRows.of(learned), units, TokenRows.of(measured), [*contents], +counts, found.digest, packed, pairs
    )
    return data.regrouped() if packed else data


def row_format(config: Config, stage: DataStage, tokenizer: Tokenizer) -> RowFormat:
    """How the policy of a run reads conversations: its chat format, the opening of its replies, its context."""
    prompt = config.prompt
    with refusals("model.tokenizer"):
        form = message_format(prompt, tokenizer)
    return RowFormat(
        tokenizer,
        form.chat,
        opening="".join(form.openings) if config.tasks or prompt.has_answer_block else "",
        turns=config.agent.limit,
        max_tokens=stage.max_tokens,
        omits_ends=get_style(prompt.style).omits_ends,
        all_replies=isinstance(stage, SftStage) and stage.compat == "agentgym",
    )


def _rounded(number: int) -> int:
    """A multiple of 16, so that data that differ a little need no program of their own."""
    return -(-int(number) // 16) * 16


def _content(item: Conversation | PreferencePair) -> str:
    return item.content() if isinstance(item, Conversation) else item.conversation("chosen").content()


def _rows(form: RowFormat, item: Conversation | PreferencePair, counts: Counter[str]) -> list[Row]:
    if isinstance(item, Conversation):
        return form.rows(item.messages, counts)
    rows = form.pair(item.prompt, (item.chosen, item.rejected))
    if isinstance(rows, str):
        counts[rows] += 1
        return []
    return rows


def _share(content: str) -> float:
    """A number from 0 to 1 that a content decides."""
    return int(content[:13], 16) / 16**13


def resolved(
    config: Config, stored: Config | None, tokenizer: Tokenizer, panel: Callable[[], Set[str]]
) -> tuple[Config, dict[int, StageData]]:
    """The configuration with the digests and the steps of its data filled in, and the data that were read for it.

    What the run's folder has, `stored`, is taken from there: a run that goes on need not have its data any more.

    Raises:
        UserError: as `load`.
    """
    stages, read = [*config.stages], {}
    for index, stage in enumerate(stages):
        if not isinstance(stage, DataStage) or not stage.data or (stage.steps and stage.sha256):
            continue
        before = stored.stages[index] if stored is not None and index < len(stored.stages) else None
        if isinstance(before, type(stage)):
            given = {"steps": stage.steps or before.steps, "sha256": stage.sha256 or before.sha256}
            if before == stage.replace(**given):
                stages[index] = before
                continue
        data = read[index] = load(config, index, tokenizer, panel())
        stages[index] = stage.replace(steps=stage.steps or data.order(stage, 0).count, sha256=data.sha256)
    return config.replace(stages=tuple(stages)), read
