"""Functions of the user as entries of the tables of their kinds: estimators, objectives, filters, metrics and more."""

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any, Literal

import jax
import optax

from agentrl_jax.algos import losses
from agentrl_jax.algos.estimate import ESTIMATORS, AdvantageInputs
from agentrl_jax.algos.filters import FILTERS, FilterInputs
from agentrl_jax.algos.losses import OBJECTIVES, ObjectiveInputs
from agentrl_jax.algos.optimizers import OPTIMIZERS
from agentrl_jax.config.filters import OwnFilter
from agentrl_jax.config.optim import OwnOptimizer
from agentrl_jax.config.own import OwnAdvantage, OwnKind, OwnMetric, OwnObjective
from agentrl_jax.config.rewards import OwnPart
from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.returns import PARTS
from agentrl_jax.rollout.trajectory import Trajectory

READ_BY: dict[type, dict[str, tuple[str, ...]]] = {
    AdvantageInputs: {
        "groups": ("scores", "valid", "state"),
        "critic": ("values", "final_value"),
        "greedy": ("baseline",),
        "devices": ("devices",),
    },
    ObjectiveInputs: {"ratio": ("old_logprob", "behavior_logprob")},
    FilterInputs: {},
    Trajectory: {},
    optax.GradientTransformation: {},
}
"""By the inputs of a function (of an optimizer, what it returns), what it may need, and the fields that only a function
with this need reads."""
INPUTS: dict[type[OwnKind], type] = {
    OwnAdvantage: AdvantageInputs,
    OwnObjective: ObjectiveInputs,
    OwnFilter: FilterInputs,
    OwnPart: Trajectory,
    OwnMetric: Trajectory,
    OwnOptimizer: optax.GradientTransformation,
}
"""The inputs of the functions of each section."""
KINDS: dict[type, str] = {
    AdvantageInputs: "an advantage estimator",
    ObjectiveInputs: "an objective",
    FilterInputs: "a filter",
    Trajectory: "a function of a Trajectory",
    optax.GradientTransformation: "an optimizer",
}
"""What a function with such inputs is called."""
METRICS: dict[str, Callable[..., Any]] = {}
"""The metrics of the user, from (trajectory, section, numbers), by kind."""
_TYPES = (float, int, bool, str)


@dataclasses.dataclass(frozen=True)
class Rule:
    """A function of the user, with what it declares; a call calls the function.

    Attributes:
        inputs: the class of its first argument; of an optimizer, `optax.GradientTransformation`.
        parameters: the annotations of its keyword-only parameters, with their bounds, and their defaults
            (`inspect.Parameter.empty` without one). Floats are traced, the others static.
    """

    function: Callable[..., Any]
    inputs: type
    needs: tuple[str, ...]
    unit: Literal["token", "row"]
    parameters: dict[str, tuple[Any, Any]]

    def __call__(self, *arguments: Any, **parameters: Any) -> Any:
        """The result of the function itself."""
        return self.function(*arguments, **parameters)

    @property
    def floats(self) -> frozenset[str]:
        """Names of the parameters that are floats, which programs take as arguments, but for those of optimizers."""
        return frozenset(name for name, (kind, _) in self.parameters.items() if _plain(kind) is float)

    def hidden(self) -> dict[str, str]:
        """Fields of the inputs that it may not read, with the need that it would have to declare."""
        found = READ_BY[self.inputs].items()
        return {field: need for need, fields in found if need not in self.needs for field in fields}


def rule(
    *, needs: tuple[str, ...] = (), unit: Literal["token", "row"] = "token"
) -> Callable[[Callable[..., Any]], Rule]:
    """Declares a function of the user as an advantage estimator, an objective, a filter, or a part of the reward or a
    metric, by its first argument, or as an optimizer, which has none.

    `inputs: AdvantageInputs`: returns the advantage of every token, f32[E, S], 0 outside the mask, or with the need
    critic (advantage, target of the critic). `inputs: ObjectiveInputs`: returns the loss of every token, f32[N, S], or
    (losses, clipped), bool[N, S], where a bound determined the loss. `inputs: FilterInputs`: returns which groups of a
    batch are trained on, bool[Gr]. `trajectory: Trajectory`: as a part of the reward returns that of every turn,
    f32[E, T], of each episode for itself; as a metric (sum, count), whose ratio is reported. Without such an argument:
    returns an `optax.GradientTransformation` with learning rate 1, such as `optax.adamw(1.0)`. Its other parameters are
    keyword-only, of the types float (traced: another value does not compile again; not those of an optimizer), int,
    bool or str (static), with bounds by `Annotated`.

    `needs` has what else it reads. Advantages: groups (`scores`, `valid`, `state`; whole groups are on one device),
    critic (`values`, `final_value`), greedy (`baseline`), devices (`devices`, for sums over all groups). Objectives:
    ratio (`old_logprob`, `behavior_logprob`). `unit` is what a loss belongs to: a token, or its whole row.

    Raises:
        ValueError: a need or a unit that there is none of, or a signature that is not as above.
    """

    def declared(function: Callable[..., Any]) -> Rule:
        hints = typing.get_type_hints(function, include_extras=True)
        others = list(inspect.signature(function).parameters.values())
        inputs: Any = optax.GradientTransformation
        first = others.pop(0) if others and others[0].kind is not inspect.Parameter.KEYWORD_ONLY else None
        if first is not None:
            inputs = hints.get(first.name)
        if first is not None and (inputs not in READ_BY or inputs is optax.GradientTransformation):
            known = "AdvantageInputs, ObjectiveInputs, FilterInputs or Trajectory"
            why = f"expected {known} as the annotation of the first argument"
            raise BadValue.of(f"{function.__name__}: {first.name}", str(inputs), why)
        for need in needs:
            if need not in READ_BY[inputs]:
                why = f"expected a tuple of {' or '.join(READ_BY[inputs]) or 'nothing'}"
                raise BadValue.of(f"{function.__name__}: needs", needs, why)
        if unit not in ("token", "row") or (unit == "row" and inputs is not ObjectiveInputs):
            raise BadValue.of(f"{function.__name__}: unit", unit, "expected token, or row for an objective")
        for each in others:
            if each.kind is not inspect.Parameter.KEYWORD_ONLY or _plain(hints.get(each.name)) not in _TYPES:
                why = "expected a parameter behind *, annotated with float, int, bool or str"
                raise BadValue.of(f"{function.__name__}: parameter", each.name, why)
            if any(each.name in of.model_fields for of, made in INPUTS.items() if made is inputs):
                why = "which is a key of every such section; give it another name"
                raise BadValue.of(f"{function.__name__}: parameter", each.name, why)
        parameters = {each.name: (hints[each.name], each.default) for each in others}
        return Rule(function, inputs, tuple(needs), unit, parameters)

    return declared


def register(kind: str, rule: Rule) -> None:
    """Makes a rule an entry of the table of its kinds."""
    if rule.inputs is Trajectory:  # a part of the reward, or a metric: its section says which
        PARTS[kind] = METRICS[kind] = lambda trajectory, section, numbers: rule.function(
            trajectory, **parameters(section, numbers)
        )
    elif rule.inputs is AdvantageInputs:
        ESTIMATORS[kind] = lambda inputs, section, numbers: advantage(rule, inputs, section, numbers)
    elif rule.inputs is optax.GradientTransformation:
        OPTIMIZERS[kind] = lambda section: rule.function(**section.parameters)
    elif rule.inputs is FilterInputs:
        FILTERS[kind] = lambda inputs, section, numbers: rule.function(inputs, **parameters(section, numbers))
    else:
        OBJECTIVES[kind] = lambda inputs, section, numbers: objective(rule, inputs, section, numbers)


def advantage(rule: Rule, inputs: AdvantageInputs, section: Any, numbers: Any) -> Any:
    """As an entry of `ESTIMATORS`."""
    if "devices" not in rule.needs:
        inputs = inputs.replace(devices=None)
    found = rule.function(jax.lax.stop_gradient(inputs), **parameters(section, numbers))
    return found if "critic" in rule.needs else (found, None)


def objective(rule: Rule, inputs: ObjectiveInputs, section: Any, numbers: Any) -> Any:
    """As an entry of `OBJECTIVES`; gradients reach the log-probabilities only."""
    stopped = jax.lax.stop_gradient(inputs).replace(logprob=inputs.logprob)
    found = rule.function(stopped, **parameters(section, numbers))
    of_tokens, clipped = found if isinstance(found, tuple) else (found, None)
    return losses.with_stats(inputs, of_tokens, clipped)


def parameters(section: OwnKind, numbers: Any) -> dict[str, Any]:
    """The arguments of a function behind its inputs."""
    return {name: numbers[name] for name in section.numbers} | section.static


def _plain(annotation: Any) -> Any:
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation
