"""What environments return, checked and made plain, in the worker that runs them. Needs the standard library only."""

import inspect
from collections.abc import Sequence
from typing import Any

from agentrl_jax.environments.protocol import HostStep
from agentrl_jax.errors import shortened, text_flaw

LARGEST_FLOAT = 3.4028234663852886e38
"""The largest float32."""

LONGEST_TEXT = 2**20
"""Characters of an observation that are kept; nothing reads more."""


class WrongReturn(TypeError):
    """A method returned what the protocol does not allow; the message names class and method, and both types."""


def text(found: Any, where: str) -> str:
    """An observation that `where`, such as `Guess.reset`, returned; `WrongReturn` if it is none."""
    if not isinstance(found, str):
        raise WrongReturn(f"{where} returned {_described(found)}; expected text{_hint(found)}")
    if (flaw := text_flaw(found)) and flaw != "a NUL character":
        raise WrongReturn(f"{where} returned a text with {flaw}; expected Unicode text")
    return found[:LONGEST_TEXT]


def step(found: Any, where: str, info_keys: Sequence[str]) -> HostStep:
    """The result of a step, with plain Python values; `WrongReturn` if it is none."""
    if not isinstance(found, HostStep):
        raise WrongReturn(f"{where} returned {_described(found)}; expected a HostStep{_hint(found)}")
    unknown = [name for name in found.info if name not in info_keys]
    if unknown:
        raise WrongReturn(f"{where} returned info {', '.join(map(str, unknown))}; add the names to info_keys")
    terminated = flag(found.terminated, f"{where}: terminated")
    return HostStep(
        text(found.observation, f"{where}: observation"),
        reward=number(found.reward, f"{where}: reward"),
        terminated=terminated,
        truncated=flag(found.truncated, f"{where}: truncated") and not terminated,
        success=flag(found.success, f"{where}: success"),
        valid=flag(found.valid, f"{where}: valid"),
        info={name: number(value, f"{where}: info {name}") for name, value in found.info.items()},
    )


def number(value: Any, where: str) -> float:
    """A finite number that float32 holds, of Python or of NumPy."""
    plain = _plain(value)
    if isinstance(plain, bool | int | float) and abs(plain) <= LARGEST_FLOAT:
        return float(plain)
    raise WrongReturn(f"{where} is {_described(value)}; expected a finite number")


def flag(value: Any, where: str) -> bool:
    """A flag, of Python or of NumPy, or 0 or 1."""
    plain = _plain(value)
    if isinstance(plain, bool | int) and plain in (0, 1):
        return bool(plain)
    raise WrongReturn(f"{where} is {_described(value)}; expected True or False")


def _plain(value: Any) -> Any:
    """NumPy's scalars and arrays of one number as Python's; others as they are."""
    if (
        type(value).__module__.partition(".")[0] in ("numpy", "torch", "jaxlib", "jax")
        and getattr(value, "size", 1) == 1
    ):
        return value.item()
    return value


def _described(value: Any) -> str:
    return f"{type(value).__name__} {shortened(repr(value))}"


def _hint(found: Any) -> str:
    if inspect.iscoroutine(found):
        found.close()
        return "; the method is async, and must not be"
    if isinstance(found, tuple):
        return "; Gymnasium's environments return tuples: write HostStep(observation, reward=..., terminated=...)"
    return ""


def actions(found: Any, where: str) -> list[str]:
    """The actions that `where`, such as `Guess.plan`, returned; `WrongReturn` if they are none."""
    if isinstance(found, str) or not isinstance(found, Sequence) or not all(isinstance(name, str) for name in found):
        raise WrongReturn(f"{where} returned {_described(found)}; expected a sequence of texts")
    return list(found)
