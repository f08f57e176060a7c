"""Advantage estimators: a union, discriminated by `kind`, so that each has the parameters that it reads."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, Tag, model_validator

from agentrl_jax.config.fields import BY_KIND, OWN, TRACED, Fraction, Needs, NonNegative, Placement, Section
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


Advantage = Annotated[
    Annotated[Gae, Tag("gae")]
    | Annotated[TurnGae, Tag("turn_gae")]
    | Annotated[BiLevelGae, Tag("bi_level_gae")]
    | Annotated[RewardToGo, Tag("reward_to_go")]
    | Annotated[Grpo, Tag("grpo")]
    | Annotated[Rloo, Tag("rloo")]
    | Annotated[Remax, Tag("remax")]
    | Annotated[Gigpo, Tag("gigpo")]
    | Annotated[OwnAdvantage, Tag(OWN)],
    BY_KIND,
]
