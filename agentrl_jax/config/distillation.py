"""The section of a learning rule about a teacher that knows more: on-policy self-distillation."""

from typing import Annotated, Literal

from pydantic import Field

from agentrl_jax.config.fields import LARGEST, TRACED, AboveZero, NonNegative, Section, Share


class NoDistillation(Section):
    """No teacher."""

    kind: Literal["none"] = "none"


class SelfDistillation(Section):
    """The policy itself teaches, reading more than it may read when it plays: each sampled token is pulled towards its
    probability after a prompt with the plan of the level (SDPO, Huebotter et al. 2026, arXiv 2601.20802)."""

    kind: Literal["self"] = "self"
    coef: Annotated[AboveZero, TRACED] = 1.0
    """Weight of the distillation loss."""
    rl_coef: Annotated[NonNegative, TRACED] = 1.0
    """Weight of the policy's loss of reinforcement learning, entropy bonus included. 0: pure distillation. KL penalty
    and value loss have weights of their own."""
    loss: Literal["sampled", "full"] = "sampled"
    """sampled: an advantage for every sampled token, the log of the teacher's probability divided by the student's;
    full: the exact reverse KL divergence over the whole vocabulary at every sampled token."""
    ratio_cap: Annotated[float, Field(ge=1.0, le=LARGEST, allow_inf_nan=False)] = 2.0
    """Largest importance weight of a token whose policy has changed since it was sampled; of loss sampled."""
    teacher: Literal["current", "ema", "reference"] = "current"
    """Whose parameters teach. current: those of the student; ema: their moving average; reference: those at the start
    of learning, which stay."""
    ema_rate: Annotated[Share, TRACED] = 0.05
    """Share of the student in the moving average at every gradient step; of teacher ema."""
    context: Literal["plan", "wrong_plan", "none"] = "plan"
    """What the teacher reads besides. plan: a shortest plan of the level in its prompt, with which it judges the turns
    that begin on the plan; wrong_plan: that of another level, with which it judges the same turns, a control; none:
    nothing, so that a current teacher teaches nothing."""
    gate: Literal["none", "sdar"] = "none"
    """sdar: a token's loss is multiplied by the logistic function of the teacher's advantage, so that tokens which the
    teacher rejects count less (SDAR, Lu et al. 2026, arXiv 2605.15155)."""
    gate_slope: AboveZero = 1.0
    """Slope of that function; of gate sdar."""
    accept_weak_teacher: bool = False
    """Learn from a teacher whose success with its prompt is less than 20 points above the student's before the first
    iteration. Without it such a run is refused."""

    @property
    def has_plans(self) -> bool:
        """Whether the teacher reads plans."""
        return self.context != "none"


Distillation = Annotated[NoDistillation | SelfDistillation, Field(discriminator="kind")]
