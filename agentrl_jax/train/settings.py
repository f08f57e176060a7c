"""What fixes the program of an update, and the numbers that may move without a new one."""

import dataclasses

import jax
from flax import struct

from agentrl_jax.algos import kl, losses
from agentrl_jax.algos import rewards as reward_rules


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """What fixes the program of an update. Numbers that may move are in `UpdateSettings`.

    Attributes:
        task_names: name of each task, for the metrics.
        members: M.
        context: "full" or "single_turn", as in the rollout.
        advantage: "gae" or "grpo".
        grpo_std: divide the group-relative return by the group's standard deviation.
        whiten: whiten advantages over the batch.
        dual_clip: bound for negative advantages; None for none.
        value_clip: None for none.
        kl_kind: estimator of `agentrl_jax.algos.kl`.
        kl_where: "none", "loss" or "reward".
        aggregation: mode of `losses.token_weights`.
        reward_placement: "episode" or "turn".
        reward_normalisation: method of `rewards.normalise`.
        filter_ratio: share of groups kept.
        filter_kind: "std" keeps the groups with the largest spread of returns, "std_rev" the smallest.
        epochs, minibatches, accumulation: passes, gradient steps per pass, parts of a minibatch.
        logprobs: "parallel", "strict" or "truncated": where the log-probabilities of the policy loss come from.
        importance_cap: largest importance weight of "truncated".
    """

    task_names: tuple[str, ...]
    members: int
    context: str
    advantage: str
    grpo_std: bool
    whiten: bool
    dual_clip: float | None
    value_clip: float | None
    kl_kind: kl.Kind
    kl_where: str
    aggregation: losses.Aggregation
    reward_placement: reward_rules.Placement
    reward_normalisation: reward_rules.Normalisation
    filter_ratio: float
    filter_kind: str
    epochs: int
    minibatches: int
    accumulation: int
    logprobs: str
    importance_cap: float


class UpdateSettings(struct.PyTreeNode):
    """Traced numbers of an update, all f32[]: changing one compiles nothing."""

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
    format_penalty: jax.Array
