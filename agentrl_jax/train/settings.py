"""What fixes the program of an update, and the numbers that may move without a new one."""

import dataclasses
from typing import Literal

import jax
from flax import struct

from agentrl_jax.algos import filters, kl, losses
from agentrl_jax.algos import rewards as reward_rules
from agentrl_jax.algos.estimate import WITH_CRITIC, Advantage, EstimatorRule
from agentrl_jax.rollout.returns import Penalties


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """What fixes the program of an update. Numbers that may move are in `UpdateSettings`.

    Attributes:
        task_names: name of each task, for the metrics.
        members: M.
        context: "full" or "single_turn", as in the rollout.
        advantage, grpo_std, anchor_history, spread_weighted, length_weighted: see `estimator`.
        whiten: whiten advantages over the batch.
        anchor: "state" or "observation", what gigpo takes for the same state.
        objective: "clip", "gspo", "cispo" or "policy_gradient".
        dual_clip: bound for negative advantages; None for none.
        value_clip: None for none.
        kl_kind: estimator of `agentrl_jax.algos.kl`.
        kl_where: "none", "loss" or "reward", which takes "k1" alone.
        kl_adaptive: the coefficient of the divergence moves towards `UpdateSettings.kl_target`.
        aggregation: mode of `losses.token_weights`.
        reward_placement: "episode" or "turn".
        bootstrap_truncated: the critic's value follows the last token of truncated episodes.
        reward_normalisation: method of `rewards.normalise`.
        reward_grouping: "state", "task" or "batch": which episodes are normalised together.
        filter_rule: "fraction", or a rule of `filters.chosen_groups`.
        filter_ratio: share of groups that "fraction" keeps.
        filter_kind: what groups are ranked by, see `filters.group_scores`.
        filter_largest: the best groups have the largest scores.
        filter_zero: the other rules may keep groups whose score is 0.
        filter_members: members kept of each group; 0 for all.
        epochs, minibatches, accumulation: passes, gradient steps per pass, parts of a minibatch.
        row_lengths: number of lengths that parts are cut to.
        logprobs: "parallel", "rollout", "strict", "truncated" or "masked": where the log-probabilities of the policy
            loss come from, see `old_logprobs`.
        importance_cap: largest importance weight of "truncated" and "masked".
        importance_level: "token" or "sequence".
    """

    task_names: tuple[str, ...]
    members: int
    context: str
    advantage: Advantage
    grpo_std: bool
    anchor: str
    anchor_history: int
    spread_weighted: bool
    length_weighted: bool
    whiten: bool
    objective: losses.Objective
    dual_clip: float | None
    value_clip: float | None
    kl_kind: kl.Kind
    kl_where: str
    kl_adaptive: bool
    aggregation: losses.Aggregation
    reward_placement: reward_rules.Placement
    bootstrap_truncated: bool
    reward_normalisation: reward_rules.Normalisation
    reward_grouping: str
    filter_rule: filters.Rule | Literal["fraction"]
    filter_ratio: float
    filter_kind: filters.ScoreKind
    filter_largest: bool
    filter_zero: bool
    filter_members: int
    epochs: int
    minibatches: int
    accumulation: int
    row_lengths: int
    context_tokens: int
    logprobs: Literal["parallel", "rollout", "strict", "truncated", "masked"]
    importance_cap: float
    importance_level: losses.Level

    @property
    def estimator(self) -> EstimatorRule:
        """What `algos.estimate` is told of the advantages, which are whitened once they have been logged."""
        return EstimatorRule(
            advantage=self.advantage,
            normalise_std=self.grpo_std,
            history=self.anchor_history,
            spread_weighted=self.spread_weighted,
            length_weighted=self.length_weighted,
        )

    @property
    def old_logprobs(self) -> Literal["rollout", "learner", "same_pass"]:
        """Where the ratio of the policy loss starts from.

        rollout: the rollout's log-probabilities, which are those of a strict learner bit for bit. learner: a forward
        pass of the learner's own before the first step. same_pass: no pass, since each batch has a single step, whose
        forward pass is the one before it; or since the objective reads no ratio.
        """
        if self.logprobs in ("rollout", "strict"):
            return "rollout"
        single = self.epochs * self.minibatches == 1 or self.objective == "policy_gradient"
        if self.logprobs == "parallel" and single and self.kl_where != "reward":
            return "same_pass"
        return "learner"

    @property
    def has_critic(self) -> bool:
        """Whether a critic is read and trained."""
        return self.advantage in WITH_CRITIC


class UpdateSettings(struct.PyTreeNode):
    """Traced numbers of an update, all f32[]: changing one compiles nothing.

    `hold_policy` is 1 while only the critic learns, else 0; `overlong_buffer` is a share of the longest reply.
    """

    lr: jax.Array
    critic_lr: jax.Array
    max_grad_norm: jax.Array
    clip_low: jax.Array
    clip_high: jax.Array
    value_coef: jax.Array
    entropy_coef: jax.Array
    kl_coef: jax.Array
    gamma: jax.Array
    lam: jax.Array
    turn_gamma: jax.Array
    step_weight: jax.Array
    history_power: jax.Array
    filter_value: jax.Array
    kl_target: jax.Array
    kl_horizon: jax.Array
    format_penalty: jax.Array
    hold_policy: jax.Array
    overlong_buffer: jax.Array
    overlong_penalty: jax.Array

    @property
    def penalties(self) -> Penalties:
        """What turns pay besides the rewards of their environment."""
        return Penalties(self.format_penalty, self.overlong_buffer, self.overlong_penalty)
