"""Your own rule: an advantage estimator, an objective, a filter or an optimizer as a function of a module of yours.

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
from agentrl_jax.algos.own import rule

__all__ = ["AdvantageInputs", "FilterInputs", "ObjectiveInputs", "groups", "rule"]
