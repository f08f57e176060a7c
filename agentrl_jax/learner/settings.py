"""Static settings of an update, and the traced numbers that may change without recompilation."""

from typing import Literal

from flax import struct
from jaxtyping import Array, Float

from agentrl_jax.config.algo import UpdateRule
from agentrl_jax.learner.gradient import StepShape
from agentrl_jax.rollout.contexts import FULL, Context
from agentrl_jax.rollout.returns import NamedPart, RewardRule


class LearnerConfig(UpdateRule):
    """The rule of an update and the shape of its batches; static under `jax.jit`.

    `build_inputs.learner_config` sets the rule's traced numbers to None, because they are in `UpdateSettings`.
    """

    task_names: tuple[str, ...]
    """Name of each task, for the metrics."""
    group_size: int
    """M, trajectories per group."""
    context: Context = FULL
    """As in the rollout."""
    context_tokens: int = 0
    """As in the rollout."""
    length_buckets: int = 1
    hint_at: int = 0
    """Least tokens of a task's prefix before a hint, which a teacher's rows have in common as far as a student's do."""
    weighs_tasks: bool = False
    """Some task has another weight than 1 in the losses, or `balance_tasks` is set."""
    reward_parts: tuple[NamedPart, ...] = ()
    """Parts of the reward, whose traced numbers are in `UpdateSettings`."""
    normalize_rewards: Literal["none", "group"] = "none"
    """As in `config.algo`, as the next."""
    skip_truncated: tuple[str, ...] = ()
    recorded_episodes: int = 0
    """First episodes of the batch whose advantages are returned as the metric "recorded"; 0: none."""

    @property
    def step_shape(self) -> StepShape:
        """How a gradient step is computed."""
        return StepShape(self.grad_accum_steps, self.length_buckets, self.packing)

    @property
    def old_logprobs(self) -> Literal["rollout", "learner", "same_pass"]:
        """Source of the old log-probabilities in the ratio of the policy loss.

        rollout: the rollout, whose log-probabilities equal those of a replay bit for bit. learner: an extra forward
        pass of the learner before the first step. same_pass: the forward pass of the step itself, because each batch
        has a single step or no loss uses a ratio, and `tokens` reads none.
        """
        if self.mismatch.ratio_from == "rollout":
            return "rollout"
        weighs = self.distillation.kind == "self" and self.distillation.loss == "sampled"
        single = self.epochs * self.minibatches == 1 or not (self.objective.has_ratio or weighs)
        single &= self.tokens.reads != "logprob"
        if self.mismatch.kind == "none" and single and self.kl.apply_to != "reward":
            return "same_pass"
        return "learner"


class UpdateSettings(struct.PyTreeNode):
    """Traced numbers of an update; changing one does not recompile.

    `numbers` are those of the rule by their keys below `algo`, such as objective.clip_low. `freeze_policy` is 1 while
    only the critic is trained, else 0; `overlong_buffer` is a share of the longest response. `task_weight` has
    factors on the losses of K tasks.
    """

    lr: Float[Array, ""]
    critic_lr: Float[Array, ""]
    max_grad_norm: Float[Array, ""]
    average_rate: Float[Array, ""]
    entropy_coef: Float[Array, ""]
    entropy_target: Float[Array, ""]
    entropy_step: Float[Array, ""]
    format_penalty: Float[Array, ""]
    freeze_policy: Float[Array, ""]
    overlong_buffer: Float[Array, ""]
    overlong_penalty: Float[Array, ""]
    task_weight: Float[Array, " K"]
    numbers: dict[str, Float[Array, ""]]

    def of(self, section: str) -> dict[str, Float[Array, ""]]:
        """The numbers of a section of `algo`, by their names there."""
        keys = (key for key in self.numbers if key.startswith(f"{section}."))
        return {key.removeprefix(f"{section}."): self.numbers[key] for key in keys}

    def rewards(self, parts: tuple[NamedPart, ...]) -> RewardRule:
        """What is added to the rewards of the environment, with these parts."""
        penalties = self.format_penalty, self.overlong_buffer, self.overlong_penalty
        return RewardRule(*penalties, self.of("rewards"), parts)
