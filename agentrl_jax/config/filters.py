"""Filters of groups: a union, discriminated by `kind`; their rules are in `algos.filters`."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, Tag, model_validator

from agentrl_jax.config.fields import BY_KIND, OWN, TRACED, AboveZero, Positive, Section, Share
from agentrl_jax.config.own import OwnKind
from agentrl_jax.errors import BadValue

ScoreKind = Literal["std", "mean", "entropy", "entropy_std", "length"]


class _Filter(Section):
    """What others need to know of a filter."""

    def kept(self, groups: int) -> int:
        """Largest number of groups that are kept of so many."""
        return groups


class NoFilter(_Filter):
    """Trains on all groups."""

    kind: Literal["none"] = "none"


class _Ranked(_Filter):
    """Fields of filters that can prefer large or small scores."""

    by: ScoreKind = "std"
    """Score by which groups are ranked: the standard deviation (std) or the mean of returns, the mean (entropy) or the
    standard deviation (entropy_std) of the members' entropies, estimated from sampled tokens, or the mean length."""
    largest: bool = True
    """Prefer groups with the largest scores; false: with the smallest."""


class _Masked(_Ranked):
    """Fields of filters that keep a variable number of groups. An iteration that keeps none skips its update."""

    include_zero: bool = True
    """Groups whose score is 0 may be kept."""


class FractionFilter(_Ranked):
    """Keeps a fixed share of the groups, the best by score (StarPO-S)."""

    kind: Literal["fraction"] = "fraction"
    ratio: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.25
    """Share of the groups that is kept."""

    def kept(self, groups: int) -> int:
        """Number of groups that are kept: `ratio` times `groups`, rounded down."""
        return int(self.ratio * groups + 1e-9)  # 0.29 * 100 is 28.999999999999996 in floating point and means 29


class TopPFilter(_Filter):
    """Keeps the groups with the largest scores, as many as make up a share of the sum of scores."""

    largest: ClassVar[bool] = True  # it adds up from the largest score down

    kind: Literal["top_p"] = "top_p"
    by: Literal["std", "entropy", "entropy_std", "length"] = "std"
    """Score by which groups are ranked, as in fraction; mean is not allowed, since scores must be at least 0."""
    p: Annotated[AboveZero, TRACED] = 0.9
    """Share of the sum of scores; 1 or more keeps all groups except those that include_zero excludes."""
    include_zero: bool = True
    """Groups whose score is 0 may be kept; p below 1 never does."""

    @model_validator(mode="after")
    def _check_zero(self) -> Self:
        if not self.include_zero and self.p < 1.0:
            raise BadValue.of("algo.filter.include_zero", False, "which top_p with p below 1 does not read; use true")
        return self


class TopPSoftmaxFilter(_Masked):
    """Keeps the best groups, as many as make up a share of the softmax over all scores."""

    kind: Literal["top_p_softmax"] = "top_p_softmax"
    p: Annotated[AboveZero, TRACED] = 0.9
    """Share of the softmax."""


class TopKFilter(_Masked):
    """Keeps a fixed number of groups, the best by score."""

    kind: Literal["top_k"] = "top_k"
    k: Annotated[Positive, TRACED] = 8
    """Number of groups that are kept."""


class MinPFilter(_Masked):
    """Keeps the groups whose score is at least a share of the best score."""

    kind: Literal["min_p"] = "min_p"
    by: Literal["std", "entropy", "entropy_std", "length"] = "std"
    """Score by which groups are ranked, as in fraction; mean is not allowed, since scores must be at least 0."""
    p: Annotated[Share, TRACED] = 0.9
    """Share of the best score that a group needs."""


class OwnFilter(OwnKind, _Filter):
    """A filter of groups of the user."""


Filter = Annotated[
    Annotated[NoFilter, Tag("none")]
    | Annotated[FractionFilter, Tag("fraction")]
    | Annotated[TopPFilter, Tag("top_p")]
    | Annotated[TopPSoftmaxFilter, Tag("top_p_softmax")]
    | Annotated[TopKFilter, Tag("top_k")]
    | Annotated[MinPFilter, Tag("min_p")]
    | Annotated[OwnFilter, Tag(OWN)],
    BY_KIND,
]
