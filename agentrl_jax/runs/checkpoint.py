"""Checkpoints of a training state, with Orbax, written in the background.

A checkpoint is written into a temporary folder, which is then renamed. Last comes `digests.json`, the SHA-256 of each
of its files: only then is the checkpoint complete. Older checkpoints are removed afterwards, so a process killed at any
moment leaves the last complete checkpoint in place. An incomplete checkpoint is ignored; a damaged one is an error.

All processes of a run save and restore together, into one folder that all of them see. Only the writer (see
`parallel.hosts`) writes digests, renames and removes.
"""

import concurrent.futures
import contextlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp
from etils import epath

from agentrl_jax.errors import UserError
from agentrl_jax.io import FULL, files_under, rename_with_suffix
from agentrl_jax.parallel import hosts
from agentrl_jax.runs.checkpoint_leaves import LARGEST, abstract, is_in_range, layout, leaves, storable, with_type_of
from agentrl_jax.runs.digests import DamageError, check_digests, is_complete, write_digests

State = TypeVar("State")

_FORMAT = "digests"
"""Key of a checkpoint's record that says it has digests; checkpoints of older versions lack it."""
_SCORE = "score"
"""Key of a checkpoint's record with the score of its state."""
_REGULAR = "regular"
"""Key of a checkpoint's record that says whether it counts among those that are kept."""
_REMOVED = ".removed"
_UNFINISHED = "unfinished"
_COMMITTED, _MANIFEST = "commit_success.txt", "manifest.ocdbt"
"""Orbax's last file of a checkpoint in an object store."""


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Given directory is read only")


# Orbax warns whenever a folder is opened to be read.
logging.getLogger("absl").addFilter(_is_news)


class CheckpointError(UserError):
    """A checkpoint is missing, damaged, or has another structure than the state to restore."""


class Checkpoints:
    """The checkpoints of a run in the folder `path`, each in a sub-folder named after its step."""

    def __init__(
        self, path: str | os.PathLike[str], *, keep: int | None, for_good: Callable[[int], bool] = lambda step: False
    ):
        """Opens the folder to save, or to read only if `keep` is None.

        The newest checkpoint, the newest `keep` regular ones, the best one, and those of the steps `for_good` are kept.
        To save, the folder is created if needed, and unfinished checkpoints are cleared: half-written ones are removed,
        and one that only lacks its digests is renamed to N.unfinished, and removed once a checkpoint of its step or a
        later one is complete. To read, a run may be writing to the folder.

        `without_digests` are the steps of checkpoints that cannot be checked for damage: the folder has no others, an
        earlier version wrote it, and it is only read.

        Raises:
            CheckpointError: all checkpoints in a folder to save to are of an earlier version, without digests.
        """
        self.path = epath.Path(path if "://" in str(path) else os.path.abspath(path))
        self._keep, self._for_good = keep, for_good
        self._checked: set[int] = set()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._pending: concurrent.futures.Future[None] | None = None
        self.without_digests: list[int] = hosts.from_writer(self._clear)
        if keep is None:
            options = ocp.CheckpointManagerOptions(read_only=True, create=False, save_interval_steps=0)
        else:
            # With folders created asynchronously, a failure leaves other Orbax threads waiting 20 minutes for them.
            eager = ocp.AsyncOptions(create_directories_asynchronously=False)
            options = ocp.CheckpointManagerOptions(cleanup_tmp_directories=True, create=True, async_options=eager)
        handlers = {"state": ocp.StandardCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self.path, options=options, item_handlers=handlers)

    def _clear(self) -> list[int]:
        if self._keep is None:
            return [step for step in _without_digests(self.path) if _record(self.path / str(step))]
        refuse_older(self.path)
        for step in incomplete_steps(self.path):
            rename_with_suffix(self.path / str(step), _UNFINISHED)
        if self.path.exists():
            for half_deleted in self.path.glob(f"*{_REMOVED}"):
                half_deleted.rmtree()
        return []

    def latest_step(self) -> int | None:
        """Step of the newest complete checkpoint, or None."""
        return max(self.steps(), default=None)

    def best_step(self) -> int | None:
        """Step of the complete checkpoint with the highest score, the newest of equal ones; None if none has one."""
        known = self._scores()
        return max(known)[1] if known else None

    def best_score(self) -> float:
        """The highest score of a complete checkpoint; minus infinity if none has one."""
        return max(self._scores(), default=(-math.inf, 0))[0]

    def _scores(self) -> list[tuple[float, int]]:
        scores = {step: _record(self.path / str(step)).get(_SCORE) for step in self.steps()}
        return [(score, step) for step, score in scores.items() if isinstance(score, int | float)]

    def regular_steps(self) -> list[int]:
        """Steps of the complete checkpoints that are regular, see `save`, ascending."""
        return [step for step in self.steps() if _record(self.path / str(step)).get(_REGULAR, True)]

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending; one that is still being written is not among them."""
        return self.without_digests or complete_steps(self.path)

    def save(
        self,
        step: int,
        state: Any,
        meta: dict[str, Any] | None = None,
        *,
        score: float | None = None,
        regular: bool = True,
        wait: bool = True,
    ) -> None:
        """Saves a state and a small JSON record, and returns once the checkpoint is complete.

        One that is not `regular` is removed as soon as there is a later one, unless it is the best.

        `state` is a pytree of arrays (typed PRNG keys included), each with at least one entry, and Python numbers; the
        checkpoint with the highest `score` is kept. Without `wait`, it is written in the background. The caller may
        donate `state` immediately: it has been copied off the device, or JAX keeps the buffers that are still read.

        Raises:
            CheckpointError: this checkpoint, or one that is still being written, cannot be written.
        """
        if not hosts.is_writer():
            self.wait()
        # While the writer removes old checkpoints, the manager of another process may not list them.
        hosts.from_writer(self.wait)
        record = {"step": step, _FORMAT: "sha256", _SCORE: score, _REGULAR: regular, **(meta or {})}
        arguments = ocp.args.Composite(state=ocp.args.StandardSave(storable(state)), meta=ocp.args.JsonSave(record))
        try:
            self._manager.reload()  # a roll-back may have removed newer steps
            self._manager.save(step, args=arguments, force=True)
        except Exception as error:  # Orbax and TensorStore raise many types when a disk is full
            raise self._cannot_write(step, error) from error
        self._pending = self._thread.submit(self._complete, step)
        if wait:
            self.wait()

    def _complete(self, step: int) -> None:
        """Completes a checkpoint that is being written, then removes those that are not kept or were unfinished."""
        try:
            self._manager.wait_until_finished()
            if hosts.is_writer():
                folder = self.path / str(step)
                if not (folder / "state" / _MANIFEST).exists():
                    raise FileNotFoundError(f"Orbax has written no state/{_MANIFEST}, by which the arrays are found")
                write_digests(folder)
        except Exception as error:
            raise self._cannot_write(step, error) from error
        if self._keep is not None and hosts.is_writer():
            kept = {self.latest_step(), self.best_step(), *self.regular_steps()[-self._keep :]}
            for old in set(self.steps()) - kept:
                if not self._for_good(old):
                    self.delete(old)
            for entry in [*self.path.glob(f"*.{_UNFINISHED}*")]:
                number = entry.name.partition(".")[0]
                if number.isdecimal() and int(number) <= step:
                    entry.rmtree()

    def restore(self, step: int, like: State) -> State:
        """Reads a state back, bit for bit, with the shardings of `like`.

        `like` has the same structure, shapes and dtypes; its values are not read, and `jax.eval_shape` gives one.

        Raises:
            CheckpointError: there is no such checkpoint, it is damaged or of another step than its folder, its arrays
                do not match `like`, or a number in it is not finite or exceeds `LARGEST`.
        """
        self.wait()
        hosts.from_writer(lambda: self.meta(step))
        self._check_shapes(step, like)
        restored = self._restored(step, jax.tree.map(abstract, storable(like)))
        return jax.tree.map(with_type_of, like, restored)

    def restore_part(self, step: int, like: dict[str, Any]) -> dict[str, Any]:
        """Reads entries of a state by their names, whatever else the state has, as that of an earlier version may.

        Raises:
            CheckpointError: as `restore`.
        """
        self.wait()
        hosts.from_writer(lambda: self.meta(step))
        self._check_shapes(step, like, whole=False)
        wanted = leaves(storable(like))
        with self._reading(step):
            stored = self._manager.item_metadata(step)["state"].tree
            shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), stored)
        names = list(leaves(shapes))
        target = [abstract(wanted.get(name, leaf)) for name, leaf in leaves(shapes).items()]
        restored = self._restored(step, jax.tree.unflatten(jax.tree.structure(shapes), target))
        found = dict(zip(names, jax.tree.leaves(restored), strict=True))
        part = jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in leaves(like)])
        return jax.tree.map(with_type_of, like, part)

    def _restored(self, step: int, target: Any) -> Any:
        with self._reading(step):
            restored = self._manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(target)))
        for name, leaf in leaves(restored["state"]).items():
            if not is_in_range(leaf):
                raise self._damaged(
                    step,
                    f"{name} holds numbers that are not finite or beyond {LARGEST:g}, and was written so: "
                    f"rename the folder to {step}.damaged to go on from an earlier one",
                )
        return restored["state"]

    def meta(self, step: int) -> dict[str, Any]:
        """The JSON record of a checkpoint, with its step as `step`.

        Raises:
            CheckpointError: the checkpoint is damaged, or its record does not belong to a checkpoint of this step.
        """
        self.check(step)
        record = _record(self.path / str(step))
        kind = None if step in self.without_digests else "sha256"
        if record.get("step") != step or record.pop(_FORMAT, None) != kind:
            raise self._damaged(step, f"{self.path / str(step) / 'meta'} holds no record of step {step}")
        for key in (_SCORE, _REGULAR):
            record.pop(key, None)
        return record

    def check(self, step: int) -> None:
        """Compares every file of a complete checkpoint with its digest, once per `Checkpoints` object.

        Raises:
            CheckpointError: there is no such checkpoint, or a file differs or is missing; the message names it and the
                newest undamaged checkpoint.
        """
        if step in self._checked or step in self.without_digests:
            return
        if step not in self.steps():
            raise CheckpointError.at(self.path, f"there is no checkpoint {step}; there are {self.steps() or 'none'}")
        try:
            check_digests(self.path / str(step))
        except DamageError as damage:
            raise self._damaged(step, str(damage)) from None
        self._checked.add(step)

    def rename_damaged(self) -> list[str]:
        """Renames damaged checkpoints that are newer than the newest good one to N.damaged; for the writer.

        Returns what was damaged and its new name, one sentence each; empty if the newest checkpoint is good.

        Raises:
            CheckpointError: there are checkpoints but none is good; nothing is renamed then.
        """
        damaged: dict[int, CheckpointError] = {}
        for step in reversed(self.steps()):
            try:
                self.meta(step)
            except CheckpointError as error:
                damaged[step] = error
            else:
                break
        if damaged and len(damaged) == len(self.steps()):
            raise next(iter(damaged.values()))
        return [
            f"{error}; renamed to {rename_with_suffix(self.path / str(step), 'damaged').name}"
            for step, error in damaged.items()
        ]

    def delete(self, step: int) -> None:
        """Removes the checkpoint of a step; for the writer."""
        # Renamed first, so that a kill leaves no half-deleted checkpoint under its name.
        (self.path / str(step)).rename(self.path / f"{step}{_REMOVED}").rmtree()
        self._checked.discard(step)

    def is_idle(self) -> bool:
        """Whether no checkpoint is being written."""
        return self._pending is None or self._pending.done()

    def raise_failure(self) -> None:
        """Raises the `CheckpointError` of a checkpoint whose writing has failed meanwhile; does not wait."""
        if self.is_idle():
            self.wait()

    def wait(self) -> None:
        """Waits until the checkpoint that is being written is complete, and those that are not kept are removed.

        Raises:
            CheckpointError: it cannot be written.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Waits for a pending checkpoint and closes the folder."""
        try:
            self.wait()
        finally:
            self._thread.shutdown(wait=False)
        self._manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # The exception that ended the block must be the one reported.
        with contextlib.suppress(Exception) if kind else contextlib.nullcontext():
            self.close()

    def _good_before(self, step: int) -> int | None:
        for earlier in reversed([known for known in self.steps() if known < step]):
            with contextlib.suppress(DamageError):
                check_digests(self.path / str(earlier))
                return earlier
        return None

    @contextlib.contextmanager
    def _reading(self, step: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Orbax and TensorStore raise many types for damaged files
            raise self._damaged(step, f"{type(error).__name__}: {error}") from error

    def _check_shapes(self, step: int, like: Any, *, whole: bool = True) -> None:
        with self._reading(step):
            found = leaves(self._manager.item_metadata(step)["state"].tree)
        wanted = leaves(storable(like))
        flaws = [
            f"{name} is only in {'the checkpoint' if name in found else 'the state'}"
            for name in sorted(found.keys() ^ wanted.keys() if whole else wanted.keys() - found.keys())
        ] or [
            f"{name} is {layout(found[name])}, expected {layout(leaf)}"
            for name, leaf in wanted.items()
            if hasattr(leaf, "shape") and layout(found[name]) != layout(leaf)
        ]
        if flaws:
            raise CheckpointError.at(
                self.path / str(step),
                f"{flaws[0]}; the checkpoint is of another configuration or version: use a new run folder",
            )

    def _damaged(self, step: int, reason: str) -> CheckpointError:
        good = self._good_before(step)
        advice = f"the last good checkpoint is that of step {good}"
        if good is None:
            advice = "there is no earlier one that is good: restore a copy of its files, or use a new run folder"
        reason = " ".join(reason.split())[:300]
        return CheckpointError.at(
            self.path / str(step), f"the checkpoint of step {step} cannot be used: {reason}; {advice}"
        )

    def _cannot_write(self, step: int | None, error: Exception) -> CheckpointError:
        kept = self.latest_step()
        local = "://" not in str(self.path)
        free = shutil.disk_usage(self.path).free if local else float("inf")
        files = [] if kept is None else files_under(self.path / str(kept))
        needed = sum(file.stat().length for file in files)
        sizes = [f"{free / 1e6:,.1f} MB are free"] if local else []
        sizes += [f"the one before takes {needed / 1e6:,.1f} MB"] if needed else []
        earlier = "there is none before it" if kept is None else f"that of step {kept} is kept and nothing is lost"
        reason = " ".join(str(error).split())
        full = (isinstance(error, OSError) and error.errno in FULL) or "No space left" in reason or free < 2**20
        what = "the disk is full" if full else f"{type(error).__name__}: {reason[:200]}"
        return CheckpointError.at(
            self.path / str(step),
            f"the checkpoint cannot be written ({'; '.join([what, *sizes])}); "
            f"{earlier}: make {'room' if full else 'the folder writable'}, and the same command goes on",
        )


def complete_steps(path: str | os.PathLike[str]) -> list[int]:
    """Steps of the complete checkpoints in a folder, ascending; does not read their files."""
    folder = epath.Path(path)
    return [step for step in _numbered(folder) if is_complete(folder / str(step))]


def incomplete_steps(path: str | os.PathLike[str]) -> list[int]:
    """Steps of the checkpoints in a folder that are being written, or of which a copy was interrupted; ascending."""
    folder = epath.Path(path)
    return [step for step in _numbered(folder) if not is_complete(folder / str(step))]


def _without_digests(path: epath.Path) -> list[int]:
    """Steps of checkpoints that a version without digests wrote, in a folder without others."""
    folders = [path / str(step) for step in incomplete_steps(path)] if not complete_steps(path) else []
    return [int(folder.name) for folder in folders if _FORMAT not in _record(folder) and not _is_begun(folder)]


def refuse_older(path: str | os.PathLike[str]) -> None:
    """Refuses to go on from the checkpoints in a folder if an earlier version wrote them, without digests."""
    if older := _without_digests(epath.Path(path)):
        raise CheckpointError.at(
            epath.Path(path) / str(older[0]),
            "this checkpoint has no digests, so it cannot be checked for damage; an older version wrote it: go on with "
            "that version, or use a new run folder",
        )


def unchecked_roll_backs(path: str | os.PathLike[str], step: int) -> int:
    """Roll-backs of the run before the checkpoint of a step, from its record, without a look at its other files."""
    return _record(epath.Path(path) / str(step)).get("roll_backs", 0)


def _numbered(path: epath.Path) -> list[int]:
    if not path.is_dir():
        return []
    return sorted(int(entry.name) for entry in path.iterdir() if entry.name.isdecimal() and entry.is_dir())


def _record(folder: epath.Path) -> dict[str, Any]:
    """The JSON record of a checkpoint; empty if it cannot be read."""
    try:
        record = json.loads((folder / "meta" / "metadata").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _is_begun(folder: epath.Path) -> bool:
    """Whether Orbax has not ended a checkpoint in an object store, where folders are not renamed at the end."""
    return "://" in str(folder) and not (folder / _COMMITTED).exists()
