"""Static settings of an update, and the traced numbers that may change without recompilation."""

from typing import Literal

import jax
from flax import struct

from agentrl_jax.config.algo import UpdateRule
from agentrl_jax.rollout.returns import Penalties


class LearnerConfig(UpdateRule):
    """The rule of an update and the shape of its batches; static under `jax.jit`.

    `build.learner_config` sets the rule's traced numbers to None, because they are in `UpdateSettings`.
    """

    task_names: tuple[str, ...]
    """Name of each task, for the metrics."""
    group_size: int
    """M, trajectories per group."""
    context: Literal["full", "single_turn"] = "full"
    """As in the rollout."""
    context_tokens: int = 0
    """As in the rollout."""

    @property
    def old_logprobs(self) -> Literal["rollout", "learner", "same_pass"]:
        """Source of the old log-probabilities in the ratio of the policy loss.

        rollout: the rollout, whose log-probabilities equal those of a replay bit for bit. learner: an extra forward
        pass of the learner before the first step. same_pass: the forward pass of the step itself, because each batch
        has a single step or the objective uses no ratio.
        """
        if self.mismatch.ratio_from == "rollout":
            return "rollout"
        single = self.epochs * self.minibatches == 1 or self.objective.kind == "policy_gradient"
        if self.mismatch.kind == "none" and single and self.kl.apply_to != "reward":
            return "same_pass"
        return "learner"


class UpdateSettings(struct.PyTreeNode):
    """Traced numbers of an update, all f32[]; changing one does not recompile. Numbers that the rule ignores are 0.

    `hold_policy` is 1 while only the critic is trained, else 0; `overlong_buffer` is a share of the longest response;
    `filter_value` is the `p` or `k` of the filter.
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
        """Penalties that are added to the rewards of the environment."""
        return Penalties(self.format_penalty, self.overlong_buffer, self.overlong_penalty)
