"""What sections of a configuration are made of: their base class, and numbers with their ranges."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

LARGEST = 3e38  # about what float32 holds

Count = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[int, Field(ge=1, lt=2**31)]
Size = Annotated[int, Field(ge=1, le=2**20)]
NonNegative = Annotated[float, Field(ge=0.0, le=LARGEST, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0.0, le=LARGEST, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
Discount = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]

TRACED = "traced"
"""Marks a number that the compiled update takes as an argument, so that another value needs no new program."""


class Section(BaseModel):
    """A part of the tree: frozen, with no other keys than its own. Every field is explained by the text below it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def replace(self, **changes: Any) -> Self:
        """A copy with other values, which are not checked.

        Raises:
            TypeError: there is no field of that name.
        """
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
        """What fixes a program: a copy in which those numbers are None, so that nothing can read them by mistake."""
        return self.model_copy(update=dict.fromkeys(self.traced()))
