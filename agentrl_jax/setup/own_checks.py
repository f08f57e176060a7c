"""Checks of the user's rules on a tiny batch, before a run begins. Each refusal names the function and what it did.

Shapes: `E` episodes in `Gr` groups of `M`, `T` turns, `S` positions; `N` rows of `S`.
"""

import functools
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax

from agentrl_jax.algos.estimate import AdvantageInputs
from agentrl_jax.algos.filters import FilterInputs
from agentrl_jax.algos.losses import ObjectiveInputs
from agentrl_jax.config.optim import OwnOptimizer
from agentrl_jax.config.own import OwnKind
from agentrl_jax.errors import MAX_FOREIGN, BadValue, shortened
from agentrl_jax.learner import own
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.runs.checkpoint import Checkpoints

GROUPS, GROUP_SIZE, TURNS, SAID = 4, 3, 2, 3
LENGTH = TURNS * SAID
FAR = 50.0
"""Log-ratios at which losses must be finite."""
_AXIS = "devices"


class _Halves:
    """`masked.Devices` for the parts of a batch under `jax.vmap`."""

    def sum(self, tree: Any) -> Any:
        """Sum over the parts."""
        return jax.lax.psum(tree, _AXIS)

    def largest(self, tree: Any) -> Any:
        """Maximum over the parts."""
        return jax.lax.pmax(tree, _AXIS)


def check(key: str, section: OwnKind, rule: own.Rule) -> None:
    """Checks a rule, with the numbers of its section.

    Raises:
        ValueError: what the rule does wrong.
    """
    if isinstance(section, OwnOptimizer):
        with jax.debug_nans(False):
            check_optimizer(key, section, rule)
        return
    if rule.inputs not in _CHECKS:  # see `own_episodes`
        return
    numbers = {name: jnp.float32(value) for name, value in section.numbers.items()}
    made, checks = _CHECKS[rule.inputs][0](), _CHECKS[rule.inputs][1]

    def traced(inputs: Any, numbers: Any) -> Any:
        return rule.function(inputs, **numbers, **section.static)

    call = functools.partial(traced, numbers=numbers)
    if "devices" in rule.hidden():
        made = made.replace(devices=None)
    with jax.debug_nans(False):
        refuse_untraceable(key, section, traced, made, numbers)
        try:
            why = next(checks(rule, call, made), "")
        except Exception as error:  # in groups of one, say
            raise BadValue.of(key, section.kind, failure(error)) from error
        if why:
            raise BadValue.of(key, section.kind, why)


def check_optimizer(key: str, section: OwnOptimizer, rule: own.Rule) -> None:
    """Checks an optimizer by three steps on a tiny decoder's tree, of which the state is saved and restored once.

    Raises:
        ValueError: what it does wrong.
    """

    def refuse(why: str) -> NoReturn:
        raise BadValue.of(key, section.kind, why)

    draw = np.random.default_rng(4)
    shapes = {"embedding": (5, 4), "layers": {"query": (2, 4, 6), "attention_norm": (2, 4)}, "final_norm": (4,)}
    params, grads = (
        jax.tree.map(lambda n: jnp.float32(draw.normal(size=n)), shapes, is_leaf=lambda n: isinstance(n, tuple))
        for _ in range(2)
    )
    try:
        tx = rule.function(**section.parameters)
        state = tx.init(params) if isinstance(tx, optax.GradientTransformation) else None
    except Exception as error:
        raise BadValue.of(key, section.kind, failure(error)) from error
    if not isinstance(tx, optax.GradientTransformation):
        refuse(f"which returns {type(tx).__name__}; expected an optax.GradientTransformation")
    if not all(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(state)):
        refuse("whose state has values that are no arrays; keep them outside of it")

    def step(inputs: Any, _: Any) -> Any:
        return tx.update(*inputs)

    refuse_untraceable(key, section, step, (grads, state, params), {})
    run, first, moved = jax.jit(step), state, params
    for _ in range(3):
        updates, after = run((grads, state, moved), {})
        if _kinds_of(updates) != _kinds_of(params):
            refuse("whose updates are not like the parameters in shape and type")
        if _kinds_of(after) != _kinds_of(state):
            refuse("whose state changes its shape or its types in a step, so that no program could be kept")
        state, moved = after, jax.tree.map(jnp.add, moved, updates)
    still = run((jax.tree.map(jnp.zeros_like, grads), first, params), {})
    if why := next(_finite((updates, state, still)), ""):
        refuse(f"{why} in its steps, or where the gradient is 0")
    change = jax.tree.map(lambda a, b, g: jnp.sum((a - b) * g), moved, params, grads)
    if not sum(map(float, jax.tree.leaves(change))) < 0:
        refuse("which does not step against the gradient; return one with learning rate 1, such as optax.sgd(1.0)")
    if jax.process_count() == 1:
        with tempfile.TemporaryDirectory() as folder, Checkpoints(folder, keep=None) as checkpoints:
            kept = {"params": params, "state": state}
            checkpoints.save(1, kept, {}, wait=True)
            restored = checkpoints.restore(1, kept)
        if not all(map(_same, jax.tree.leaves(restored), jax.tree.leaves(kept))):
            refuse("whose state is another one after it was saved and restored")


def _kinds_of(tree: Any) -> Any:
    return jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x).name), tree)


def failure(error: Exception) -> str:
    """What is said of a function that raises an error."""
    return f"which fails: {type(error).__name__}: {shortened(error, MAX_FOREIGN)}"


def refuse_untraceable(key: str, section: OwnKind, traced: Callable[..., Any], made: Any, numbers: Any) -> None:
    """Refuses a function of (inputs, numbers) that cannot be compiled, or that calls back to Python while it runs.

    Raises:
        ValueError: why.
    """
    try:
        program = jax.make_jaxpr(traced)(made, numbers)
    except (jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError) as error:
        names = ", ".join(section.numbers)
        why = "which decides in Python by a traced value (if, while, int(), float() or bool()); use jnp.where"
        why += f", or annotate a parameter as int or bool to make it static (traced are {names})" if names else ""
        raise BadValue.of(key, section.kind, why) from error
    except Exception as error:
        raise BadValue.of(key, section.kind, failure(error)) from error
    for name in _primitives(program.jaxpr):
        if "callback" in name or name.startswith("debug"):
            why = f"which calls Python while the program runs ({name}); leave out callbacks and jax.debug.print"
            raise BadValue.of(key, section.kind, why)


def _primitives(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _primitives(inner)


def advantage_inputs(group_size: int = GROUP_SIZE) -> AdvantageInputs:
    """Episodes of which one is invalid, one has no tokens, and those of one group have equal returns."""
    draw, count = np.random.default_rng(0), GROUPS * group_size
    length = draw.integers(1, SAID + 1, (count, TURNS))
    length[1] = 0
    slot = np.arange(LENGTH)
    mask = slot % SAID < length[:, slot // SAID]
    last = np.where(length > 0, np.arange(TURNS) * SAID + length - 1, -1)
    reward = np.where(length > 0, draw.normal(size=(count, TURNS)), 0.0)
    reward[-group_size:] = [0.5, 0.25]
    placed = np.zeros((count, LENGTH))
    np.put_along_axis(placed, np.maximum(last, 0), np.where(last >= 0, reward, 0.0), axis=1)
    valid = np.ones((GROUPS, group_size), bool)
    valid[1, 0] = False
    return AdvantageInputs(
        rewards=jnp.float32(placed * mask),
        values=jnp.float32(draw.normal(size=mask.shape)),
        mask=jnp.asarray(mask),
        turn=jnp.broadcast_to(jnp.int32(slot // SAID), mask.shape),
        turn_end=jnp.asarray((last[:, :, None] == slot).any(axis=1)),
        scores=jnp.float32(reward.sum(axis=1).reshape(GROUPS, group_size)),
        valid=jnp.asarray(valid),
        baseline=jnp.float32(draw.normal(size=GROUPS)),
        turn_rewards=jnp.float32(reward),
        state=jnp.asarray(draw.integers(0, 3, (count, TURNS, 2)), jnp.uint32),
        turn_mask=jnp.asarray(length > 0),
        final_value=jnp.zeros(count, jnp.float32),
        devices=Shards(),
    )


def objective_inputs() -> ObjectiveInputs:
    """Rows in the second step of a batch, of which one has no sampled tokens."""
    draw, shape = np.random.default_rng(1), (4, LENGTH)
    logprob = draw.uniform(-3.0, -0.1, shape)
    mask = draw.random(shape) < 0.7
    mask[0, :3], mask[1] = True, False
    return ObjectiveInputs(
        logprob=jnp.float32(logprob),
        old_logprob=jnp.float32(logprob + draw.normal(0.0, 0.3, shape)),
        behavior_logprob=jnp.float32(logprob + draw.normal(0.0, 0.3, shape)),
        advantage=jnp.float32(draw.normal(size=shape)),
        mask=jnp.asarray(mask),
        entropy=jnp.float32(draw.uniform(0.1, 2.0, shape)),
    )


def _advantage_checks(rule: own.Rule, call: Callable[..., Any], e: AdvantageInputs) -> Iterator[str]:
    shape, critic, run = e.mask.shape, "critic" in rule.needs, jax.jit(call)
    found = run(e)
    parts = found if critic else (found,)
    if not (isinstance(parts, tuple) and len(parts) == 1 + critic):
        yield "expected (advantage, target), because it needs a critic"
    for part in parts:
        yield from _array(part, shape)
        yield from _finite(part)
    if np.any(np.where(e.mask, 0.0, parts[0])):
        yield "which is not 0 outside the mask; multiply by inputs.mask"
    yield from _undeclared(rule, run, e, found)
    noise = np.random.default_rng(2).normal(size=shape)
    outside = e.replace(values=jnp.where(e.mask, e.values, noise))  # rewards are 0 there
    if not _same(np.where(e.mask, run(outside)[0] if critic else run(outside), 0.0), parts[0]):
        yield "which depends on values outside the mask; use them where inputs.mask is true only"
    other = e.replace(scores=jnp.where(e.valid, e.scores, 7.0))
    counted = np.repeat(np.asarray(e.valid).reshape(-1), LENGTH).reshape(shape)
    again = run(other)[0] if critic else run(other)
    if not _same(np.where(counted, again, 0.0), np.where(counted, parts[0], 0.0)):
        yield "which depends on scores of episodes that are not valid; leave them out, as groups.group_mean does"
    yield from _finite(call(_alone(e)), " in groups of one member")
    yield from _divided(rule, call, e, found)


def _alone(e: AdvantageInputs) -> AdvantageInputs:
    return advantage_inputs(1).replace(devices=e.devices)


def _divided(rule: own.Rule, call: Callable[..., Any], e: AdvantageInputs, found: Any) -> Iterator[str]:
    """The same on two devices, each with half of the groups."""
    halves = jax.tree.map(lambda x: x.reshape(2, len(x) // 2, *x.shape[1:]), e.replace(devices=None))
    devices = _Halves() if "devices" in rule.needs else None
    apart = jax.vmap(lambda part: call(part.replace(devices=devices)), axis_name=_AXIS)(halves)
    apart = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), apart)
    if not all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(jax.tree.leaves(apart), jax.tree.leaves(found))):
        yield "which depends on how groups are divided among devices; add over all of them with inputs.devices.sum"


def _objective_checks(rule: own.Rule, call: Callable[..., Any], i: ObjectiveInputs) -> Iterator[str]:
    def of_tokens(inputs: ObjectiveInputs) -> Any:
        found = call(inputs)
        return found[0] if isinstance(found, tuple) else found

    run, shape, found = jax.jit(of_tokens), i.mask.shape, call(i)
    if isinstance(found, tuple) and len(found) != 2:
        yield "expected losses, or (losses, clipped)"
    for part in found if isinstance(found, tuple) else (found,):
        yield from _array(part, shape)
    yield from _finite(run(i))
    yield from _undeclared(rule, run, i, run(i))
    tokens, first = np.asarray(i.mask), np.zeros(shape, bool)
    first[0, 0] = True
    for where, kept, what in (
        (~tokens, tokens, "what stands outside the mask; use it where inputs.mask is true only"),
        (first, tokens & ~first if rule.unit == "token" else tokens & (np.arange(len(tokens)) > 0)[:, None],
         "other tokens; say unit='row' if it compares those of a row" if rule.unit == "token" else "other rows"),
    ):  # fmt: skip
        other = jax.tree.map(lambda x, w=where: x if x.dtype == bool else jnp.where(w, 1.7 * x - 0.3, x), i)
        if not _same(np.where(kept, run(other), 0.0), np.where(kept, run(i), 0.0)):
            yield f"whose loss of a token depends on {what}"

    def total(logprob: Any, gap: float) -> Any:
        moved = i.replace(old_logprob=i.logprob - gap, behavior_logprob=i.logprob - gap)
        moved = jax.lax.stop_gradient(moved).replace(logprob=logprob)
        return jnp.sum(jnp.where(i.mask, of_tokens(moved), 0.0))

    slope = jax.jit(jax.value_and_grad(total))
    for gap in (0.0, FAR, -FAR):
        value, gradient = slope(i.logprob, gap)
        yield from _finite((value, gradient), f", with its gradient, at a log-ratio of {gap:g}")
        if gap == 0 and not np.any(np.asarray(gradient)):
            yield "whose loss has no gradient in logprob, so that nothing would be learned"


def filter_inputs() -> FilterInputs:
    """Groups of which one has equal returns, one no member that counts, and one an episode without tokens."""
    draw, shape = np.random.default_rng(3), (6, GROUP_SIZE)
    returns, length, valid = draw.normal(size=shape), draw.integers(1, 9, shape), draw.random(shape) < 0.8
    returns[0], valid[1], length[2, 0] = 0.5, False, 0
    entropy = np.where(length > 0, draw.uniform(0.1, 2.0, shape), 0.0)
    return FilterInputs(jnp.float32(returns), jnp.float32(entropy), jnp.float32(length), jnp.asarray(valid))


def _filter_checks(rule: own.Rule, call: Callable[..., Any], i: FilterInputs) -> Iterator[str]:
    found = call(i)
    if getattr(found, "shape", None) != (len(i.valid),) or found.dtype != bool:
        shaped = getattr(found, "shape", None)
        what = type(found).__name__ if shaped is None else f"{found.dtype} of shape {list(shaped)}"
        yield f"which returns {what}; expected bool of shape [{len(i.valid)}], one for each group"
    other = jax.tree.map(lambda x: x if x.dtype == bool else jnp.where(i.valid, x, 7.0), i)
    counted = np.any(i.valid, axis=1)
    if not _same(np.asarray(call(other))[counted], np.asarray(found)[counted]):
        yield "which depends on episodes that are not valid; leave them out, as groups.group_mean does"


def _array(found: Any, shape: tuple[int, ...]) -> Iterator[str]:
    if getattr(found, "shape", None) != shape:
        shaped = getattr(found, "shape", None)
        what = type(found).__name__ if shaped is None else f"an array of shape {list(shaped)}"
        yield f"which returns {what}; expected {list(shape)}, one number for each token"


def _finite(found: Any, where: str = "") -> Iterator[str]:
    if not all(np.isfinite(np.asarray(x, np.float64)).all() for x in jax.tree.leaves(found)):
        yield f"which is not finite{where}"


def _undeclared(rule: own.Rule, run: Callable[..., Any], inputs: Any, found: Any) -> Iterator[str]:
    """Fields that it reads without declaring the need: each alone is NaN, or other bits."""
    for field, need in rule.hidden().items():
        value = getattr(inputs, field)
        if value is None:
            continue
        other = ~value if value.dtype == bool else value + 1 if value.dtype == jnp.uint32 else value * jnp.nan
        again = run(inputs.replace(**{field: other}))
        if not all(map(_same, jax.tree.leaves(again), jax.tree.leaves(found))):
            yield f"which reads {field}, but does not say so; write @rule(needs=({need!r},))"


def _same(a: Any, b: Any) -> bool:
    return np.array_equal(np.asarray(a), np.asarray(b))


_CHECKS: dict[type, tuple[Callable[[], Any], Callable[..., Iterator[str]]]] = {
    AdvantageInputs: (advantage_inputs, _advantage_checks),
    ObjectiveInputs: (objective_inputs, _objective_checks),
    FilterInputs: (filter_inputs, _filter_checks),
}
