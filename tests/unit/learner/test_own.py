"""Functions of the user are called as the kinds that come with the package are."""

import typing
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from agentrl_jax.config.own import OwnAdvantage, OwnObjective
from agentrl_jax.learner import own
from agentrl_jax.rules import AdvantageInputs, ObjectiveInputs, rule

MASK = jnp.array([[True, True, False]])


@rule(needs=("ratio",))
def product(inputs: ObjectiveInputs, *, scale: float = 1.0, plus: int = 0):
    return (scale * inputs.advantage * inputs.old_logprob * inputs.entropy + plus) * inputs.logprob


@rule()
def bounded(inputs: ObjectiveInputs, *, scale: Annotated[float, Field(gt=0)] = 0.5, plus: int = 0):
    return (scale + plus) * inputs.logprob


@rule(needs=("groups",))
def of_groups(inputs: AdvantageInputs):
    return inputs.rewards


@rule(needs=("critic",))
def of_critic(inputs: AdvantageInputs):
    return inputs.rewards - inputs.values, inputs.rewards


def test_the_bounds_of_a_parameter_are_kept():
    kind, default = bounded.parameters["scale"]
    assert (typing.get_args(kind)[1].metadata[0].gt, default) == (0, 0.5)
    assert bounded.floats == {"scale"}


def test_gradients_reach_the_log_probabilities_alone():
    section = OwnObjective(kind="my_rules:product", numbers={"scale": 1.0}, static={"plus": 2})
    inputs = ObjectiveInputs(*jnp.full((4, 1, 3), 3.0), MASK, jnp.full((1, 3), 0.5))

    def total(inputs):
        found, stats = own.objective(product, inputs, section, {"scale": jnp.float32(2.0)})
        return jnp.sum(found), stats

    slopes, stats = jax.grad(total, has_aux=True, allow_int=True)(inputs)
    np.testing.assert_allclose(slopes.logprob, [[11.0, 11.0, 0.0]])  # 2 x 3 x 3 x 0.5 + 2
    for name in ("old_logprob", "behavior_logprob", "advantage", "entropy"):
        assert not np.any(getattr(slopes, name)), name
    assert not np.any(stats.clipped)


def test_only_a_function_with_a_critic_returns_targets():
    rewards, values = jnp.ones((1, 3)), jnp.full((1, 3), 0.25)
    others = dict.fromkeys({*AdvantageInputs.__dataclass_fields__} - {"rewards", "values"})
    inputs = AdvantageInputs(rewards=rewards, values=values, **others)
    found = own.advantage(of_groups, inputs, OwnAdvantage(kind="my_rules:of_groups"), {})
    assert isinstance(found, tuple)
    assert (found[0].tolist(), found[1]) == (rewards.tolist(), None)
    advantage, target = own.advantage(of_critic, inputs, OwnAdvantage(kind="my_rules:of_critic"), {})
    assert (advantage.tolist(), target.tolist()) == ([[0.75] * 3], rewards.tolist())
