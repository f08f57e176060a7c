"""Parts of the reward: a union, discriminated by `kind`; their functions are in `rollout.returns`.

In a file they are a mapping from names; a part without a kind has its name as its kind.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from agentrl_jax.config.fields import BY_KIND, OWN, TRACED, Finite, Name, Section, Share, Text
from agentrl_jax.config.own import OwnKind

MOST_PARTS = 16


class _Part(Section):
    """Fields of all parts."""

    weight: Annotated[Finite, TRACED] = 1.0
    """Factor on the part; below 0 it is a cost."""
    tasks: tuple[Text, ...] = ()
    """Labels of the tasks that have the part; empty: all."""


class Environment(_Part):
    """The reward of the environment. Without this part it has weight 1."""

    kind: Literal["environment"] = "environment"


class Success(_Part):
    """1 in the turn that solves the task."""

    kind: Literal["success"] = "success"


class Format(_Part):
    """1 in a turn whose response has a format error."""

    kind: Literal["format"] = "format"


class Overlong(_Part):
    """How far a response reaches into the last share of prompt.max_response_tokens, from 0 to 1 (DAPO)."""

    kind: Literal["overlong"] = "overlong"
    buffer: Annotated[Share, TRACED] = 0.2
    """That share."""


class Tokens(_Part):
    """Number of tokens of a response."""

    kind: Literal["tokens"] = "tokens"


class Turns(_Part):
    """1 in every turn."""

    kind: Literal["turns"] = "turns"


class Truncated(_Part):
    """1 in the last turn of an episode that is truncated."""

    kind: Literal["truncated"] = "truncated"


class Cut(_Part):
    """1 in a turn whose response has prompt.max_response_tokens tokens and was not ended by the policy."""

    kind: Literal["cut"] = "cut"


class Info(_Part):
    """A number that the environment tells about a turn."""

    kind: Literal["info"] = "info"
    key: Text
    """Its name."""


class OwnPart(OwnKind, _Part):
    """A function of the user."""


RewardPart = Annotated[
    Annotated[Environment, Tag("environment")]
    | Annotated[Success, Tag("success")]
    | Annotated[Format, Tag("format")]
    | Annotated[Overlong, Tag("overlong")]
    | Annotated[Tokens, Tag("tokens")]
    | Annotated[Turns, Tag("turns")]
    | Annotated[Truncated, Tag("truncated")]
    | Annotated[Cut, Tag("cut")]
    | Annotated[Info, Tag("info")]
    | Annotated[OwnPart, Tag(OWN)],
    BY_KIND,
]


RewardParts = Annotated[dict[Name, RewardPart], Field(max_length=MOST_PARTS)]


def with_kinds(data: dict[str, Any]) -> dict[str, Any]:
    """A configuration whose parts of the reward and metrics have their kinds.

    A text is the kind, and a part of the reward without a kind has its name as its kind.
    """
    for section, key in (("algo", "rewards"), ("train", "metrics")):
        below = data.get(section)
        named = below.get(key) if isinstance(below, Mapping) else None
        if isinstance(below, Mapping) and isinstance(named, Mapping):
            parts = {name: {"kind": part} if isinstance(part, str) else part for name, part in named.items()}
            if key == "rewards":
                parts = {n: {"kind": n, **part} if isinstance(part, Mapping) else part for n, part in parts.items()}
            data = {**data, section: {**below, key: parts}}
    return data
