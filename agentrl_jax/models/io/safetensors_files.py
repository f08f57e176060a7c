"""Reads and writes folders of safetensors files as Hugging Face's libraries do, from and to sharded arrays."""

import contextlib
import json
import math
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from agentrl_jax.errors import shortened
from agentrl_jax.models.io.errors import WeightsError, naming
from agentrl_jax.models.io.local_files import parse_json, path_inside, read_json
from agentrl_jax.models.io.names import TIED_HEAD, Leaf, check_shapes, file_shapes, leaves, some_of
from agentrl_jax.models.io.stacked import Placement, load_leaves, not_finite, numpy_dtype
from agentrl_jax.models.shape import DecoderConfig

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_HEADER_BYTES = 16 * 2**20
"""Largest header that is read, in bytes; that of a model with a thousand layers takes 2 MB."""

_FLOATS = ("F32", "F16", "BF16")
_BUFFER = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Rotary frequencies in old Llama files; they follow from the configuration."""


class SafetensorsFiles:
    """Tensors of one or several open files; see `stacked.Tensors`."""

    def __init__(self, where: str, handles: Mapping[str, Any]):
        self.where = where
        self._slices = {key: handle.get_slice(key) for key, handle in handles.items()}
        self.shapes = {key: tuple(part.get_shape()) for key, part in self._slices.items()}
        dtypes = {key: part.get_dtype() for key, part in self._slices.items()}
        if others := [f"{key} is {dtype}" for key, dtype in dtypes.items() if dtype not in _FLOATS]:
            raise WeightsError.at(where, f"{some_of(others)}; expected {', '.join(_FLOATS)}; use unquantized weights")

    def read(self, key: str, index: tuple[slice, ...]) -> np.ndarray:
        """The slice `index` of tensor `key`."""
        try:
            return self._slices[key][index]
        except (SafetensorError, OSError) as error:
            raise WeightsError.at(self.where, f"{key} cannot be read ({error}); download it again") from error


@contextlib.contextmanager
def open_files(
    folder: Path, files: Iterable[str], index: Mapping[str, str] | None = None
) -> Iterator[SafetensorsFiles]:
    """Opens files of a folder by name; with an `index` (file names by tensor) they contain exactly its tensors."""
    paths = [path_inside(folder, name) for name in sorted(files)]
    handles: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        for path in paths:
            if not path.is_file():
                raise WeightsError.at(path, "no such file, although it is a part of the model; download it again")
            _refuse_repeated_keys(path)
            try:
                handle = stack.enter_context(safe_open(path, framework="numpy"))
                keys = sorted(handle.keys())
            except (SafetensorError, OSError, ValueError) as error:
                reason = str(error)[:200]
                raise WeightsError.at(path, f"not a complete safetensors file ({reason}); download it again") from error
            listed = keys if index is None else [key for key, name in index.items() if name == path.name]
            if differ := set(keys).symmetric_difference(listed):
                some = ", ".join(sorted(differ)[:6])
                raise WeightsError.at(path, f"differs from the index in {some}; use the files of one download")
            handles |= dict.fromkeys(keys, handle)
        yield SafetensorsFiles(str(paths[0] if len(paths) == 1 else folder), handles)


def _refuse_repeated_keys(path: Path) -> None:
    """Checks for the one header fault that the library accepts: two tensors with the same name."""
    with naming(path), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_HEADER_BYTES, path.stat().st_size - 8):
            raise WeightsError.at(path, f"not a complete safetensors file (length of its header: {length} bytes)")
        parse_json(file.read(length), f"{path}, its header")


def load_folder(folder: Path, config: DecoderConfig, *, dtype: Any, placement: Placement) -> dict[str, Any]:
    """The decoder's parameters, in the form of `decoder.init_params`, from `model.safetensors` or the indexed files.

    Every tensor is used exactly once. Two others are accepted: `lm_head.weight` with tied embeddings, which must equal
    the embedding, and `rotary_emb.inv_freq` in old files, which is not read.
    """
    wanted = leaves(config, "hf")
    with open_files(folder, *_parts(folder)) as tensors:
        tied = config.tied_embeddings and TIED_HEAD in tensors.shapes
        expected = file_shapes(wanted) | ({TIED_HEAD: wanted["embedding"].file_shape} if tied else {})
        check_shapes(expected, tensors.shapes, tensors.where, set(filter(_BUFFER.fullmatch, tensors.shapes)))
        if tied:
            _refuse_unless_equal(tensors, wanted["embedding"].keys[0], TIED_HEAD)
        return load_leaves(tensors, wanted, numpy_dtype(dtype), placement, config)


def _parts(folder: Path) -> tuple[list[str], dict[str, str] | None]:
    """Names of the files with the weights, and the index if there is one."""
    index = path_inside(folder, INDEX)
    if path_inside(folder, SINGLE).is_file():
        return [SINGLE], None
    if not index.is_file():
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        hint = f"{pickles[0]} is a pickle, which is never read: save it as safetensors" if pickles else "give another"
        raise WeightsError.at(folder, f"contains neither {SINGLE} nor {INDEX}; {hint}")
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise WeightsError.at(index, f"weight_map is {shortened(repr(files))}; expected file names by tensor")
    return list({*files.values()}), files


def _refuse_unless_equal(tensors: SafetensorsFiles, key: str, other: str) -> None:
    rows, columns = tensors.shapes[key]
    step = max(1, 2**24 // columns)
    for start in range(0, rows, step):
        part = (slice(start, min(start + step, rows)), slice(0, columns))
        if not np.array_equal(tensors.read(key, part), tensors.read(other, part)):
            raise WeightsError.at(
                tensors.where,
                f"{other} differs from {key} although the configuration ties them; set "
                "tie_word_embeddings to false in config.json, or remove the wrong one of the two",
            )


def refuse_nonempty(folder: Path) -> None:
    """Refuses a path that exists, unless it is an empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WeightsError.at(folder, "exists and is not an empty folder; give a new folder")


@contextlib.contextmanager
def atomic_folder(folder: Path, files: Mapping[str, bytes], settings: Mapping[str, Any]) -> Iterator[Path]:
    """A temporary folder, which is renamed to `folder` on success and deleted otherwise.

    Files are added to it: `files` by name, such as the tokenizer's, and `settings` by the name of a JSON file.
    """
    temporary = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.unfinished"
    try:
        refuse_nonempty(folder)
        temporary.mkdir(parents=True)
        yield temporary
        for name, content in files.items():
            path_inside(temporary, name).write_bytes(content)
        for name, values in settings.items():
            write_json(temporary / name, values)
        temporary.replace(folder)
    except OSError as error:
        reason = f"cannot be written ({error.strerror}), expected a writable folder; give another path"
        raise WeightsError.at(folder, f"{reason}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON file."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def checked_arrays(params: dict[str, Any], wanted: Mapping[str, Leaf], where: str) -> dict[str, Any]:
    """Arrays of nested dictionaries by path, such as `layers/query`, with the paths and shapes of `wanted`."""
    arrays = flatten_dict(params, sep="/")
    expected = {path: leaf.shape for path, leaf in wanted.items()}
    check_shapes(expected, {path: array.shape for path, array in arrays.items()}, where)
    return arrays


def file_tensor(leaf: Leaf, array: Any, number: int, dtype: np.dtype) -> np.ndarray:
    """The tensor that a file stores under `leaf.keys[number]`, on the host."""
    values = np.asarray(array[number] if leaf.stacked else array)
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray((values.T if leaf.transposed else values).astype(dtype))
    if not np.isfinite(cast).all():
        raise WeightsError(f"{leaf.keys[number]} {not_finite(values, dtype)}", key=leaf.keys[number])
    return cast


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes a safetensors file in a new folder."""
    try:
        save_file(tensors, path, metadata={"format": "pt"})  # transformers refuses files without it
    except SafetensorError as error:  # the library's form of a full disk
        raise WeightsError.at(path, f"cannot be written ({shortened(error)}); give a folder with more space") from error
    path.chmod(path.parent.stat().st_mode & 0o666)  # the library makes files readable by their owner only


def write_weights(
    folder: Path, arrays: Mapping[str, Any], wanted: Mapping[str, Leaf], dtype: np.dtype, shard_bytes: int
) -> None:
    """Writes the arrays of a decoder as one safetensors file, or as several of at most `shard_bytes` with an index."""
    from huggingface_hub import split_state_dict_into_shards_factory  # only needed here

    single = [(path, 0) for path, leaf in wanted.items() if not leaf.stacked]
    stacked = [(i, path) for path, leaf in wanted.items() if leaf.stacked for i in range(len(leaf.keys))]
    by_layer = [*single[:1], *((path, i) for i, path in sorted(stacked)), *single[1:]]
    tensors = {wanted[path].keys[i]: (wanted[path], arrays[path], i) for path, i in by_layer}
    split = split_state_dict_into_shards_factory(
        tensors,
        get_storage_size=lambda tensor: math.prod(tensor[0].file_shape) * dtype.itemsize,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    for name, keys in split.filename_to_tensors.items():
        write_tensors(folder / name, {key: file_tensor(*tensors[key], dtype) for key in keys})
    if split.is_sharded:
        write_json(folder / INDEX, {"metadata": split.metadata, "weight_map": split.tensor_to_filename})
