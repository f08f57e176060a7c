"""Reads GGUF files, the settings and tensors in them, with the package `gguf` and added bounds checks.

`gguf.GGUFReader` trusts every count in the file: past the end of a truncated file it reads empty data without end. All
its reads go through `_get`, which checks each of them against the size of the file.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.errors import BadValue, shortened
from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.models.shape import DecoderConfig

TENSOR_TYPES = ("F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "BF16")
"""Supported tensor types."""

_MAX_READS = 2**21
"""Largest number of values in a header, twice that of the largest known vocabulary; each takes memory and time."""


@dataclasses.dataclass
class GgufFile:
    """An open GGUF file; its tensors have the layout of Hugging Face, see `stacked.Tensors`."""

    where: str
    """Path of the file."""
    metadata: dict[str, Any]
    tensors: dict[str, Any]
    """`gguf.ReaderTensor` by name. Their memory-mapped `data` has the slowest axis first."""
    reordered: DecoderConfig | None = None
    """The decoder, if its query and key rows have llama.cpp's order, which pairs 2i and 2i + 1, not i and i + Dh/2."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor by name."""
        return {name: tuple(tensor.shape.tolist()[::-1]) for name, tensor in self.tensors.items()}

    def read(self, key: str, index: tuple[slice, ...]) -> np.ndarray:
        """The slice `index` of tensor `key`, f32."""
        import gguf

        tensor = self.tensors[key]
        rows, kind = np.arange(int(tensor.shape[-1])), key.split(".")[-2]
        if self.reordered and kind in ("attn_q", "attn_k"):
            heads = self.reordered.num_heads if kind == "attn_q" else self.reordered.num_kv_heads
            rows = rows.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
        rows = rows[index[0]]
        with np.errstate(all="ignore"):  # a damaged file may contain any number
            if len(tensor.shape) == 1:  # only a complete row can be dequantized
                return gguf.dequantize(np.ascontiguousarray(tensor.data), tensor.tensor_type)[rows]
            return gguf.dequantize(np.ascontiguousarray(tensor.data[rows]), tensor.tensor_type)[:, index[1]]


def open_gguf(path: Path) -> GgufFile:
    """Reads everything except the values of the tensors."""
    try:
        import gguf
    except ImportError as error:
        raise WeightsError.at(path, "needs the package gguf; pip install 'gguf>=0.17'") from error

    class Reader(gguf.GGUFReader):
        reads = 0

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> np.ndarray:
            self.reads += 1
            end = int(offset) + np.dtype(dtype).itemsize * int(count)
            if end > len(self.data):
                raise BadValue("it is shorter than its header says", key="header")
            if self.reads > _MAX_READS:
                raise BadValue(f"its header has more than {_MAX_READS} parts", key="header")
            part = self.data.view(np.ndarray)[int(offset) : end].view(dtype)  # slices of a memmap are slow
            return part.view(part.dtype.newbyteorder(override_order or self.byte_order))

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == gguf.GGUFValueType.ARRAY:  # an array of numbers, which the library reads one by one
                kind, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
                number = self.gguf_scalar_to_np.get(gguf.GGUFValueType(kind[0]))
                if number is not None:
                    values = self._get(orig_offs + 12, number, count[0])
                    types = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind[0])]
                    return 12 + values.nbytes, [kind, count, values], [2], types
            return super()._get_field_parts(orig_offs, raw_type)

        def _get_tensor_info_field(self, orig_offs: int) -> Any:
            field = super()._get_tensor_info_field(orig_offs)
            shape = field.parts[3].tolist()
            # The library multiplies without checking for overflow; no type has more than 8 numbers per byte.
            if not 1 <= len(shape) <= 4 or not 1 <= math.prod(shape) <= 8 * len(self.data):
                raise BadValue(
                    f"tensor {shortened(repr(field.name))} has shape {shape[::-1][:4]}", key="tensor", value=field.name
                )
            return field

    if not path.is_file():
        raise WeightsError.at(path, "no such file")
    try:
        with np.errstate(over="raise"):
            reader = Reader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    except OSError as error:
        raise WeightsError.at(path, f"cannot be read ({error.strerror}); check its permissions") from error
    except (ValueError, LookupError, ArithmeticError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise WeightsError.at(
            path, f"not a complete GGUF file, version 2 or 3 ({reason}); download it again"
        ) from error
    if reader.endianess != gguf.GGUFEndian.LITTLE:
        raise WeightsError.at(path, "is in big-endian order; convert it again in little-endian order")
    if nested := [name for name, field in reader.fields.items() if len(field.types) > 2]:
        raise WeightsError.at(
            path, f"setting {shortened(repr(nested[0]))} is a list of lists; expected numbers or text"
        )
    end = reader.data_offset
    for tensor in sorted(reader.tensors, key=lambda tensor: tensor.data_offset):
        if tensor.tensor_type.name not in TENSOR_TYPES:
            raise WeightsError.at(
                path,
                f"tensor {shortened(repr(tensor.name))} has type {tensor.tensor_type.name}; expected "
                f"{', '.join(TENSOR_TYPES)}; use another quantization",
            )
        if tensor.data_offset < end or tensor.data_offset % reader.alignment:
            raise WeightsError.at(
                path, f"tensor {shortened(repr(tensor.name))} overlaps another one; download it again"
            )
        end = tensor.data_offset + tensor.n_bytes
    return GgufFile(str(path), metadata, {tensor.name: tensor for tensor in reader.tensors})
