"""Reads a folder of safetensors files piece by piece directly into sharded arrays. `safetensors_out` writes it."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from agentrl_jax.models.io.config_fields import shown
from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.models.io.local_files import member, parse_json, read_json
from agentrl_jax.models.io.names import TIED_HEAD, check_shapes, leaves
from agentrl_jax.models.io.stacked import Placement, load_leaves, numpy_dtype
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
        odd = [f"{key} is {part.get_dtype()}" for key, part in self._slices.items() if part.get_dtype() not in _FLOATS]
        if odd:
            listed = "; ".join(odd[:6]) + (f" and {len(odd) - 6} more" if len(odd) > 6 else "")
            raise WeightsError(
                f"{where}: {listed}; expected {', '.join(_FLOATS)}; use the weights before they were quantized"
            )

    def read(self, key: str, index: tuple[slice, ...]) -> np.ndarray:
        """The slice `index` of tensor `key`."""
        try:
            return self._slices[key][index]
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{self.where}: {key} cannot be read ({error}); download it again") from error


@contextlib.contextmanager
def open_files(
    folder: Path, files: Iterable[str], index: Mapping[str, str] | None = None
) -> Iterator[SafetensorsFiles]:
    """Opens files of a folder.

    Args:
        folder: the folder.
        files: names of the files.
        index: file name of each tensor, if there is an index: then the files must contain exactly these tensors.

    Raises:
        WeightsError: a file is damaged, or disagrees with the index.
    """
    names = sorted(files)
    handles: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        for name, path in [(name, member(folder, name)) for name in names]:  # check all names before reading any file
            if not path.is_file():
                raise WeightsError(
                    f"{path}: no such file, although the model has a part of this name; download it again"
                )
            _refuse_repeated_keys(path)
            try:
                handle = stack.enter_context(safe_open(path, framework="numpy"))
                held = sorted(handle.keys())
            except (SafetensorError, OSError, ValueError) as error:
                raise WeightsError(
                    f"{path}: no whole safetensors file ({str(error)[:200]}); download it again"
                ) from error
            listed = held if index is None else [key for key, place in index.items() if place == name]
            differ = set(held).symmetric_difference(listed)
            if differ:
                some = ", ".join(sorted(differ)[:6])
                raise WeightsError(f"{path}: differs from the index in {some}; use the files of one download")
            handles |= dict.fromkeys(held, handle)
        yield SafetensorsFiles(str(folder / names[0]) if len(names) == 1 else str(folder), handles)


def _refuse_repeated_keys(path: Path) -> None:
    """Checks for the one header fault that the library accepts: two tensors with the same name."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_HEADER_BYTES, path.stat().st_size - 8):
                raise WeightsError(f"{path}: no whole safetensors file (its header would be of {length} bytes)")
            parse_json(file.read(length), f"{path}, its header")
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error


def load_folder(folder: Path, config: DecoderConfig, *, dtype: Any, placement: Placement) -> dict[str, Any]:
    """The decoder's parameters from `model.safetensors`, or from the files in `model.safetensors.index.json`.

    Every tensor is used exactly once. Two others are accepted: `lm_head.weight` with tied embeddings, which must equal
    the embedding, and `rotary_emb.inv_freq` in old files, which is not read.

    Args:
        folder: the folder.
        config: shape of the decoder.
        dtype: dtype of the parameters: float32, bfloat16 or float16.
        placement: sharding of the parameters, see `stacked.Placement`.

    Returns:
        Parameters in the form of `decoder.init_params`.

    Raises:
        WeightsError: a file is missing, damaged, or does not fit the configuration.
    """
    wanted = leaves(config, "hf")
    with open_files(folder, *_parts(folder)) as tensors:
        expected = {key: leaf.file_shape for leaf in wanted.values() for key in leaf.keys}
        harmless = {key for key in tensors.shapes if _BUFFER.fullmatch(key)}
        tied = config.tied_embeddings and TIED_HEAD in tensors.shapes
        if tied:
            expected[TIED_HEAD] = wanted["embedding"].file_shape
        check_shapes(expected, tensors.shapes, tensors.where, harmless)
        if tied:
            _refuse_unless_equal(tensors, wanted["embedding"].keys[0], TIED_HEAD)
        return load_leaves(tensors, wanted, numpy_dtype(dtype), placement, config)


def _parts(folder: Path) -> tuple[list[str], dict[str, str] | None]:
    """Names of the files with the weights, and the index if there is one."""
    single, index = member(folder, SINGLE), member(folder, INDEX)
    if single.is_file():
        return [SINGLE], None
    if not index.is_file():
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        hint = f"{pickled[0]} is a pickle, which is never read: save it as safetensors" if pickled else "give another"
        raise WeightsError(f"{folder}: holds neither {SINGLE} nor {INDEX}; {hint}")
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise WeightsError(f"{index}: weight_map is {shown(files)}; expected file names by tensor")
    return list({*files.values()}), files


def _refuse_unless_equal(tensors: SafetensorsFiles, key: str, other: str) -> None:
    rows, width = tensors.shapes[key]
    step = max(1, 2**24 // width)
    for start in range(0, rows, step):
        part = (slice(start, min(start + step, rows)), slice(0, width))
        if not np.array_equal(tensors.read(key, part), tensors.read(other, part)):
            raise WeightsError(
                f"{tensors.where}: {other} differs from {key} although the configuration ties them; set "
                "tie_word_embeddings to false in config.json, or remove the wrong one of the two"
            )
