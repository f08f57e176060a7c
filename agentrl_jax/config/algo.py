"""The learning rule. What has variants with numbers of their own is a union, told apart by `kind`.

A number that nothing would read can so not be written. A file may give the kind alone (`advantage: grpo`); keys that it
leaves out come from the preset where the kind is the preset's, else from the defaults below.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentrl_jax.config.fields import (
    LARGEST,
    TRACED,
    AboveZero,
    Count,
    Discount,
    NonNegative,
    Positive,
    Section,
    Share,
    Size,
)
from agentrl_jax.config.presets import check_name

Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]
Granularity = Literal["token", "sequence"]
Normalization = Literal["identity", "mean", "mean_std", "asym_clip"]
Placement = Literal["episode", "turn"]
ScoreKind = Literal["std", "mean", "entropy", "entropy_std", "length"]
Moving = Literal["clip_low", "clip_high", "entropy_coef", "kl_coef", "value_coef", "temperature", "format_penalty"]


class _Advantage(Section):
    """What every estimator has."""

    has_critic: ClassVar[bool] = False
    """Reads a critic's values, so that a critic is trained."""
    per_episode: ClassVar[bool] = False
    """Compares returns of whole episodes, so that it does not see where in an episode a reward is earned."""
    per_group: ClassVar[bool] = False
    """Needs at least two members a group."""

    whiten: bool = False
    """Give the advantages of the batch mean 0 and variance 1."""
    spread_weighted: bool = False
    """Groups weigh by the standard deviation of their returns."""
    length_weighted: bool = False
    """Episodes weigh by the inverse of the number of their sampled tokens."""


class _OfEpisodes(_Advantage):
    """What estimators have that compare whole episodes."""

    per_episode: ClassVar[bool] = True
    per_group: ClassVar[bool] = True
    reward_placement: ClassVar[Placement] = "episode"
    reward_normalization: ClassVar[Normalization] = "identity"
    reward_grouping: ClassVar[str] = "state"
    value_clip: ClassVar[None] = None
    bootstrap_truncated: ClassVar[bool] = False


class _OfRewards(_Advantage):
    """What estimators have that read rewards where they are earned."""

    reward_placement: Placement = "episode"
    """episode: the whole return at the last sampled token; turn: each turn's reward at the turn's last one."""
    reward_normalization: Normalization = "identity"
    """Normalization of returns inside their group before advantages are computed, over the members that are kept."""
    reward_grouping: Literal["state", "task", "batch"] = "state"
    """Which returns are normalized together: those of a group, of a task, or all."""
    gamma: Annotated[Discount, TRACED] = 1.0
    """Discount per trained token; per turn in turn_gae."""
    whiten: bool = True
    """Give the advantages of the batch mean 0 and variance 1."""

    @model_validator(mode="after")
    def _check_normalization(self) -> Self:
        method = self.reward_normalization
        if method != "identity" and self.reward_placement == "turn":
            raise ValueError(
                f"algo.advantage.reward_normalization is {method}, which makes one number of an episode's return, but "
                "reward_placement is turn; use episode, or reward_normalization identity"
            )
        if method == "identity" and self.reward_grouping != "state":
            raise ValueError(
                f"algo.advantage.reward_grouping is {self.reward_grouping}, which reward_normalization identity does "
                "not read; leave it at state"
            )
        return self


class _Critic(_OfRewards):
    """What estimators have that read a critic."""

    has_critic: ClassVar[bool] = True

    lam: Annotated[Discount, TRACED] = 1.0
    """Lambda of GAE."""
    value_coef: Annotated[NonNegative, TRACED] = 1.0
    """Weight of the value loss."""
    value_clip: Annotated[float, Field(gt=0.0)] | None = 0.5
    """How far a value may move from the rollout's value before its loss is clipped; none: no clip."""
    bootstrap_truncated: bool = False
    """The target at the end of an episode that was cut off (by prompt.max_turns, a limit of actions or
    rollout.context_tokens) goes on with the critic's value of the observation that came last, instead of 0 (Pardo et
    al. 2018, arXiv 1712.00378). For limits that only save time. Where the limit belongs to the task, and the prompt
    shows what is left of it, its end is an end like any other, and false is right."""


class Gae(_Critic):
    """Generalized advantage estimation over tokens."""

    kind: Literal["gae"] = "gae"


class TurnGae(_Critic):
    """Generalized advantage estimation over turns."""

    kind: Literal["turn_gae"] = "turn_gae"


class BiLevelGae(_Critic):
    """Generalized advantage estimation over turns, and over the tokens inside each."""

    kind: Literal["bi_level_gae"] = "bi_level_gae"
    turn_gamma: Annotated[Discount, TRACED] = 0.95
    """Discount per turn."""


class RewardToGo(_OfRewards):
    """The discounted return from a token on, without a baseline (REINFORCE)."""

    value_clip: ClassVar[None] = None
    bootstrap_truncated: ClassVar[bool] = False

    kind: Literal["reward_to_go"] = "reward_to_go"


class Grpo(_OfEpisodes):
    """The return relative to its group."""

    kind: Literal["grpo"] = "grpo"
    normalize_by_std: bool = True
    """Divide by the standard deviation of the group's returns."""


class Rloo(_OfEpisodes):
    """The return relative to the other members of its group."""

    kind: Literal["rloo"] = "rloo"


class Remax(_OfEpisodes):
    """The return relative to that of a greedy episode of the group."""

    per_group: ClassVar[bool] = False

    kind: Literal["remax"] = "remax"


class Gigpo(_OfEpisodes):
    """The return relative to its group, and turns compared with those of the group in the same state."""

    kind: Literal["gigpo"] = "gigpo"
    normalize_by_std: bool = True
    """Divide by standard deviations."""
    turn_gamma: Annotated[Discount, TRACED] = 0.95
    """Discount per turn."""
    step_weight: Annotated[NonNegative, TRACED] = 1.0
    """Weight of the comparison of turns beside that of episodes."""
    anchor: Literal["state", "observation"] = "state"
    """What counts as the same state: the environment's own, or the same text read by the model."""
    history: Annotated[int, Field(ge=0, le=64)] = 0
    """Earlier states that have to agree too, level by level (HGPO); 0: GiGPO."""
    history_power: Annotated[NonNegative, TRACED] = 1.0
    """How much more the levels with a longer history count, (k + 1) to this power."""

    @model_validator(mode="after")
    def _check_history(self) -> Self:
        if self.history == 0 and self.history_power != 1.0:
            raise ValueError(
                f"algo.advantage.history_power is {self.history_power:g}, which history 0 does not read; leave it at 1"
            )
        return self


Advantage = Annotated[
    Gae | TurnGae | BiLevelGae | RewardToGo | Grpo | Rloo | Remax | Gigpo, Field(discriminator="kind")
]


class Ppo(Section):
    """PPO's clipped surrogate."""

    kind: Literal["ppo"] = "ppo"
    clip_low: Annotated[float, Field(ge=0.0, le=1.0), TRACED] = 0.2
    """Lowest ratio is 1 - clip_low; 1 is no lower bound."""
    clip_high: Annotated[NonNegative, TRACED] = 0.28
    """Highest ratio is 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = 3.0
    """Bound of the loss for negative advantages, as a multiple of the advantage; none: no bound."""


class Gspo(Section):
    """PPO's surrogate with one ratio a row (Zheng et al. 2025)."""

    kind: Literal["gspo"] = "gspo"
    clip_low: Annotated[float, Field(ge=0.0, le=1.0), TRACED] = 3e-4
    """Lowest ratio is 1 - clip_low."""
    clip_high: Annotated[NonNegative, TRACED] = 4e-4
    """Highest ratio is 1 + clip_high."""
    dual_clip: ClassVar[None] = None


class Cispo(Section):
    """Clipped importance weights, so that no token is without a gradient (MiniMax 2025)."""

    kind: Literal["cispo"] = "cispo"
    clip_low: Annotated[float, Field(ge=0.0, le=1.0), TRACED] = 1.0
    """Lowest weight is 1 - clip_low; 1 is no lower bound."""
    clip_high: Annotated[NonNegative, TRACED] = 0.28
    """Highest weight is 1 + clip_high."""
    dual_clip: ClassVar[None] = None


class PolicyGradient(Section):
    """REINFORCE, without ratio and clip."""

    kind: Literal["policy_gradient"] = "policy_gradient"
    dual_clip: ClassVar[None] = None


Objective = Annotated[Ppo | Gspo | Cispo | PolicyGradient, Field(discriminator="kind")]


class NoKl(Section):
    """No divergence from the reference."""

    adaptive: ClassVar[bool] = False
    apply_to: ClassVar[None] = None
    estimator: ClassVar[None] = None

    kind: Literal["none"] = "none"


class _Penalty(Section):
    """A penalty on the divergence from the policy that learning began with."""

    apply_to: Literal["loss", "reward"] = "loss"
    """Where the divergence enters; reward takes the estimator k1 alone."""
    estimator: Literal["k1", "k2", "k3", "abs", "mse", "full"] = "k1"
    """Estimator of the divergence; in the loss only k2 has its gradient, k1's is noise. full: no estimate but the
    divergence over the whole vocabulary. In the reward only k1 has its gradient."""

    @model_validator(mode="after")
    def _check_estimator(self) -> Self:
        if self.apply_to == "reward" and self.estimator != "k1":
            raise ValueError(
                f"algo.kl.apply_to is reward and algo.kl.estimator {self.estimator}, whose sum over tokens has another "
                "gradient than the divergence; use algo.kl.estimator k1, or apply_to loss with k2 or full"
            )
        return self


class FixedKl(_Penalty):
    """A penalty of a given weight on the divergence from the policy that learning began with."""

    adaptive: ClassVar[bool] = False

    kind: Literal["fixed"] = "fixed"
    coef: Annotated[NonNegative, TRACED] = 0.001
    """Weight of the divergence."""


class AdaptiveKl(_Penalty):
    """A penalty whose weight is moved so that a given divergence is held (Ziegler et al. 2019)."""

    adaptive: ClassVar[bool] = True

    kind: Literal["adaptive"] = "adaptive"
    coef: Annotated[AboveZero, TRACED] = 0.001
    """Weight of the divergence at the start."""
    target: Annotated[AboveZero, TRACED] = 0.1
    """Divergence in nats a token that is held."""
    horizon: Annotated[AboveZero, TRACED] = 10000.0
    """Episodes over which the weight moves; the larger, the slower."""


Kl = Annotated[NoKl | FixedKl | AdaptiveKl, Field(discriminator="kind")]


class NoFilter(Section):
    """All groups are trained on."""

    kind: Literal["none"] = "none"


class _Filter(Section):
    """What every filter has."""

    by: ScoreKind = "std"
    """What groups are ranked by: the standard deviation or the mean of returns, the mean or the standard deviation of
    its members' entropies (estimated from the sampled tokens), or their mean length."""


class _Ranked(_Filter):
    """What filters have that can rank from either end."""

    largest: bool = True
    """The best groups have the largest scores; false: the smallest."""


class _Masked(_Ranked):
    """What filters have whose number of groups is not known before. An iteration that keeps none skips its step."""

    include_zero: bool = True
    """Groups whose score is 0 may be kept."""


class FractionFilter(_Ranked):
    """The best share of the groups (StarPO-S)."""

    kind: Literal["fraction"] = "fraction"
    ratio: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.25
    """Share of the groups that is kept."""

    def kept(self, groups: int) -> int:
        """How many of these are kept: the whole part of the share."""
        return int(self.ratio * groups + 1e-9)  # 0.29 * 100 is 28.999999999999996 in floating point and means 29


class TopPFilter(Section):
    """The best groups that make up a share of all scores."""

    largest: ClassVar[bool] = True  # it adds up from the largest score down

    kind: Literal["top_p"] = "top_p"
    by: Literal["std", "entropy", "entropy_std", "length"] = "std"
    """What groups are ranked by, a number of at least 0, so that returns have no mean here; else as for fraction."""
    p: Annotated[AboveZero, TRACED] = 0.9
    """Share of the scores; 1 or more keeps all groups, but for those that include_zero leaves out."""
    include_zero: bool = True
    """Groups whose score is 0 may be kept; p below 1 never does."""

    @model_validator(mode="after")
    def _check_zero(self) -> Self:
        if not self.include_zero and self.p < 1.0:
            raise ValueError(
                "algo.filter.include_zero is false, which top_p with p below 1 does not read, since it adds up scores "
                "above 0 alone; leave it at true"
            )
        return self


class TopPSoftmaxFilter(_Masked):
    """The best groups that make up a share of the softmax of all scores."""

    kind: Literal["top_p_softmax"] = "top_p_softmax"
    p: Annotated[AboveZero, TRACED] = 0.9
    """Share of the softmax."""


class TopKFilter(_Masked):
    """The best groups, a number of them."""

    kind: Literal["top_k"] = "top_k"
    k: Annotated[Positive, TRACED] = 8
    """Groups that are kept."""


class MinPFilter(_Masked):
    """Groups with at least a share of the best score."""

    kind: Literal["min_p"] = "min_p"
    by: Literal["std", "entropy", "entropy_std", "length"] = "std"
    """What groups are ranked by, a number of at least 0, so that returns have no mean here; else as for fraction."""
    p: Annotated[Share, TRACED] = 0.9
    """Share of the best score that a group needs."""


Filter = Annotated[
    NoFilter | FractionFilter | TopPFilter | TopPSoftmaxFilter | TopKFilter | MinPFilter, Field(discriminator="kind")
]


class NoCorrection(Section):
    """Nothing is done about differences between the log-probabilities of rollout and learner."""

    kind: Literal["none"] = "none"
    ratio_from: Literal["learner", "rollout"] = "learner"
    """learner: ratios start from the learner's own log-probabilities before the first step, for which more than one
    step takes another forward pass; rollout: from the rollout's, which saves that pass, for where both compute alike
    (float32 on CPUs), since any difference counts as a move of the policy."""


class Replay(Section):
    """Log-probabilities by replaying the rollout through the engine's own steps, equal to its bit for bit."""

    ratio_from: ClassVar[Literal["rollout"]] = "rollout"

    kind: Literal["replay"] = "replay"


class _Weighted(Section):
    """Importance weights from rollout to learner."""

    ratio_from: ClassVar[Literal["learner"]] = "learner"

    cap: Annotated[float, Field(ge=1.0, le=LARGEST, allow_inf_nan=False)] = 2.0
    """Largest importance weight."""
    level: Granularity = "token"
    """Whether a token has a weight of its own or that of its row, the geometric mean."""


class Tis(_Weighted):
    """Truncated importance sampling (Yao et al. 2025): weights from rollout to learner, cut at a cap."""

    kind: Literal["tis"] = "tis"


class IcePop(_Weighted):
    """Importance weights from rollout to learner, without tokens whose weight is above the cap or below 1 over it."""

    kind: Literal["icepop"] = "icepop"


Mismatch = Annotated[NoCorrection | Replay | Tis | IcePop, Field(discriminator="kind")]


class FixedHorizon(Section):
    """Training episodes have prompt.max_turns turns."""

    kind: Literal["fixed"] = "fixed"


class _Growing(Section):
    """Training episodes grow. Evaluations play prompt.max_turns."""

    turns: Annotated[tuple[Size, ...], Field(min_length=1)] = (5, 8, 10)
    """Growing numbers of turns, at most prompt.max_turns."""

    @field_validator("turns")
    @classmethod
    def _check_turns(cls, turns: tuple[int, ...]) -> tuple[int, ...]:
        if list(turns) != sorted(set(turns)):
            raise ValueError(f"algo.horizon.turns is {list(turns)}; expected growing numbers of turns")
        return turns


class StepwiseHorizon(_Growing):
    """Training episodes grow by a plan (ScalingInter-RL). Evaluations play prompt.max_turns."""

    kind: Literal["stepwise"] = "stepwise"
    every: Positive = 100
    """Iterations with each of the numbers of turns."""


class AdaptiveHorizon(_Growing):
    """Training episodes grow when success or the spread within groups stands still."""

    kind: Literal["adaptive"] = "adaptive"
    every: Positive = 100
    """Length in iterations of the two stretches that are compared."""
    min_gain: NonNegative = 0.02
    """Success has to rise by so much from one stretch to the next, or the horizon grows."""
    min_spread: Annotated[float, Field(ge=0.0, le=1.0)] = 0.3
    """The horizon grows too where the spread within groups falls below this share of its start."""


Horizon = Annotated[FixedHorizon | StepwiseHorizon | AdaptiveHorizon, Field(discriminator="kind")]


class ScheduleConfig(Section):
    """How a value moves from where it starts."""

    end: Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
    """Value that it has from then on."""
    iterations: Positive
    """Iterations that it takes."""
    shape: Literal["linear", "cosine"] = "linear"
    """Straight, or slow at both ends."""


class UpdateRule(Section):
    """What the compiled update is made of. Its traced numbers reach it as `train.settings.UpdateSettings`."""

    advantage: Advantage = Gae()
    """How a token's advantage is estimated."""
    objective: Objective = Ppo()
    """Loss of the policy."""
    kl: Kl = NoKl()
    """Divergence from the reference, the policy that learning began with."""
    filter: Filter = FractionFilter()
    """Which groups are trained on."""
    filter_group_size: Count = 0
    """Members that are kept of each group, those whose returns vary most, fewer than rollout.group_size; 0: all."""
    mismatch: Mismatch = NoCorrection()
    """What is done about differences between the log-probabilities of rollout and learner."""
    aggregation: Aggregation = "seq_mean_token_mean"
    """How token losses become one number; denominators are those of the whole minibatch on all devices."""
    epochs: Positive = 1
    """Passes over the kept rows per iteration."""
    minibatches: Positive = 1
    """Gradient steps per pass. The rows that a filter keeps are dealt out evenly; a step without any is left out. With
    one step and one epoch no ratio has moved, so that clip_low, clip_high and dual_clip do nothing."""
    grad_accum_steps: Positive = 1
    """Parts in which a minibatch is computed; changes memory, not the result."""
    length_buckets: Annotated[int, Field(ge=1, le=16)] = 1
    """Lengths that the learner's program is compiled for, equal steps up to the longest row. Rows of a minibatch are
    sorted, and each part is cut to the shortest length that holds it: less padding, more compilation, and the same
    result. It takes more than one part to gain."""


class AlgoConfig(UpdateRule):
    """The learning rule; a file's missing values come from the preset.

    The constructor knows the defaults below only, which are those of starpo_s.
    """

    preset: str = "starpo_s"
    """Named rule that values left out are taken from; `agentrl presets` prints each with its sources."""
    entropy_coef: NonNegative = 0.001
    """Weight of the entropy bonus."""
    overlong_buffer: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Last share of prompt.max_response_tokens over which a turn's response is punished for its length, from nothing to
    overlong_penalty, which responses that are cut off pay too (DAPO's soft overlong punishment); 0: none is."""
    overlong_penalty: AboveZero = 1.0
    """What a response of prompt.max_response_tokens tokens costs its turn where overlong_buffer is above 0."""
    dynamic_sampling: Positive = 1
    """Most rollouts of an iteration: groups whose members all earn the same are resampled, on other levels, until
    every group varies (DAPO's dynamic sampling, which looks at accuracy; here at the returns that the learner compares,
    penalties included); 1: none is. Metrics, alarms and the adaptive horizon speak of all
    that was played, rollout/chosen_* of what is learned from."""
    horizon: Horizon = FixedHorizon()
    """Turns of an episode in training."""
    schedules: dict[Moving, ScheduleConfig] = Field(default_factory=dict)
    """Values that move over the iterations, by name; each starts at its own key's value."""
    # Measured: at most 5e-7 in float32 runs of the demo's size, 1e-3 in bfloat16 with two layers. Systems with two
    # engines are known to drift by 0.01 to 0.04; beyond that something is wrong.
    logprob_gap_limit: AboveZero | None = 0.05
    """The run stops where training and rollout log-probabilities differ by more in the mean (nats); none: no limit."""

    @field_validator("preset")
    @classmethod
    def _check_preset(cls, name: str) -> str:
        return check_name(name)

    def starts(self) -> dict[str, float]:
        """The values that may move, by their name in `schedules`, as far as this rule has them."""
        kl = {f"kl_{name}": value for name, value in self.kl.traced().items()}
        values: dict[str, Any] = {"entropy_coef": self.entropy_coef, **kl, **self.objective.traced()}
        return values | self.advantage.traced()
