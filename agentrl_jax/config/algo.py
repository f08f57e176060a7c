"""The learning rule. Options with different parameters are unions by `kind`, so that each value that is set is read.

A file may give the kind alone (`advantage: grpo`); keys that it leaves out come from the preset if the preset has the
same kind, else from the defaults below.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from agentrl_jax.config.advantages import Advantage, Gae
from agentrl_jax.config.distillation import Distillation, NoDistillation
from agentrl_jax.config.fields import (
    TRACED,
    AboveZero,
    Count,
    Finite,
    Fraction,
    NonNegative,
    Positive,
    Section,
    Share,
    Size,
)
from agentrl_jax.config.filters import Filter, FractionFilter
from agentrl_jax.config.mismatch import Mismatch, NoCorrection
from agentrl_jax.config.objectives import Objective, Ppo
from agentrl_jax.config.presets import check_name
from agentrl_jax.config.rewards import RewardParts
from agentrl_jax.config.token_rules import AllTokens, TokenRule
from agentrl_jax.errors import BadValue

Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]


class NoKl(Section):
    """No KL penalty."""

    apply_to: ClassVar[None] = None
    estimator: ClassVar[None] = None

    kind: Literal["none"] = "none"


class _Penalty(Section):
    """A penalty on the KL divergence from the reference model (the policy at the start of learning)."""

    apply_to: Literal["loss", "reward"] = "loss"
    """Where the divergence is added; reward works with the estimator k1 only."""
    estimator: Literal["k1", "k2", "k3", "abs", "mse", "full"] = "k1"
    """Estimator of the divergence. Of the estimates, in the loss only k2 has the gradient of the divergence (that of
    k1 is noise), in the reward only k1. full: no estimate, but the exact divergence over the whole vocabulary."""
    sync_every: Count = 0
    """Iterations after which the reference moves to the policy, by sync_mix; 0: it stays the policy at the start of
    learning. `actor/kl`, its target and its alarms then measure from the reference as it is, as do a teacher of
    reference and the distance of `train.mutual_information_every`."""
    sync_mix: Annotated[Share, TRACED] = 1.0
    """Share of the policy in the reference after a move; the rest is that of before. With sync_every 1 and a small
    share it is a moving average."""

    @model_validator(mode="after")
    def _check_estimator(self) -> Self:
        if self.apply_to == "reward" and self.estimator != "k1":
            why = f"where algo.kl.estimator {self.estimator} has a wrong gradient; use k1, or apply_to loss"
            raise BadValue.of("algo.kl.apply_to", self.apply_to, why)
        return self


class FixedKl(_Penalty):
    """A constant-weight penalty on the KL divergence from the reference model (the policy at the start of learning)."""

    kind: Literal["fixed"] = "fixed"
    coef: Annotated[NonNegative, TRACED] = 0.001
    """Weight of the divergence."""


class AdaptiveKl(_Penalty):
    """A penalty whose weight is adapted to keep the divergence at a target (Ziegler et al. 2019)."""

    kind: Literal["adaptive"] = "adaptive"
    coef: Annotated[AboveZero, TRACED] = 0.001
    """Weight of the divergence at the start."""
    target: Annotated[AboveZero, TRACED] = 0.1
    """Target of the divergence in nats per token."""
    horizon: Annotated[AboveZero, TRACED] = 10000.0
    """Time scale in episodes over which the weight adapts; larger is slower."""


Kl = Annotated[NoKl | FixedKl | AdaptiveKl, Field(discriminator="kind")]


class FixedHorizon(Section):
    """Training episodes have up to prompt.max_turns turns."""

    kind: Literal["fixed"] = "fixed"


def _check_growing(turns: tuple[int, ...]) -> tuple[int, ...]:
    if list(turns) != sorted(set(turns)):
        raise BadValue.of("algo.horizon.turns", turns, "expected growing numbers of turns")
    return turns


class _Growing(Section):
    """Training episodes get longer over training. Evaluations play prompt.max_turns."""

    turns: Annotated[tuple[Size, ...], Field(min_length=1), AfterValidator(_check_growing)] = (5, 8, 10)
    """Increasing numbers of turns, at most prompt.max_turns."""


class StepwiseHorizon(_Growing):
    """Training episodes get longer on a fixed schedule (ScalingInter-RL). Evaluations play prompt.max_turns."""

    kind: Literal["stepwise"] = "stepwise"
    every: Positive = 100
    """Iterations with each number of turns."""


class AdaptiveHorizon(_Growing):
    """Training episodes get longer when success stops rising or the spread within groups falls."""

    kind: Literal["adaptive"] = "adaptive"
    every: Positive = 100
    """Length in iterations of the two windows that are compared."""
    min_gain: NonNegative = 0.02
    """The horizon grows if success rises by less than this from one window to the next."""
    min_spread: Fraction = 0.3
    """The horizon also grows if the spread within groups falls below this share of its initial value."""


Horizon = Annotated[FixedHorizon | StepwiseHorizon | AdaptiveHorizon, Field(discriminator="kind")]


class ScheduleConfig(Section):
    """Schedule of a value that changes over the iterations."""

    end: Finite
    """Final value, which is kept afterwards."""
    iterations: Positive
    """Iterations until the final value is reached."""
    shape: Literal["linear", "cosine"] = "linear"
    """linear: constant speed; cosine: slow at both ends."""


class UpdateRule(Section):
    """Options of the compiled update. Its traced numbers are passed as `learner.settings.UpdateSettings`."""

    advantage: Advantage = Gae()
    """Advantage estimator."""
    objective: Objective = Ppo()
    """Loss of the policy."""
    tokens: TokenRule = AllTokens()
    """Which tokens the loss of the policy treats apart."""
    kl: Kl = NoKl()
    """Penalty on the KL divergence from the reference model (the policy at the start of learning)."""
    distillation: Distillation = NoDistillation()
    """Loss of a teacher that reads more than the policy."""
    filter: Filter = FractionFilter()
    """Which groups are trained on."""
    filter_group_size: Count = 0
    """Members kept of each group, those whose returns vary most, fewer than rollout.group_size; 0: all."""
    mismatch: Mismatch = NoCorrection()
    """Correction of differences between the log-probabilities of rollout and learner."""
    aggregation: Aggregation = "seq_mean_token_mean"
    """How token losses are reduced to one number; denominators are those of the whole minibatch on all devices."""
    balance_tasks: bool = False
    """Every task has the same weight in the losses of a batch, however many of its tokens are trained; on this
    tasks.N.loss_weight is a factor."""
    whiten_by: Literal["batch", "task"] = "batch"
    """Which advantages algo.advantage.whiten normalizes together."""
    epochs: Positive = 1
    """Passes over the kept rows per iteration."""
    minibatches: Positive = 1
    """Gradient steps per pass. The rows that a filter keeps are split evenly; a step without rows is skipped. With one
    step and one epoch no ratio has changed, so clip_low, clip_high and dual_clip have no effect."""
    grad_accum_steps: Positive = 1
    """Microbatches per minibatch (gradient accumulation); changes memory, not the result."""
    length_buckets: Annotated[int, Field(ge=1, le=16)] | None = None
    """Number of row lengths that the learner is compiled for, in equal steps up to the longest row. Rows of a minibatch
    are sorted by length, and each microbatch is cut to the shortest length that fits: less padding, more compilation,
    the same result up to rounding. Helps only with more than one microbatch. none: 4 if grad_accum_steps is above 1 and
    rows can differ much (several turns in the context, services, or max_response_tokens of 128 and more) and are not
    packed, else 1."""
    packing: bool = False
    """Pack rows of different lengths together, as long as they fit into the longest row: less padding than with
    length_buckets, and one program. A prefix that rows share is computed for each. Helps only with more than one
    microbatch. Imitation packs its plans too."""

    def traced_keys(self) -> dict[str, float]:
        """The numbers that the compiled update takes as arguments, by their keys below `algo`."""
        sections = ((name, getattr(self, name)) for name in UpdateRule.model_fields)
        return {
            f"{name}.{key}": value
            for name, section in sections
            if isinstance(section, Section)
            for key, value in section.traced().items()
        }


class AlgoConfig(UpdateRule):
    """The learning rule. The defaults are those of starpo_s; in a file, what is left out comes from the preset."""

    preset: Annotated[str, AfterValidator(check_name)] = "starpo_s"
    """Preset for values that are left out; `agentrl presets` prints each preset with its sources."""
    entropy_coef: NonNegative = 0.001
    """Weight of the entropy bonus."""
    entropy_target: AboveZero | None = None
    """Mean entropy of the sampled tokens, in nats, below which the weight of the bonus rises by entropy_step an
    iteration, from entropy_coef; above it the weight falls, and there is no bonus (adaptive entropy control, He et al.
    2025, arXiv 2505.22312); none: the weight is entropy_coef."""
    entropy_step: AboveZero = 0.005
    """Change of the weight in an iteration."""
    overlong_buffer: Fraction = 0.0
    """Last share of prompt.max_response_tokens over which the length penalty of a response grows from 0 to
    overlong_penalty; truncated responses pay it in full (DAPO's soft overlong punishment); 0: no penalty."""
    overlong_penalty: AboveZero = 1.0
    """Subtracted from a turn whose response has prompt.max_response_tokens tokens, if overlong_buffer is above 0."""
    rewards: RewardParts = Field(default_factory=dict)
    """Parts of the reward beside that of the environment, by name: {tokens: {weight: -0.01}}. Kinds are environment,
    success, format, overlong, tokens, turns, truncated, cut, info (a number that the environment tells) and functions
    of yours, of a Trajectory. A part without a kind has its name as its kind. Reported as reward/NAME."""
    normalize_rewards: Literal["none", "group"] = "none"
    """group: each part, and the reward of the environment, is divided by its standard deviation inside its group after
    its mean is subtracted; advantages come from the weighted sum of these (GDPO, Liu et al. 2026, arXiv 2601.05242,
    which whitens it over the batch). Filters and metrics read the weighted sum of the parts as they are. All members of
    a group are compared at the end of an episode."""
    skip_truncated: tuple[Literal["turns", "actions", "context"], ...] = ()
    """Episodes that are truncated by these causes count in their groups, but are not trained on."""
    dynamic_sampling: Positive = 1
    """Maximum number of rollouts per iteration: groups whose members all have the same return (penalties included) are
    resampled, on other levels, until the returns of every group vary (DAPO's dynamic sampling, which compares
    accuracies); 1: no resampling. Metrics, alarms and the adaptive horizon use all episodes played, rollout/chosen_*
    the chosen ones."""
    horizon: Horizon = FixedHorizon()
    """Turns of an episode in training."""
    schedules: dict[str, ScheduleConfig] = Field(default_factory=dict)
    """Values that change over the iterations, by key; each starts at the value of its key. Keys are entropy_coef, those
    of numbers in a section of algo, as objective.clip_high or kl.coef, rollout.temperature and prompt.format_penalty.
    """
    # Measured: at most 5e-7 in float32 runs of the demo's size, 1e-3 in bfloat16 with two layers. Systems with two
    # engines are known to drift by 0.01 to 0.04; a larger gap means an error.
    logprob_gap_limit: AboveZero | None = 0.05
    """The run stops if training and rollout log-probabilities differ by more on average (nats); none: no limit."""

    def traced_keys(self) -> dict[str, float]:
        """As in `UpdateRule`, with the numbers of the rewards."""
        of_rewards = {f"{name}.{key}": x for name, part in self.rewards.items() for key, x in part.traced().items()}
        return super().traced_keys() | {f"rewards.{key}": value for key, value in of_rewards.items()}
