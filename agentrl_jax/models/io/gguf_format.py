"""Reads the container of a GGUF file with the package `gguf`, with added bounds checks.

`gguf.GGUFReader` trusts every count in the file: past the end of a truncated file it reads empty data without end. All
its reads go through `_get`, which checks each of them against the size of the file.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.models.io.config_fields import shown
from agentrl_jax.models.io.errors import WeightsError

KINDS = ("F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "BF16")
"""Supported tensor types."""

_MOST_READS = 2**21
"""Largest number of values in a header, twice that of the largest known vocabulary; each takes memory and time."""


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """An open GGUF file.

    Attributes:
        path: the file.
        metadata: its settings by name.
        tensors: `gguf.ReaderTensor` by name. Their memory-mapped `data` has the slowest axis first.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Any]


def open_gguf(path: Path) -> GgufFile:
    """Reads everything except the values of the tensors.

    Raises:
        WeightsError: the file cannot be read, is truncated or not supported, or the package `gguf` is missing.
    """
    try:
        import gguf
    except ImportError as error:
        raise WeightsError(f"{path}: needs the package gguf; pip install 'gguf>=0.17'") from error

    class Reader(gguf.GGUFReader):
        reads = 0

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> np.ndarray:
            self.reads += 1
            end = int(offset) + np.dtype(dtype).itemsize * int(count)
            if end > len(self.data):
                raise ValueError("it is shorter than it says")
            if self.reads > _MOST_READS:
                raise ValueError(f"its header has more than {_MOST_READS} parts")
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
                raise ValueError(f"the tensor {shown(field.name)} is of shape {shape[::-1][:4]}")
            return field

    if not path.is_file():
        raise WeightsError(f"{path}: no such file")
    try:
        with np.errstate(over="raise"):
            reader = Reader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    except (ValueError, LookupError, ArithmeticError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise WeightsError(f"{path}: no whole GGUF file of version 2 or 3 ({reason}); download it again") from error
    if reader.endianess != gguf.GGUFEndian.LITTLE:
        raise WeightsError(f"{path}: is in big-endian order; convert it again in little-endian order")
    nested = [name for name, field in reader.fields.items() if len(field.types) > 2]
    if nested:
        raise WeightsError(f"{path}: the setting {shown(nested[0])} is a list of lists; expected numbers or text")
    end = reader.data_offset
    for tensor in sorted(reader.tensors, key=lambda tensor: tensor.data_offset):
        if tensor.tensor_type.name not in KINDS:
            raise WeightsError(
                f"{path}: tensor {shown(tensor.name)} is of kind {tensor.tensor_type.name}; expected "
                f"{', '.join(KINDS)}; use another quantization"
            )
        if tensor.data_offset < end or tensor.data_offset % reader.alignment:
            raise WeightsError(f"{path}: tensor {shown(tensor.name)} overlaps another one; download it again")
        end = tensor.data_offset + tensor.n_bytes
    return GgufFile(path, metadata, {tensor.name: tensor for tensor in reader.tensors})
