"""The section of a configuration about imitation learning."""

from typing import Annotated, Literal

from pydantic import Field

from agentrl_jax.config.fields import Count, Decay, Fraction, NonNegative, Positive, Section

IMITATION_CHUNK = 25
"""Maximum number of imitation steps per dispatch and per row of metrics."""


class ImitationConfig(Section):
    """Imitation learning before reinforcement learning."""

    levels: Annotated[int, Field(ge=0, le=2**20)] = 0
    """Number of levels of each task whose plans are imitated, different ones with plans of an oracle; 0: no
    imitation."""
    plans: Annotated[str, Field(pattern=r"^[a-z]+(_[a-z]+)*$")] = "optimal"
    """optimal: shortest plans, or nearly (BabyAI); exploring: the same, after looking around until what the task is
    about has been seen, without what does not fit into an episode (BabyAI); random: uniformly random actions, which
    teach the response format only. In environments of commands a scripted policy, such as always_search in searchqa;
    optimal is that which knows the answer."""
    steps: Count = 0
    """Gradient steps of imitation."""
    batch: Positive = 64
    """Plans per gradient step, or turns where the model sees one turn at a time; about so many with algo.packing."""
    lr: NonNegative = 1e-3
    """Learning rate of imitation."""
    schedule: Literal["constant", "linear"] = "constant"
    """constant, or linear to 0 at the last step."""
    noise: Decay = 0.0
    """Share of turns with random actions, after which the oracle continues; only the oracle's actions are imitated
    (DART, Laskey et al. 2017, arXiv 1703.09327). For services that know the best action in every state: textcraft."""
    random_start: Count = 0
    """Most random actions before a plan starts: the number is uniform from 0, and only the plan is imitated. For
    compiled environments whose planner starts in every situation: BabyAI."""
    images: Annotated[int, Field(ge=0, le=64)] = 0
    """Further images of every level under random symmetries of its environment, with the same plan, which is searched
    once: BabyAI with its colors permuted. Images that are no training levels are left out."""
    hinted: Fraction = 0.0
    """Share of the demonstrations, not of DAgger's, whose prompt shows their plan, as that of a teacher does, see
    algo.distillation. For compiled environments and agent full."""
    dagger_rounds: Annotated[int, Field(ge=0, le=64)] = 0
    """Rounds of DAgger (Ross et al. 2011, arXiv 1011.0686) at equal distances during imitation. In each the policy
    plays dagger_levels new training levels; plans that take over from it in as many situations are added to the
    demonstrations. For compiled environments whose planner starts in every situation: BabyAI and Sokoban."""
    dagger_levels: Annotated[int, Field(ge=0, le=2**20)] = 0
    """Levels of each task that the policy plays in a round of DAgger; those of a level file are used in rotation."""

    @property
    def chunks(self) -> int:
        """Number of dispatches of imitation."""
        return -(-self.steps // IMITATION_CHUNK) if self.levels else 0
