"""Base class of configuration sections, and types of their values."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field
from pydantic.fields import FieldInfo

LARGEST = 3e38  # about what float32 holds

Count = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[int, Field(ge=1, lt=2**31)]
Size = Annotated[int, Field(ge=1, le=2**20)]
NonNegative = Annotated[float, Field(ge=0.0, le=LARGEST, allow_inf_nan=False)]
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0.0, le=LARGEST, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
Placement = Literal["episode", "turn"]

TRACED = "traced"
"""Marks a number that the compiled update takes as an argument, so that a new value does not recompile it."""


class Section(BaseModel):
    """A section of the configuration: frozen, without unknown keys. The string below a field is its help text."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with other values, which are not checked; raises TypeError if there is no such field."""
        unknown = changes.keys() - type(self).model_fields.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {sorted(unknown)[0]}")
        return self.model_copy(update=changes)

    def traced(self) -> dict[str, float]:
        """The numbers that the compiled update takes as arguments, by name."""
        return {
            name: getattr(self, name) for name, field in type(self).model_fields.items() if TRACED in field.metadata
        }

    def untraced(self) -> Self:
        """A copy with None for the traced numbers, so that nothing reads them by mistake."""
        return self.model_copy(update=dict.fromkeys(self.traced()))


class _HasNeeds(Protocol):
    @property
    def needs(self) -> tuple[str, ...]: ...


class Needs:
    """Properties of advantage estimators, from what each `needs`."""

    @property
    def has_critic(self: _HasNeeds) -> bool:
        """Uses a critic's values, so a critic is trained."""
        return "critic" in self.needs

    @property
    def per_group(self: _HasNeeds) -> bool:
        """Needs at least two members per group."""
        return "groups" in self.needs

    @property
    def has_greedy(self: _HasNeeds) -> bool:
        """Needs a greedy episode of each group."""
        return "greedy" in self.needs

    @property
    def rules(self) -> tuple[Any, ...]:
        """The estimators of a sum; else itself."""
        return (self,)

    @property
    def of_critic(self) -> str:
        """Where in the traced numbers those of the estimator with a critic are."""
        return ""

    @property
    def by_observation(self) -> bool:
        """Takes turns with the same observation for turns in the same state."""
        return getattr(self, "anchor", "state") == "observation"


OWN = "module:function"
"""Stands for the kinds of the user where kinds are listed."""


def is_own(kind: Any) -> bool:
    """Whether a kind is a function of the user."""
    return isinstance(kind, str) and ":" in kind


def _tag(value: Any) -> Any:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return OWN if is_own(kind) else kind


BY_KIND = Discriminator(_tag)
"""Of a union of sections with tags, their kinds, one of which is `OWN`."""


def out_of_bounds(field: FieldInfo, value: float) -> str:
    """The bound of a number that a value breaks, in words; empty if it breaks none."""
    bounds = (
        ("ge", "at least", lambda bound: value >= bound),
        ("gt", "more than", lambda bound: value > bound),
        ("le", "at most", lambda bound: value <= bound),
        ("lt", "less than", lambda bound: value < bound),
    )
    for each in field.metadata:
        for name, words, kept in bounds:
            bound = getattr(each, name, None)
            if bound is not None and not kept(bound):
                return f"expected {words} {bound:.10g}"
    return ""
