"""The protocol of environments in Python. Needs the standard library only, so that a user's file can import it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True)
class HostStep:
    """Result of one step of a Python environment."""

    observation: str
    """Text that the agent reads next."""
    reward: float = 0.0
    """Of this turn, finite."""
    terminated: bool = False
    truncated: bool = False
    """A limit of the environment was reached before a terminal state; ignored with `terminated`."""
    success: bool = False
    valid: bool = True
    """The response named an action; otherwise it counts as a format error."""
    info: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Finite numbers for metrics; names are among the declared `info_keys`, and missing ones are 0."""


class HostEnvironment(Protocol):
    """One episode of a Python environment. All of its methods run in one worker, from its construction to `close`.

    An exception, a late answer or a wrong return value ends this episode as failed; other episodes continue. A class
    of environments may have the attributes of `Traits`, and these methods:

    * `plan(self) -> Sequence[str]`: actions that solve the episode from its current state, by their names.
    * `content(item) -> str`, static: what an item or a seed is about; equal contents are one level.
    """

    def reset(self, seed: int) -> str:
        """Starts the episode and returns the first observation; everything random comes from `seed`.

        0 <= seed < 2**31; where the class has `items`, it is the number of an item. Members of a group get the same
        seed and must return the same text, since they share its prefill. Nothing of an earlier episode is left.
        """
        ...

    def step(self, response: str, actions: Sequence[str]) -> HostStep:
        """Executes one turn.

        `response` is everything the agent has written, tags included. `actions` are the known actions by their declared
        names, or, where none are declared, the answer's items as written: none for a response with a wrong format, and
        never more than the action budget left.
        """
        ...

    def close(self) -> None:
        """Called once when the episode ends or is abandoned."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traits:
    """What a class of Python environments says of itself in attributes of the same names; all are optional.

    Attributes:
        actions: names of the actions; without them an answer is free text.
        instruction: what the agent is told before the first observation.
        items: number of items, which `reset` then gets as its seed; 0 if every seed makes a level.
        splits: numbers of items by split: "train", "validation" and "test"; None to divide them by content or number.
        info_keys: names that `HostStep.info` may have.
        deterministic: equal seeds and responses give equal answers.
        reuse: an environment plays several episodes, one after the other, before it is closed.
        one_thread: all environments share one thread, for drivers that are bound to it.
        alone: an environment has a process for itself.
        has_plan: it has the method `plan`; found, not declared.
        has_content: it has the method `content`; found, not declared.
    """

    actions: tuple[str, ...] = ()
    instruction: str = ""
    items: int = 0
    splits: Mapping[str, Sequence[int]] | None = None
    info_keys: tuple[str, ...] = ()
    deterministic: bool = True
    reuse: bool = False
    one_thread: bool = False
    alone: bool = False
    has_plan: bool = False
    has_content: bool = False


SPLITS = ("train", "validation", "test")


def traits_of(kind: type[Any]) -> Traits:
    """Returns the traits of a class.

    Raises:
        TypeError: a trait has another type than its default, or a method of the protocol is missing.
    """
    name = kind.__qualname__
    missing = [method for method in ("reset", "step", "close") if not callable(getattr(kind, method, None))]
    if missing:
        raise TypeError(f"{name} has no method {' and no '.join(missing)}; see agentrl_jax.environments")
    found: dict[str, Any] = {}
    for field in dataclasses.fields(Traits):
        if field.name.startswith("has_"):
            found[field.name] = callable(getattr(kind, field.name.removeprefix("has_"), None))
            continue
        value = getattr(kind, field.name, field.default)
        if isinstance(field.default, tuple):
            if not isinstance(value, tuple | list) or not all(isinstance(entry, str) for entry in value):
                raise TypeError(f"{name}.{field.name} is {value!r}; expected a tuple of texts")
            value = tuple(value)
        elif field.name == "splits":
            value = None if value is None else _splits(name, value)
        elif type(value) is not type(field.default):
            raise TypeError(f"{name}.{field.name} is {value!r}; expected {type(field.default).__name__}")
        found[field.name] = value
    if found["items"] < 0 or (found["splits"] is not None and not found["items"]):
        raise TypeError(f"{name}.items is {found['items']}; expected the number of items, which splits divide")
    for split, numbers in (found["splits"] or {}).items():
        if wrong := [number for number in numbers if not 0 <= number < found["items"]]:
            raise TypeError(f"{name}.splits has {wrong[0]} in {split!r}; expected numbers below {found['items']}")
    return Traits(**found)


def _splits(name: str, value: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(value, Mapping) or not {"train", "test"} <= value.keys() <= set(SPLITS):
        raise TypeError(f"{name}.splits is {value!r}; expected numbers of items by 'train', 'test' and 'validation'")
    return {split: tuple(map(int, items)) for split, items in value.items()}
