"""Compiled functions that are made once in a process, however many runs or evaluations ask for them."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import jax

from envs_jax.content import content_key

KEPT = 24
"""Functions that are kept; a run has up to about ten. The least recently used one goes first, with its machine code."""

_kept: OrderedDict[Hashable, Any] = OrderedDict()


def jit_once(function: Callable[..., Any], made_of: Any, **options: Any) -> Any:
    """Returns `jax.jit(function, **options)`, or the one that was made of the same parts before.

    `made_of` has everything by which functions with the same arguments may differ, see `content_key`, the options of
    `jax.jit` among it; with None, or a part that has no key, nothing is kept.
    """
    try:
        key = None if made_of is None else content_key(made_of)
    except TypeError:
        key = None
    if key is None:
        return jax.jit(function, **options)
    if key not in _kept:
        _kept[key] = jax.jit(function, **options)
    _kept.move_to_end(key)
    while len(_kept) > KEPT:
        _kept.popitem(last=False)
    return _kept[key]
