"""Your own rule: an estimator, objective, filter, part of the reward, metric or optimizer as a function of yours.

    from agentrl_jax.rules import AdvantageInputs, groups, rule

    @rule(needs=("groups",))
    def centered(inputs: AdvantageInputs, *, strength: float = 1.0):
        base = groups.group_mean(inputs.scores, inputs.valid)[:, None]
        return strength * (inputs.scores - base).reshape(-1, 1) * inputs.mask

In a file or a command it is `algo.advantage: my_rules:centered`; see docs/guides/own_rules.md.
"""

from agentrl_jax.algos import groups
from agentrl_jax.algos.estimate import AdvantageInputs
from agentrl_jax.algos.filters import FilterInputs
from agentrl_jax.algos.losses import ObjectiveInputs
from agentrl_jax.learner.own import rule
from agentrl_jax.rollout.trajectory import Trajectory

__all__ = ["AdvantageInputs", "FilterInputs", "ObjectiveInputs", "Trajectory", "groups", "rule"]
