"""Types of the fields of a configuration: numbers with their ranges, as `pydantic` checks them."""

from typing import Annotated

from pydantic import ConfigDict, Field

STRICT = ConfigDict(extra="forbid", strict=True)

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
