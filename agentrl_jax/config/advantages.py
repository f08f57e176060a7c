"""Advantage estimators: a union, discriminated by `kind`, so that each has the parameters that it reads."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, Tag, model_validator

from agentrl_jax.config.fields import BY_KIND, OWN, TRACED, Finite, Fraction, Needs, NonNegative, Placement, Section
from agentrl_jax.config.own import OwnAdvantage
from agentrl_jax.errors import BadValue

Normalization = Literal["identity", "mean", "mean_std", "asym_clip"]


class _Advantage(Section, Needs):
    """Fields of all advantage estimators."""

    needs: ClassVar[tuple[str, ...]] = ()
    """As that of an own kind."""
    per_episode: ClassVar[bool] = False
    """Compares returns of whole episodes and ignores where in an episode a reward is earned."""

    whiten: bool = False
    """Normalize the advantages of the batch to mean 0 and variance 1."""
    spread_weighted: bool = False
    """Weight groups by the standard deviation of their returns."""
    length_weighted: bool = False
    """Weight episodes by the inverse of their number of sampled tokens."""


class _OfEpisodes(_Advantage):
    """Fields of estimators that compare whole episodes."""

    per_episode: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("groups",)
    reward_placement: ClassVar[Placement] = "episode"
    reward_normalization: ClassVar[Normalization] = "identity"
    reward_grouping: ClassVar[str] = "state"
    value_clip: ClassVar[None] = None
    bootstrap_truncated: ClassVar[bool] = False


class _OfRewards(_Advantage):
    """Fields of estimators that use rewards at the tokens where they are earned."""

    reward_placement: Placement = "episode"
    """episode: the whole return at the last sampled token; turn: each turn's reward at the last token of the turn."""
    reward_normalization: Normalization = "identity"
    """Normalization of returns within their group before advantages are computed, over the members that are kept."""
    reward_grouping: Literal["state", "task", "batch"] = "state"
    """Which returns are normalized together. state: those of a group; task: those of a task; batch: all."""
    gamma: Annotated[Fraction, TRACED] = 1.0
    """Discount per trained token; per turn in turn_gae."""
    whiten: bool = True
    """Normalize the advantages of the batch to mean 0 and variance 1."""

    @model_validator(mode="after")
    def _check_normalization(self) -> Self:
        method = self.reward_normalization
        if method != "identity" and self.reward_placement == "turn":
            raise BadValue.of(
                "algo.advantage.reward_normalization",
                method,
                "which normalizes returns of episodes, but reward_placement is turn; use episode, or "
                "reward_normalization identity",
            )
        if method == "identity" and self.reward_grouping != "state":
            why = "which reward_normalization identity does not read; leave it at state"
            raise BadValue.of("algo.advantage.reward_grouping", self.reward_grouping, why)
        return self


class _Critic(_OfRewards):
    """Fields of estimators with a critic."""

    needs: ClassVar[tuple[str, ...]] = ("critic",)

    lam: Annotated[Fraction, TRACED] = 1.0
    """Lambda of GAE."""
    value_coef: Annotated[NonNegative, TRACED] = 1.0
    """Weight of the value loss."""
    value_clip: Annotated[float, Field(gt=0.0)] | None = 0.5
    """How far a value may move from the rollout's value before its loss is clipped; none: no clipping."""
    bootstrap_truncated: bool = False
    """Bootstrap the value target of a truncated episode (by prompt.max_turns, a limit of actions or
    rollout.context_tokens) with the critic's value of the last observation, instead of 0 (Pardo et al. 2018, arXiv
    1712.00378). Use it for limits that only save time. If the limit is part of the task and the prompt shows what is
    left of it, use false."""


class Gae(_Critic):
    """Generalized advantage estimation over tokens."""

    kind: Literal["gae"] = "gae"


class TurnGae(_Critic):
    """Generalized advantage estimation over turns."""

    kind: Literal["turn_gae"] = "turn_gae"


class BiLevelGae(_Critic):
    """Generalized advantage estimation over turns, and over the tokens inside each."""

    kind: Literal["bi_level_gae"] = "bi_level_gae"
    turn_gamma: Annotated[Fraction, TRACED] = 0.95
    """Discount per turn."""


class RewardToGo(_OfRewards):
    """The discounted return from each token on, without a baseline (REINFORCE)."""

    value_clip: ClassVar[None] = None
    bootstrap_truncated: ClassVar[bool] = False

    kind: Literal["reward_to_go"] = "reward_to_go"


class Grpo(_OfEpisodes):
    """The return minus the mean of its group (GRPO)."""

    kind: Literal["grpo"] = "grpo"
    normalize_by_std: bool = True
    """Divide by the standard deviation of the group's returns."""


class Rloo(_OfEpisodes):
    """The return minus the mean of the other members of its group (RLOO)."""

    kind: Literal["rloo"] = "rloo"


class Remax(_OfEpisodes):
    """The return minus that of a greedy episode of the group (ReMax)."""

    needs: ClassVar[tuple[str, ...]] = ("greedy",)

    kind: Literal["remax"] = "remax"


class Gigpo(_OfEpisodes):
    """The return relative to its group, plus a comparison of turns of the group in the same state (GiGPO)."""

    kind: Literal["gigpo"] = "gigpo"
    normalize_by_std: bool = True
    """Divide by standard deviations."""
    turn_gamma: Annotated[Fraction, TRACED] = 0.95
    """Discount per turn."""
    step_weight: Annotated[NonNegative, TRACED] = 1.0
    """Weight of the turn advantage relative to the episode advantage."""
    anchor: Literal["state", "observation"] = "state"
    """What counts as the same state. state: the same environment state; observation: the same text for the model."""
    history: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of earlier states that must also be the same, one level for each number up to this (HGPO); 0: GiGPO."""
    history_power: Annotated[NonNegative, TRACED] = 1.0
    """The level with k earlier states has a weight proportional to (k + 1) to this power."""

    @model_validator(mode="after")
    def _check_history(self) -> Self:
        if self.history == 0 and self.history_power != 1.0:
            why = "which history 0 does not read; leave it at 1"
            raise BadValue.of("algo.advantage.history_power", self.history_power, why)
        for name in ("anchor", "turn_gamma", "history") if self.step_weight == 0 else ():
            value, default = getattr(self, name), type(self).model_fields[name].default
            if value != default:
                raise BadValue.of(
                    f"algo.advantage.{name}", value, f"which step_weight 0 does not read; leave it at {default}"
                )
        return self


_Kinds = (
    Annotated[Gae, Tag("gae")]
    | Annotated[TurnGae, Tag("turn_gae")]
    | Annotated[BiLevelGae, Tag("bi_level_gae")]
    | Annotated[RewardToGo, Tag("reward_to_go")]
    | Annotated[Grpo, Tag("grpo")]
    | Annotated[Rloo, Tag("rloo")]
    | Annotated[Remax, Tag("remax")]
    | Annotated[Gigpo, Tag("gigpo")]
    | Annotated[OwnAdvantage, Tag(OWN)]
)


class WeightedTerm(Section):
    """A term of a sum."""

    weight: Finite = 1.0
    """Factor on its advantages, traced."""
    rule: Annotated[_Kinds, BY_KIND] = Gae()
    """The estimator."""


class Sum(Section, Needs):
    """The weighted sum of several estimators, which a file gives as a list: [gae, {kind: gigpo, weight: 0.5}].

    At most one term has a critic, which its target trains. What is done with rewards before must be the same for all.
    """

    kind: Literal["sum"] = "sum"
    terms: Annotated[tuple[WeightedTerm, ...], Field(min_length=1, max_length=8)] = (WeightedTerm(),)
    """Whitening and weights of groups and episodes are those of the sum, not of terms."""
    whiten: bool = False
    """Normalize the advantages of the batch to mean 0 and variance 1."""
    spread_weighted: bool = False
    """Weight groups by the standard deviation of their returns."""
    length_weighted: bool = False
    """Weight episodes by the inverse of their number of sampled tokens."""

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        for index, rule in enumerate(self.rules):
            for name in ("whiten", "spread_weighted", "length_weighted"):
                if (value := getattr(rule, name)) != type(rule).model_fields[name].default:
                    why = f"but this is a key of the sum; give algo.advantage {{kind: sum, {name}: ..., terms: [...]}}"
                    raise BadValue.of(f"algo.advantage.{index}.{name}", value, why)
        critics = [rule.kind for rule in self.rules if rule.has_critic]
        if len(critics) > 1:
            why = "which all train a critic, but there is one; use at most one of them"
            raise BadValue.of("algo.advantage", critics, why)
        for name in _SHARED:
            found = list(dict.fromkeys(getattr(rule, name) for rule in self._reading(name)))
            if len(found) > 1:
                why = f"and {found[0]} in another term; give all terms the same"
                raise BadValue.of(f"algo.advantage.{name}", found[1], why)
        return self

    @property
    def rules(self) -> tuple[Any, ...]:
        """The estimators."""
        return tuple(term.rule for term in self.terms)

    @property
    def needs(self) -> tuple[str, ...]:
        """What some term needs."""
        return tuple(dict.fromkeys(need for rule in self.rules for need in rule.needs))

    @property
    def per_episode(self) -> bool:
        """No term reads where in an episode a reward is earned."""
        return all(rule.per_episode for rule in self.rules)

    @property
    def of_critic(self) -> str:
        """Where the numbers of the term with a critic are."""
        return next((f"{index}." for index, rule in enumerate(self.rules) if rule.has_critic), "")

    @property
    def reward_placement(self) -> Placement:
        """That of the terms that read it; as are those below."""
        return self._shared("reward_placement")

    @property
    def reward_normalization(self) -> Normalization:
        """See `reward_placement`."""
        return self._shared("reward_normalization")

    @property
    def reward_grouping(self) -> str:
        """See `reward_placement`."""
        return self._shared("reward_grouping")

    @property
    def by_observation(self) -> bool:
        """See `reward_placement`."""
        return any(rule.by_observation for rule in self.rules)

    @property
    def value_clip(self) -> float | None:
        """That of the term with a critic; as is that below."""
        return next((rule.value_clip for rule in self.rules if rule.has_critic), None)

    @property
    def bootstrap_truncated(self) -> bool:
        """See `value_clip`."""
        return any(rule.bootstrap_truncated for rule in self.rules)

    def with_rules(self, found: Mapping[str, Any]) -> Self:
        """The sum with other estimators, by the number of their term."""
        rules = enumerate(self.rules)
        terms = zip(self.terms, (found.get(f"{index}", rule) for index, rule in rules))
        return self.replace(terms=tuple(term.replace(rule=rule) for term, rule in terms))

    def _reading(self, name: str) -> list[Any]:
        """The estimators that have a setting, which others fix."""
        return [rule for rule in self.rules if name in type(rule).model_fields]

    def _shared(self, name: str) -> Any:
        return getattr((*self._reading(name), *self.rules)[0], name)

    def traced(self) -> dict[str, float]:
        """As in `Section`, by the number of the term: 0.weight, 0.gamma."""
        numbers = ({"weight": term.weight, **term.rule.traced()} for term in self.terms)
        return {f"{index}.{name}": value for index, of in enumerate(numbers) for name, value in of.items()}

    def untraced(self) -> Self:
        """As in `Section`."""
        terms = tuple(term.replace(weight=None, rule=term.rule.untraced()) for term in self.terms)
        return self.replace(terms=terms)


_SHARED = ("reward_placement", "reward_normalization", "reward_grouping", "anchor")


def with_terms(advantage: Any) -> Any:
    """An advantage as it is stored, from a list of terms as a file has it."""
    if isinstance(advantage, dict) and isinstance(terms := advantage.get("terms"), list | tuple):
        return {**advantage, "terms": [_term(term) for term in terms]}
    if isinstance(advantage, list | tuple):
        return {"kind": "sum", "terms": [_term(term) for term in advantage]}
    return advantage


def _term(term: Any) -> Any:
    if isinstance(term, str):
        return {"rule": {"kind": term}}
    if not isinstance(term, dict) or "rule" in term:
        return term
    weight = {"weight": term["weight"]} if "weight" in term else {}
    return {**weight, "rule": {name: value for name, value in term.items() if name != "weight"}}


Advantage = Annotated[_Kinds | Annotated[Sum, Tag("sum")], BY_KIND]
