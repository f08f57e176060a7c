"""Base class of configuration sections, and types of their values."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

LARGEST = 3e38  # about what float32 holds

Count = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[int, Field(ge=1, lt=2**31)]
Size = Annotated[int, Field(ge=1, le=2**20)]
NonNegative = Annotated[float, Field(ge=0.0, le=LARGEST, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0.0, le=LARGEST, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Text = Annotated[str, Field(min_length=1)]

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

    def static(self) -> Self:
        """A copy with None for the traced numbers, so that nothing reads them by mistake."""
        return self.model_copy(update=dict.fromkeys(self.traced()))
