"""Types of options with their limits: `clip: Positive` is a float above 0, checked when a config is read."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
CountFromZero = Annotated[int, Field(ge=0)]
CountFromTwo = Annotated[int, Field(ge=2)]
Amount = Annotated[int, Field(ge=1, le=10**6)]  # a count of things that are all in memory at once
AmountFromZero = Annotated[int, Field(ge=0, le=10**6)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
AboveOne = Annotated[float, Field(gt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]  # also top_p and learning rates
Temperature = Annotated[float, Field(ge=0, le=10)]  # above 10 the distribution is almost uniform
Names = Annotated[tuple[str, ...], Field(min_length=1)]


class FieldLimits(dict[str, Any]):
    """Narrower types for the fields of a dataclass: `Annotated[Sampling, FieldLimits(max_tokens=Count)]`."""
