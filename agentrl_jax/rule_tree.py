"""The fields of a learning rule, a part of `agentrl_jax.config_tree`; `agentrl_jax.rule_checks` checks them."""

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import Field

from agentrl_jax.algos.estimate import Advantage
from agentrl_jax.algos.filters import ScoreKind
from agentrl_jax.algos.presets import PRESETS, Preset
from agentrl_jax.config_types import LARGEST, STRICT, AboveZero, Count, Discount, NonNegative, Positive, Share, Size

Moving = Literal["clip_low", "clip_high", "entropy_coef", "kl_coef", "value_coef", "temperature", "format_penalty"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How a value moves from where it starts."""

    __pydantic_config__ = STRICT

    end: Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
    """Value that it has from then on."""
    iterations: Positive
    """Iterations that it takes."""
    shape: Literal["linear", "cosine"] = "linear"
    """Straight, or slow at both ends."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlgoConfig:
    """The learning rule; a file's missing values come from the preset (agentrl_jax.algos.presets).

    The constructor knows the defaults below only; `from_preset` starts from a preset in Python.
    """

    __pydantic_config__ = STRICT

    preset: Preset = "starpo_s"
    """Named rule that values left out are taken from; `agentrl presets` prints each with its sources."""
    advantage: Advantage = "gae"
    """With a critic, generalised advantage estimation over tokens (gae), turns (turn_gae) or both (bi_level_gae).
    Without: the return from a token on (reward_to_go), the return relative to its group (grpo), to the other members
    (rloo) or to a greedy episode (remax), and grpo with turns compared in the same state (gigpo)."""
    grpo_std: bool = True
    """Divide the returns of grpo and gigpo by the standard deviation of their group."""
    gamma: Discount = 1.0
    """Discount per trained token; per turn in turn_gae."""
    lam: Discount = 1.0
    """Lambda of GAE."""
    turn_gamma: Discount = 0.95
    """Discount per turn of bi_level_gae and gigpo."""
    step_weight: NonNegative = 1.0
    """Weight of gigpo's comparison of turns beside that of episodes."""
    anchor: Literal["state", "observation"] = "state"
    """What gigpo takes for the same state: the environment's own, or the same text read by the model."""
    anchor_history: Annotated[int, Field(ge=0, le=64)] = 0
    """Earlier states that have to agree too, level by level (HGPO); 0: GiGPO."""
    history_power: NonNegative = 1.0
    """How much more the levels with a longer history count, (k + 1) to this power."""
    spread_weighted: bool = False
    """Groups weigh by the standard deviation of their returns."""
    length_weighted: bool = False
    """Episodes weigh by the inverse of the number of their sampled tokens."""
    objective: Literal["clip", "gspo", "cispo", "policy_gradient"] = "clip"
    """clip: PPO's surrogate; gspo: one ratio a row; cispo: clipped weights, no token without a gradient;
    policy_gradient: REINFORCE, without ratio and clip."""
    clip_low: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    """Lowest ratio is 1 - clip_low; 1 is no lower bound."""
    clip_high: NonNegative = 0.28
    """Highest ratio is 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = 3.0
    """Bound of the loss for negative advantages, as a multiple of the advantage; none: no bound."""
    value_clip: Annotated[float, Field(gt=0.0)] | None = 0.5
    """How far a value may move from the rollout's value before its loss is clipped; none: no clip."""
    value_coef: NonNegative = 1.0
    """Weight of the value loss."""
    entropy_coef: NonNegative = 0.001
    """Weight of the entropy bonus."""
    kl_kind: Literal["k1", "k2", "k3", "abs", "mse", "full"] = "k1"
    """Estimator of the KL divergence from the reference; in the loss only k2 has its gradient, k1's is noise. full: no
    estimate but the divergence over the whole vocabulary. In the reward only k1 has it."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL divergence."""
    kl_where: Literal["none", "loss", "reward"] = "none"
    """Where the KL divergence enters; reward takes kl_kind k1 alone."""
    kl_target: AboveZero | None = None
    """Divergence in nats a token: kl_coef is moved so that it is held (the adaptive controller); none: kl_coef stays as
    it is."""
    kl_horizon: AboveZero = 10000.0
    """Episodes over which the adaptive controller moves; the larger, the slower."""
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"] = (
        "seq_mean_token_mean"
    )
    """How token losses become one number; denominators are those of the whole minibatch on all devices."""
    whiten: bool = True
    """Give the advantages of the batch mean 0 and variance 1."""
    reward_placement: Literal["episode", "turn"] = "episode"
    """episode: the whole return at the last sampled token; turn: each turn's reward at the turn's last one."""
    bootstrap_truncated: bool = False
    """With a critic: the target at the end of an episode that was cut off (by prompt.max_turns, a limit of actions or
    rollout.context_tokens) goes on with the critic's value of the observation that came last, instead of 0 (Pardo et
    al. 2018, arXiv 1712.00378). For limits that only save time. Where the limit belongs to the task, and the prompt
    shows what is left of it, its end is an end like any other, and false is right."""
    reward_normalisation: Literal["identity", "mean", "mean_std", "asym_clip"] = "identity"
    """Normalisation of returns inside their group before advantages are computed, over the members that are kept."""
    reward_grouping: Literal["state", "task", "batch"] = "state"
    """Which returns are normalised together: those of a group, of a task, or all."""
    overlong_buffer: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Last share of prompt.reply_tokens over which a turn's reply is punished for its length, from nothing to
    overlong_penalty, which replies that are cut off pay too (DAPO's soft overlong punishment); 0: none is."""
    overlong_penalty: NonNegative = 1.0
    """What a reply of prompt.reply_tokens tokens costs its turn where overlong_buffer is above 0."""
    filter_rule: Literal["fraction", "top_p", "top_p_softmax", "top_k", "min_p"] = "fraction"
    """Which groups are trained on. fraction: the best share of filter_ratio; top_p: the best that make up the share
    filter_value of all scores, top_p_softmax of their softmax; top_k: the best filter_value of them; min_p: scores of
    at least filter_value times the best. An iteration that keeps none skips its step."""
    filter_ratio: Share = 0.25
    """Share of groups that the rule fraction keeps; 1: all."""
    filter_value: AboveZero = 0.9
    """Number of the other rules."""
    filter_kind: ScoreKind = "std"
    """What groups are ranked by: the standard deviation or the mean of returns, the mean or the standard deviation of
    its members' entropies (estimated from the sampled tokens), or their mean length."""
    filter_largest: bool = True
    """The best groups have the largest scores; false: the smallest."""
    filter_zero: bool = True
    """Groups whose score is 0 may be kept by the rules other than fraction."""
    filter_members: Count = 0
    """Members that are kept of each group, those whose returns vary most, fewer than rollout.members; 0: all."""
    max_rollouts: Positive = 1
    """Most rollouts of an iteration: groups whose members all earn the same are resampled, on other levels, until
    every group varies (DAPO's dynamic sampling, which looks at accuracy; here at the returns that the learner compares,
    penalties included); 1: none is. Metrics, alarms and the adaptive horizon speak of all
    that was played, rollout/chosen_* of what is learned from."""
    horizon: Literal["fixed", "stepwise", "adaptive"] = "fixed"
    """Turns of an episode in training. fixed: prompt.max_turns; stepwise: each of horizons for horizon_every iterations
    (ScalingInter-RL); adaptive: the next one when success or the spread within groups stands still. Evaluations play
    prompt.max_turns."""
    horizons: tuple[Size, ...] = ()
    """Growing numbers of turns, at most prompt.max_turns."""
    horizon_every: Positive = 100
    """Iterations with each of horizons; for adaptive the length of the two stretches that are compared."""
    horizon_gain: NonNegative = 0.02
    """adaptive: success has to rise by so much from one stretch to the next, or the horizon grows."""
    horizon_spread: Annotated[float, Field(ge=0.0, le=1.0)] = 0.3
    """adaptive: the horizon grows too where the spread within groups falls below this share of its start."""
    schedules: dict[Moving, ScheduleConfig] = dataclasses.field(default_factory=dict)
    """Values that move over the iterations, by name; each starts at its own key's value."""
    epochs: Positive = 1
    """Passes over the kept rows per iteration."""
    minibatches: Positive = 1
    """Gradient steps per pass. The rows that a filter keeps are dealt out evenly; a step without any is left out. With
    one step and one epoch no ratio has moved, so that clip_low, clip_high and dual_clip do nothing."""
    accumulation: Positive = 1
    """Parts in which a minibatch is computed; changes memory, not the result."""
    row_lengths: Annotated[int, Field(ge=1, le=16)] = 1
    """Lengths that the learner's program is compiled for, equal steps up to the longest row. Rows of a minibatch are
    sorted, and each part is cut to the shortest length that holds it: less padding, more compilation, and the same
    result. It takes more than one part to gain."""

    logprobs: Literal["parallel", "rollout", "strict", "truncated", "masked"] = "parallel"
    """parallel: ratios start from the learner's own log-probabilities before the first step, for which more than one
    step takes another forward pass; rollout: from the rollout's, which saves that pass, for where both compute alike
    (float32 on CPUs), since any difference counts as a move of the policy; strict: values by replaying the rollout;
    truncated: parallel, importance-weighted; masked: likewise, without tokens whose weight is too large or small."""
    importance_cap: Annotated[float, Field(ge=1.0, le=LARGEST, allow_inf_nan=False)] = 2.0
    """Largest importance weight where logprobs is truncated or masked; masked: 1 over it is the smallest."""
    importance_level: Literal["token", "sequence"] = "token"
    """Whether a token has a weight of its own or that of its row, the geometric mean."""
    # Measured: at most 5e-7 in float32 runs of the demo's size, 1e-3 in bfloat16 with two layers. Systems with two
    # engines are known to drift by 0.01 to 0.04; beyond that something is wrong.
    logprob_gap_limit: AboveZero | None = 0.05
    """The run stops where training and rollout log-probabilities differ by more in the mean (nats); none: no limit."""

    @classmethod
    def from_preset(cls, name: Preset, **changes: Any) -> "AlgoConfig":
        """The values of a preset, and `changes` on top of them."""
        return cls(**{"preset": name, **PRESETS[name].values, **changes})
