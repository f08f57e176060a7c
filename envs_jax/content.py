"""Keys of plain data, equal for equal content: so that what was compiled for an environment serves its equals."""

import dataclasses
import functools
import hashlib
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np


def content_key(value: Any) -> Hashable:
    """Returns a key that is equal for values of the same types and the same content.

    Arrays count by dtype, shape and bytes; dataclasses, sequences, mappings and `functools.partial` by their parts;
    anything else as itself, so that functions are equal only if they are the same one.

    Raises:
        TypeError: a part is neither of these nor hashable.
    """
    if value is None or isinstance(value, str | int | float):  # first, because environments have hundreds of texts
        return type(value), value
    if isinstance(value, np.ndarray | jax.Array):
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        data = np.asarray(value)
        return np.ndarray, data.dtype.str, data.shape, hashlib.sha256(data.tobytes()).digest()
    if isinstance(value, functools.partial):
        return functools.partial, content_key((value.func, value.args, value.keywords))
    if isinstance(value, dict):
        return dict, tuple((content_key(key), content_key(part)) for key, part in value.items())
    if isinstance(value, tuple | list):
        return type(value), tuple(map(content_key, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = tuple(content_key(getattr(value, field.name)) for field in dataclasses.fields(value))
        return type(value), parts
    hash(value)
    return type(value), value
