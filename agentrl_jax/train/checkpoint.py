"""Checkpoints of a training state, by Orbax.

A checkpoint is written into a folder of another name and renamed when it is whole, so that a process killed at any
moment leaves the last whole checkpoint in place and at most a half one under a temporary name, which the next
`Checkpoints` removes.
"""

import os
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from agentrl_jax.errors import UserError

State = TypeVar("State")


class CheckpointError(UserError):
    """A checkpoint is missing, damaged, or of another shape than the state that should be restored."""


class Checkpoints:
    """The checkpoints of a run, each under its iteration.

    Attributes:
        path: folder with one sub-folder per checkpoint.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep: int | None):
        """Opens the folder.

        Args:
            path: folder of the checkpoints.
            keep: how many of the newest are kept; older ones are removed after a save. The folder is created if needed,
                and before the first save it is freed of checkpoints that were never finished. None: only to read,
                perhaps while a run writes there.
        """
        self.path = Path(path).absolute()
        if keep is None:
            options = ocp.CheckpointManagerOptions(read_only=True, create=False, save_interval_steps=0)
        else:
            options = ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True, create=True)
        handlers = {"state": ocp.StandardCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self.path, options=options, item_handlers=handlers)

    def latest_step(self) -> int | None:
        """Iteration of the newest whole checkpoint, or None."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """Iterations of the whole checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Any, meta: dict[str, Any] | None = None, *, wait: bool = True) -> None:
        """Saves a state under its iteration.

        Args:
            step: the iteration.
            state: pytree of arrays with at least one entry (typed PRNG keys too) and Python numbers.
            meta: small JSON record beside it.
            wait: return when the checkpoint is published. Otherwise it is written while the caller goes on, who may
                donate `state` at once: it has left the device, or JAX keeps the buffers that are being read.
        """
        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave(_storable(state)), meta=ocp.args.JsonSave({"step": step, **(meta or {})})
        )
        self._manager.save(step, args=arguments, force=True)
        if wait:
            self._manager.wait_until_finished()

    def restore(self, step: int, like: State) -> State:
        """Reads a state back, bit for bit.

        Args:
            step: iteration of the checkpoint.
            like: state of the same structure, shapes and dtypes (values are not read; `jax.eval_shape` gives one). Its
                shardings are those of the result.

        Raises:
            CheckpointError: there is no such checkpoint, it is damaged, or its arrays are not those of `like`.
        """
        if step not in self.steps():
            raise CheckpointError(f"{self.path}: there is no checkpoint {step}; there are {self.steps() or 'none'}")
        self._check_shapes(step, like)
        target = jax.tree.map(_abstract, _storable(like))
        try:
            restored = self._manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(target)))
        except Exception as error:  # Orbax and TensorStore raise many types for what a damaged file can do
            raise self._damaged(step, error) from error
        return jax.tree.map(_as_before, like, restored["state"])

    def meta(self, step: int) -> dict[str, Any]:
        """The JSON record of a checkpoint, with its iteration as `step`."""
        try:
            return self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]
        except Exception as error:
            raise self._damaged(step, error) from error

    def delete(self, step: int) -> None:
        """Removes the checkpoint of an iteration."""
        self._manager.delete(step)

    def wait(self) -> None:
        """Returns when every checkpoint handed over is published."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits and lets go of the folder."""
        self._manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_shapes(self, step: int, like: Any) -> None:
        try:
            held = self._manager.item_metadata(step)["state"].tree
            found = {_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(held)[0]}
        except Exception as error:
            raise self._damaged(step, error) from error
        wanted = {_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(_storable(like))[0]}
        for name in sorted(found.keys() ^ wanted.keys()):
            where = "the checkpoint" if name in found else "the state"
            raise CheckpointError(
                f"{self.path / str(step)}: {name} is only in {where}; the checkpoint belongs to another configuration "
                "or version: use a new run folder"
            )
        for name, leaf in wanted.items():
            if hasattr(leaf, "shape") and _layout(found[name]) != _layout(leaf):
                raise CheckpointError(
                    f"{self.path / str(step)}: {name} is {_layout(found[name])}, expected {_layout(leaf)}; "
                    "the checkpoint belongs to another configuration or version: use a new run folder"
                )

    def _damaged(self, step: int, error: Exception) -> CheckpointError:
        reason = " ".join(str(error).split())[:200]
        return CheckpointError(
            f"{self.path / str(step)}: the checkpoint cannot be read ({type(error).__name__}: {reason}); delete this "
            "folder to go on from the one before it"
        )


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _storable(state: Any) -> Any:
    """The state with typed keys as their uint32 data and NumPy scalars as arrays, the only leaves Orbax knows."""

    def convert(leaf: Any) -> Any:
        if _is_key(leaf):
            if isinstance(leaf, jax.ShapeDtypeStruct):
                return jax.eval_shape(jax.random.key_data, leaf)
            return jax.random.key_data(leaf)
        return np.asarray(leaf) if isinstance(leaf, np.generic) else leaf

    return jax.tree.map(convert, state)


def _abstract(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is None:
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device)
    return leaf


def _as_before(like: Any, leaf: Any) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(jnp.empty((), like.dtype)))
    return like.dtype.type(leaf) if isinstance(like, np.generic) else leaf


def _layout(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" if hasattr(leaf, "shape") else "one number"


def _name(path: tuple[Any, ...]) -> str:
    """A leaf's name that is the same for dataclasses and for the dictionaries that Orbax makes of them."""
    parts = [getattr(entry, "name", getattr(entry, "key", getattr(entry, "idx", entry))) for entry in path]
    return ".".join(map(str, parts))
