"""Updates with a teacher that reads hints."""

import jax
import jax.numpy as jnp
import numpy as np
from made_up import GRPO, HINTS, NO_CRITIC, fresh_state, learn, settings

from agentrl_jax.config.distillation import SelfDistillation
from agentrl_jax.learner import state as states

PURE = settings(distillation__rl_coef=0.0, lr=1.0)
RULES = {
    "sampled": SelfDistillation(ratio_cap=1.5, gate="sdar", gate_slope=2.0, teacher="reference"),
    "full": SelfDistillation(loss="full", gate="sdar", teacher="ema"),
}


def started(rule, model=NO_CRITIC):
    """A state whose reference and whose teacher are other policies."""
    state = fresh_state(model, reference=rule.teacher == "reference")
    state = states.with_kept(state, states.Kept(teacher=rule.teacher == "ema"))
    other = {"reference": 0.7, "ema": 0.5}
    kept = {name: getattr(state, field) for name, field in (("reference", "reference"), ("ema", "teacher"))}
    changed = {
        {"reference": "reference", "ema": "teacher"}[name]: jax.tree.map(lambda x, f=other[name]: f * x, tree)
        for name, tree in kept.items()
        if tree is not None
    }
    return state.replace(**changed)


def taught(rule, numbers=PURE, hints=HINTS, model=NO_CRITIC, **changes):
    state = started(rule, model)
    found, metrics = learn(state=state, numbers=numbers, hints=hints, model=model, distillation=rule, **GRPO, **changes)
    return found, metrics, jax.tree.map(jnp.subtract, found.params, started(rule, model).params)


def check_equal_contexts(loss):
    """A teacher that reads the same as the policy teaches exactly nothing."""
    rule = SelfDistillation(loss=loss, context="none")
    _, metrics, moved = taught(rule, hints=None)
    assert [np.count_nonzero(x) for x in jax.tree.leaves(moved)] == [0] * len(jax.tree.leaves(moved))
    assert (float(metrics["distill/kl"]), float(metrics["distill/gap"])) == (0.0, 0.0)
    # Also where its rows are made and read apart.
    empty = HINTS.replace(tokens=HINTS.tokens[:, :0], length=0 * HINTS.length)
    _, metrics, moved = taught(SelfDistillation(loss=loss), hints=empty)
    assert [np.count_nonzero(x) for x in jax.tree.leaves(moved)] == [0] * len(jax.tree.leaves(moved))
    assert float(metrics["actor/grad_norm"]) == 0.0
