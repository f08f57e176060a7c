"""What a policy has found on training levels for a stage to learn from, and its files in the run folder."""

import dataclasses
import io
import zipfile
import zlib
from pathlib import Path

import jax
import numpy as np

from agentrl_jax.errors import BadValue, UserError
from agentrl_jax.evaluate.eval_set import EvalSet
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.io import atomic_write
from agentrl_jax.offline.rows import TokenRows
from agentrl_jax.parallel import hosts
from envs_jax.splits import Split


@dataclasses.dataclass(frozen=True)
class Explored:
    """What a round has found."""

    rows: TokenRows
    """Rows to learn from."""
    levels: list[str]
    """Ids of their levels."""
    success: float
    """Of all episodes of the round."""


class ExploredFiles:
    """What the rounds of a stage have found, in explored/STAGE-ROUND.npz of the run folder."""

    def __init__(self, run: Path, stage: int):
        """For a stage, by its number in the configuration. Creates nothing yet."""
        self._folder, self._stage = run / "explored", stage

    def path(self, number: int) -> Path:
        """The file of a round."""
        return self._folder / f"{self._stage}-{number}.npz"

    def write(self, number: int, found: Explored) -> None:
        """Writes what a round has found."""
        if not hosts.is_writer():
            return
        self._folder.mkdir(exist_ok=True)
        content, rows = io.BytesIO(), found.rows
        np.savez_compressed(
            content,
            tokens=rows.tokens,
            trained=rows.trained,
            starts=rows.starts,
            levels=np.array(found.levels, "U64"),
            success=np.float64(found.success),
        )
        with atomic_write(self.path(number), binary=True) as file:
            file.write(content.getvalue())

    def read(self, number: int, *, must_exist: bool) -> Explored | None:
        """What a round has found; None where there is no file yet.

        Raises:
            UserError: the file must exist and does not, or is damaged.
        """
        file = self.path(number)

        def read() -> Explored | None:
            if not file.exists() and not must_exist:
                return None
            try:
                with np.load(file, allow_pickle=False) as stored:
                    rows = TokenRows(stored["tokens"], stored["trained"], stored["starts"])
                    ends = int(rows.starts[-1] - rows.starts[0])
                    if not len(rows.tokens) == len(rows.trained) == ends:
                        raise BadValue.of("rows", len(rows), "whose arrays do not fit")
                    return Explored(rows, stored["levels"].tolist(), float(stored["success"]))
            except (OSError, EOFError, ValueError, KeyError, IndexError, zipfile.BadZipFile, zlib.error) as error:
                why = f"cannot be read ({error}); restore the rows of the round, or use a new run"
                raise UserError.at(file, why) from error

        return hosts.from_writer(read)


def training_levels(held_out: HeldOut, key: jax.Array, *, rotation: int = 0) -> list[EvalSet]:
    """The training levels of each task that a key chooses; those of a level file from the row `rotation` on."""
    seed = int(jax.random.bits(key) >> 1)
    return [
        dataclasses.replace(levels, split=Split.TRAIN, seed=seed, rotation=rotation, distinct=False)
        for levels in held_out.validations
    ]
