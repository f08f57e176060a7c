"""Kinds of the user: functions of their modules, by import path. What a run stores of them is read without an import.

A file gives `kind: my_rules:centered` and the numbers of the function beside it. `setup.own_rules` imports the module,
and fills in what the function declares.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from agentrl_jax.config.fields import TRACED, Name, Needs, NonNegative, Placement, Section

_PATH = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
_MOST = 64


class OwnKind(Section):
    """A function of the user. The keys other than kind are filled in at the start of a run, numbers by their names."""

    kind: Annotated[str, Field(pattern=_PATH, max_length=200)]
    needs: tuple[str, ...] = ()
    """What the function says that it reads, see `agentrl_jax.rules.rule`."""
    numbers: Annotated[dict[str, float], Field(max_length=_MOST)] = Field(default_factory=dict)
    """Its traced parameters."""
    static: Annotated[dict[str, bool | int | str], Field(max_length=_MOST)] = Field(default_factory=dict)
    """Its other parameters; another value is another program."""
    source: str = ""
    """What was imported: a digest of its files, or name and version of an installed package. Empty: nothing yet."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        """Moves parameters that are given beside the kind into `numbers` or `static`, by their types."""
        if not isinstance(data, Mapping):
            return data
        # A file has lists where fields are tuples.
        data = {name: tuple(x) if name in cls.model_fields and isinstance(x, list) else x for name, x in data.items()}
        given = {name: value for name, value in data.items() if name not in cls.model_fields}
        found = {name: value for name, value in data.items() if name not in given}
        numbers, static = found.get("numbers", {}), found.get("static", {})
        if not (given and isinstance(numbers, Mapping) and isinstance(static, Mapping)):
            return data
        floats = {name for name, value in given.items() if isinstance(value, float)} - static.keys() | numbers.keys()
        return found | {
            "numbers": {**numbers, **{name: value for name, value in given.items() if name in floats}},
            "static": {**static, **{name: value for name, value in given.items() if name not in floats}},
        }

    def __hash__(self) -> int:  # of a section with mappings, which have none
        return hash((self.kind, self.source, *sorted(self.numbers), *sorted(self.static.items())))

    @property
    def parameters(self) -> dict[str, Any]:
        """Those of the function, by name."""
        return self.numbers | self.static

    def traced(self) -> dict[str, float]:
        """As in `Section`, with the function's own."""
        return super().traced() | self.numbers

    def untraced(self) -> Self:
        """As in `Section`."""
        return super().untraced().replace(numbers=dict.fromkeys(self.numbers))


class OwnMetric(OwnKind):
    """A metric of the user."""


Metrics = Annotated[dict[Name, OwnMetric], Field(max_length=_MOST)]
"""By their names."""


class OwnAdvantage(OwnKind, Needs):
    """An advantage estimator of the user."""

    per_episode: ClassVar[bool] = False
    reward_normalization: ClassVar[Literal["identity"]] = "identity"
    reward_grouping: ClassVar[str] = "state"

    whiten: bool = False
    """Normalize the advantages of the batch to mean 0 and variance 1."""
    spread_weighted: bool = False
    """Weight groups by the standard deviation of their returns."""
    length_weighted: bool = False
    """Weight episodes by the inverse of their number of sampled tokens."""
    reward_placement: Placement = "episode"
    """episode: the whole return at the last sampled token; turn: each turn's reward at the last token of the turn."""
    value_coef: Annotated[NonNegative, TRACED] = 1.0
    """Weight of the value loss, of a function with a critic."""
    value_clip: Annotated[float, Field(gt=0.0)] | None = 0.5
    """How far a value may move before its loss is clipped, of a function with a critic; none: no clipping."""
    bootstrap_truncated: bool = False
    """As in gae, of a function with a critic."""


class OwnObjective(OwnKind):
    """An objective of the user."""

    from_rollout: ClassVar[bool] = False

    unit: Literal["token", "row"] = "token"
    """What a loss of the function belongs to."""

    @property
    def has_ratio(self) -> bool:
        """Reads log-probabilities of before the update."""
        return "ratio" in self.needs
