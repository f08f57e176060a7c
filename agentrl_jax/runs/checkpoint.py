"""Checkpoints of a training state, with Orbax.

A checkpoint is written into a temporary folder, which is then renamed. Last comes `digests.json`, the SHA-256 of each
of its files: only then is the checkpoint complete. Older checkpoints are removed afterwards, so a process killed at any
moment leaves the last complete checkpoint in place. An incomplete checkpoint is ignored; a damaged one is an error.
"""

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from agentrl_jax.errors import UserError
from agentrl_jax.io import FULL
from agentrl_jax.runs.digests import DamageError, check_digests, is_complete, write_digests

State = TypeVar("State")

LARGEST = 1e18
"""No number of a state exceeds this: the square of a larger one, and so any norm, overflows float32."""
_FORMAT = "digests"
"""Key of a checkpoint's record that says it has digests; checkpoints of older versions lack it."""
_REMOVED = ".removed"


class CheckpointError(UserError):
    """A checkpoint is missing, damaged, or has another structure than the state to restore."""


class Checkpoints:
    """The checkpoints of a run in the folder `path`, each in a sub-folder named after its step."""

    def __init__(self, path: str | os.PathLike[str], *, keep: int | None):
        """Opens the folder to save and keep the newest `keep` checkpoints, or to read only if `keep` is None.

        To save, the folder is created if needed, and unfinished checkpoints are cleared: half-written ones are removed,
        and one that only lacks its digests is renamed to N.unfinished. To read, a run may be writing to the folder.

        Raises:
            CheckpointError: the folder holds checkpoints of an older version, without digests.
        """
        self.path = Path(path).absolute()
        self._keep = keep
        self._without_digests: int | None = None
        self._checked: set[int] = set()
        for step in _numbered(self.path):
            folder = self.path / str(step)
            if is_complete(folder):
                continue
            if not _has_format(folder):
                raise CheckpointError(
                    f"{folder}: this checkpoint has no digests, so it cannot be checked for damage; an older version "
                    "wrote it: go on with that version, or use a new run folder"
                )
            if keep is not None:
                _rename_with_suffix(folder, "unfinished")
        if keep is None:
            options = ocp.CheckpointManagerOptions(read_only=True, create=False, save_interval_steps=0)
        else:
            for half_deleted in self.path.glob(f"*{_REMOVED}"):
                shutil.rmtree(half_deleted)
            # With folders created asynchronously, a failure leaves other Orbax threads waiting 20 minutes for them.
            eager = ocp.AsyncOptions(create_directories_asynchronously=False)
            options = ocp.CheckpointManagerOptions(cleanup_tmp_directories=True, create=True, async_options=eager)
        handlers = {"state": ocp.StandardCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self.path, options=options, item_handlers=handlers)

    def latest_step(self) -> int | None:
        """Step of the newest complete checkpoint, or None."""
        return max(self.steps(), default=None)

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        return complete_steps(self.path)

    def save(self, step: int, state: Any, meta: dict[str, Any] | None = None, *, wait: bool = True) -> None:
        """Saves a state and a small JSON record, and returns once the checkpoint is complete.

        `state` is a pytree of arrays (typed PRNG keys included), each with at least one entry, and Python numbers.
        Without `wait`, it is written in the background and is complete after the next `wait`, `save` or `close`. The
        caller may donate `state` immediately: it has been copied off the device, or JAX keeps the buffers that are
        still being read.

        Raises:
            CheckpointError: the checkpoint cannot be written.
        """
        self.wait()
        record = {"step": step, _FORMAT: "sha256", **(meta or {})}
        arguments = ocp.args.Composite(state=ocp.args.StandardSave(_storable(state)), meta=ocp.args.JsonSave(record))
        try:
            self._manager.save(step, args=arguments, force=True)
        except Exception as error:  # Orbax and TensorStore raise many types when a disk is full
            raise self._cannot_write(step, error) from error
        self._without_digests = step
        if wait:
            self.wait()

    def restore(self, step: int, like: State) -> State:
        """Reads a state back, bit for bit, with the shardings of `like`.

        `like` has the same structure, shapes and dtypes; its values are not read, and `jax.eval_shape` gives one.

        Raises:
            CheckpointError: there is no such checkpoint, it is damaged, its arrays do not match `like`, or a number in
                it is not finite or exceeds `LARGEST`.
        """
        if step not in self.steps():
            raise CheckpointError(f"{self.path}: there is no checkpoint {step}; there are {self.steps() or 'none'}")
        self.check(step)
        self._check_shapes(step, like)
        target = jax.tree.map(_abstract, _storable(like))
        with self._reading(step):
            restored = self._manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(target)))
        for name, leaf in _leaves(restored["state"]).items():
            if not _is_in_range(leaf):
                raise self._damaged(
                    step,
                    f"{name} holds numbers that are not finite or beyond {LARGEST:g}, and was written so: "
                    f"rename the folder to {step}.damaged to go on from an earlier one",
                )
        return jax.tree.map(_with_type_of, like, restored["state"])

    def meta(self, step: int) -> dict[str, Any]:
        """The JSON record of a checkpoint, with its iteration as `step`.

        Raises:
            CheckpointError: the checkpoint is damaged, or its record does not belong to a checkpoint of this step.
        """
        self.check(step)
        with self._reading(step):
            record = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]
        if not isinstance(record, dict) or record.get("step") != step or record.pop(_FORMAT, None) != "sha256":
            raise self._damaged(step, f"{self.path / str(step) / 'meta'} holds no record of step {step}")
        return record

    def check(self, step: int) -> None:
        """Compares every file of a complete checkpoint with its digest, once per `Checkpoints` object.

        Raises:
            CheckpointError: a file differs or is missing; the message names it and the newest undamaged checkpoint.
        """
        if step not in self._checked:
            try:
                check_digests(self.path / str(step))
            except DamageError as damage:
                raise self._damaged(step, str(damage)) from None
            self._checked.add(step)

    def rename_damaged(self) -> list[str]:
        """Renames damaged checkpoints that are newer than the newest good one to N.damaged.

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
        lines = [
            f"{error}; renamed to {_rename_with_suffix(self.path / str(step), 'damaged').name}"
            for step, error in damaged.items()
        ]
        if damaged:
            self._manager.reload()
        return lines

    def delete(self, step: int) -> None:
        """Removes the checkpoint of a step."""
        # Renamed first, so that a kill leaves no half-deleted checkpoint under its name.
        shutil.rmtree((self.path / str(step)).rename(self.path / f"{step}{_REMOVED}"))
        self._checked.discard(step)
        self._manager.reload()

    def wait(self) -> None:
        """Waits until every checkpoint handed over is complete, then removes those beyond `keep`.

        Raises:
            CheckpointError: a checkpoint cannot be written.
        """
        step, self._without_digests = self._without_digests, None
        try:
            self._manager.wait_until_finished()
            if step is not None:
                write_digests(self.path / str(step))
        except Exception as error:
            raise self._cannot_write(step, error) from error
        if step is not None and self._keep is not None:
            for old in self.steps()[: -self._keep]:
                self.delete(old)

    def close(self) -> None:
        """Waits for pending checkpoints and closes the folder."""
        self.wait()
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

    def _check_shapes(self, step: int, like: Any) -> None:
        with self._reading(step):
            found = _leaves(self._manager.item_metadata(step)["state"].tree)
        wanted = _leaves(_storable(like))
        flaws = [
            f"{name} is only in {'the checkpoint' if name in found else 'the state'}"
            for name in sorted(found.keys() ^ wanted.keys())
        ] or [
            f"{name} is {_layout(found[name])}, expected {_layout(leaf)}"
            for name, leaf in wanted.items()
            if hasattr(leaf, "shape") and _layout(found[name]) != _layout(leaf)
        ]
        if flaws:
            raise CheckpointError(
                f"{self.path / str(step)}: {flaws[0]}; the checkpoint is of another configuration or version: use a "
                "new run folder"
            )

    def _damaged(self, step: int, reason: str) -> CheckpointError:
        good = self._good_before(step)
        advice = f"the last good checkpoint is that of step {good}"
        if good is None:
            advice = "there is no earlier one that is good: restore a copy of its files, or use a new run folder"
        reason = " ".join(reason.split())[:300]
        return CheckpointError(
            f"{self.path / str(step)}: the checkpoint of step {step} cannot be used: {reason}; {advice}"
        )

    def _cannot_write(self, step: int | None, error: Exception) -> CheckpointError:
        kept = self.latest_step()
        free = shutil.disk_usage(self.path).free
        needed = sum(file.stat().st_size for file in (self.path / str(kept)).rglob("*")) if kept is not None else 0
        size = f"; the one before takes {needed / 1e6:,.1f} MB" if needed else ""
        earlier = "there is none before it" if kept is None else f"that of step {kept} is kept and nothing is lost"
        reason = " ".join(str(error).split())
        full = (isinstance(error, OSError) and error.errno in FULL) or "No space left" in reason or free < 2**20
        what = "the disk is full" if full else f"{type(error).__name__}: {reason[:200]}"
        return CheckpointError(
            f"{self.path / str(step)}: the checkpoint cannot be written ({what}; {free / 1e6:,.1f} MB are free{size}); "
            f"{earlier}: make {'room' if full else 'the folder writable'}, and the same command goes on"
        )


def complete_steps(path: str | os.PathLike[str]) -> list[int]:
    """Steps of the complete checkpoints in a folder, ascending; does not read their files."""
    return [step for step in _numbered(Path(path)) if is_complete(Path(path) / str(step))]


def _numbered(path: Path) -> list[int]:
    if not path.is_dir():
        return []
    return sorted(int(entry.name) for entry in path.iterdir() if entry.name.isdecimal() and entry.is_dir())


def _has_format(folder: Path) -> bool:
    """Whether a checkpoint without digests was written by a version that adds them."""
    try:
        record = json.loads((folder / "meta" / "metadata").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and _FORMAT in record


def _rename_with_suffix(folder: Path, suffix: str) -> Path:
    """Renames N to N.SUFFIX, or to N.SUFFIX.2 and so on if that name is taken."""
    names = (folder.with_name(f"{folder.name}.{suffix}{f'.{n}' if n > 1 else ''}") for n in itertools.count(1))
    return folder.rename(next(name for name in names if not name.exists()))


def _is_in_range(leaf: Any) -> bool:
    """Whether an array or number is finite and within `LARGEST`; integers always are."""
    is_float = jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating)
    return not is_float or bool(jnp.all(jnp.abs(leaf) <= LARGEST))  # false for NaN too


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _storable(state: Any) -> Any:
    """The state with typed keys as their uint32 data and NumPy scalars as arrays: the only leaves Orbax stores."""

    def convert(leaf: Any) -> Any:
        if _is_key(leaf):
            if isinstance(leaf, jax.ShapeDtypeStruct):
                return jax.eval_shape(jax.random.key_data, leaf)
            return jax.random.key_data(leaf)
        return np.asarray(leaf) if isinstance(leaf, np.generic) else leaf

    return jax.tree.map(convert, state)


def _abstract(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _with_type_of(like: Any, leaf: Any) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(jnp.empty((), like.dtype)))
    return like.dtype.type(leaf) if isinstance(like, np.generic) else leaf


def _layout(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" if hasattr(leaf, "shape") else "one number"


def _leaves(tree: Any) -> dict[str, Any]:
    """Leaves by name; names are the same for dataclasses and for the dictionaries that Orbax makes of them."""
    paths = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}
