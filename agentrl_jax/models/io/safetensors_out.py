"""Writes a model as a folder that Hugging Face's libraries can read, completely or not at all."""

import contextlib
import json
import math
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.models.io.hf_config import PretrainedConfig
from agentrl_jax.models.io.hf_config_out import written_config
from agentrl_jax.models.io.local_files import member
from agentrl_jax.models.io.names import Leaf, check_shapes, leaves
from agentrl_jax.models.io.safetensors_files import INDEX
from agentrl_jax.models.io.stacked import numpy_dtype

SHARD_BYTES = 4 * 2**30


def save_folder(
    folder: Path,
    params: Any,
    config: PretrainedConfig,
    *,
    files: Mapping[str, bytes] | None = None,
    dtype: Any = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes a model in Hugging Face's format: weights, `config.json` and additional files.

    The folder is written completely or not at all: it is written next to its final path and then renamed.

    Args:
        folder: must not exist, or be empty.
        params: the decoder's parameters, in the form of `decoder.init_params`.
        config: configuration of the decoder.
        files: content of additional files by name, such as the tokenizer's.
        dtype: dtype of the file: float32, bfloat16 or float16; None: that of the embedding.
        shard_bytes: larger weights are split over several files of at most this many bytes each, unless a single tensor
            is larger. As much host memory is needed.

    Raises:
        WeightsError: the parameters do not fit the configuration, or the folder cannot be written.
    """
    kept = numpy_dtype(params["embedding"].dtype if dtype is None else dtype)
    wanted = leaves(config.decoder, "hf")
    given = flatten(params)
    check_shapes(
        {path: leaf.shape for path, leaf in wanted.items()},
        {path: array.shape for path, array in given.items()},
        f"{folder}: the parameters",
    )
    raw = written_config(config, dtype=kept.name)
    with whole_folder(folder) as place:
        _write_weights(place, given, wanted, kept, shard_bytes)
        write_files(place, files or {})
        (place / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")


def refuse_taken(folder: Path) -> None:
    """Refuses a path that exists, unless it is an empty folder.

    Raises:
        WeightsError: the path exists and is not an empty folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WeightsError(f"{folder}: already holds something; give a new folder")


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder, which is renamed to `folder` on success and deleted otherwise."""
    place = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.unfinished"
    try:
        refuse_taken(folder)
        place.mkdir(parents=True)
        yield place
        place.replace(folder)
    except OSError as error:
        raise WeightsError(
            f"{folder}: cannot be written ({error.strerror}), expected where a folder can be made; give another"
        ) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Arrays of nested mappings by path, such as `layers/query`."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def file_tensor(leaf: Leaf, array: Any, slot: int, dtype: np.dtype) -> np.ndarray:
    """The tensor that a file stores under `leaf.keys[slot]`, on the host.

    Raises:
        WeightsError: a finite value is beyond the range of `dtype`.
    """
    values = np.asarray(array[slot] if leaf.stacked else array)
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray((values.T if leaf.transposed else values).astype(dtype))
    if dtype == np.float16 and not np.isfinite(made).all():
        raise WeightsError(f"{leaf.keys[slot]} has values beyond float16; save it as float32 or bfloat16")
    return made


def write_files(place: Path, files: Mapping[str, bytes]) -> None:
    """Writes files into a new folder; `files` maps names to contents."""
    for name, content in files.items():
        member(place, name).write_bytes(content)


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes a safetensors file in a new folder."""
    save_file(tensors, path, metadata={"format": "pt"})  # transformers refuses files without it
    path.chmod(path.parent.stat().st_mode & 0o666)  # the library makes files readable by their owner only


def _write_weights(
    place: Path, given: Mapping[str, Any], wanted: Mapping[str, Leaf], dtype: np.dtype, shard_bytes: int
) -> None:
    from huggingface_hub import split_state_dict_into_shards_factory  # only needed here

    single = [(path, 0) for path, leaf in wanted.items() if not leaf.stacked]
    stacked = [(i, path) for path, leaf in wanted.items() if leaf.stacked for i in range(len(leaf.keys))]
    by_layer = [*single[:1], *((path, i) for i, path in sorted(stacked)), *single[1:]]
    tensors = {wanted[path].keys[i]: (wanted[path], given[path], i) for path, i in by_layer}
    split = split_state_dict_into_shards_factory(
        tensors,
        get_storage_size=lambda tensor: math.prod(tensor[0].file_shape) * dtype.itemsize,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    for name, keys in split.filename_to_tensors.items():
        write_tensors(place / name, {key: file_tensor(*tensors[key], dtype) for key in keys})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (place / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
