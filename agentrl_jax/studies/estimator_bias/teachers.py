"""What self-distillation optimizes: its exact mean gradient for several teachers, beside two exact objectives.

A student samples the episodes; each sampled token is pulled towards a teacher that knows more, by
`algos.distillation.sampled_loss`, with a mean over tokens. On average that is the gradient of -KL(student || teacher)
at the states that were visited, as if the student could not choose which ones it visits: the state distribution has no
gradient. So it is neither the gradient of the return nor that of the divergence of whole episodes, except for special
teachers. Dimensions as in `task`; `V` tokens of the vocabulary, `P` parameters. Everything is computed in float64.
"""

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from agentrl_jax.algos import distillation
from agentrl_jax.studies.estimator_bias import policies, task
from agentrl_jax.studies.estimator_bias.exact import Bench, cosine
from agentrl_jax.studies.estimator_bias.level import Level
from agentrl_jax.studies.estimator_bias.report import markdown_table, terminal_table
from agentrl_jax.terminal import Terminal

STUDENT_SHARE = 0.1
"""Of the probabilities of a teacher that reads a plan, so that no token is impossible."""
COEF = 1.0
"""Weight of distillation beside the policy gradient."""
NOTHING = 1e-12
"""Largest length of a gradient that is 0 but for rounding."""


class Taught(NamedTuple):
    """The mean gradient for one teacher; cosines are None where it is 0."""

    teacher: str
    gain: float
    """Return of the teacher minus that of the student, both acting alone."""
    length: float
    """Of the gradient, as a share of that of the return per token."""
    of_return: float | None
    """Cosine with the gradient of the expected return."""
    at_states: float | None
    """Cosine with that of -KL(student || teacher) at the visited states, which are held fixed."""
    of_episodes: float | None
    """Cosine with that of -KL(student || teacher) of whole episodes."""
    gated: float | None
    """Cosine with the gradient of the return where losses have SDAR's gate."""
    mixed: float
    """Bias of policy gradient + `COEF` x distillation, see `Result.bias`."""


def action_values(level: Level, *, best: bool) -> Float[np.ndarray, "J S V"]:
    """The mean future reward after each token at each position, if the student goes on, or with `best` optimally."""
    t, later = level.t, np.zeros(len(level.t))
    found = np.zeros((*t.mask.shape, task.VOCABULARY))
    positions = np.arange(task.ROW)
    earned = np.where(t.last[:, None] == positions[:, None], t.reward[:, None], 0.0).sum(axis=2)
    for s in reversed(positions):
        here, total = t.mask[:, s], earned[:, s] + later
        weight = np.where(here, level.chance, 0.0)
        number, size = t.prefix[:, s] * task.VOCABULARY + t.tokens[:, s], (t.prefix.max() + 1) * task.VOCABULARY
        sums, weights = (np.bincount(number, weights=x, minlength=size) for x in (weight * total, weight))
        values = (sums / np.maximum(weights, 1e-300)).reshape(-1, task.VOCABULARY)[t.prefix[:, s]]
        found[:, s] = np.where(here[:, None], values, 0.0)
        later = np.where(here, values.max(axis=1) if best else level.values[:, s], total)
    return found


def teachers(policy: policies.TinyPolicy, level: Level) -> dict[str, Float[np.ndarray, "J S V"]]:
    """Log-probabilities of each teacher's tokens after every history.

    itself: the student. outcome: the student, reweighted by exp of what follows each token if it goes on. plan: an
    optimal token, but for a share `STUDENT_SHARE`. wrong plan: another token than that.
    """
    student = np.asarray(jax.nn.log_softmax(policy.logits(jnp.asarray(policy.start))))[level.t.context]
    plan = action_values(level, best=True).argmax(axis=2)

    def following(tokens: np.ndarray) -> np.ndarray:
        return np.log((1 - STUDENT_SHARE) * np.eye(task.VOCABULARY)[tokens] + STUDENT_SHARE * np.exp(student))

    outcome = np.asarray(jax.nn.log_softmax(student + action_values(level, best=False)))
    others = {"plan": following(plan), "wrong plan": following((plan + 1) % task.VOCABULARY)}
    return {"itself": student, "outcome": outcome, **others}


def measure(bench: Bench) -> list[Taught]:
    """The mean gradient of every teacher, on policy and for infinitely many episodes."""
    with jax.enable_x64(True):
        known = [teachers(bench.policy, level) for level in bench.levels]
        return [_measured(bench, name, [of[name] for of in known]) for name in known[0]]


def _measured(bench: Bench, name: str, logprobs: list[np.ndarray]) -> Taught:
    length = float(np.mean([level.mean_length for level in bench.levels]))
    parts = [_of_level(bench.policy, level, jnp.asarray(q)) for level, q in zip(bench.levels, logprobs)]
    mean, gated, at_states, of_episodes = (np.mean(part, axis=0) / length for part in list(zip(*parts))[:4])
    truth = bench.truth / length
    nothing = np.linalg.norm(mean) <= NOTHING
    return Taught(
        name,
        gain=float(np.mean([part[4] for part in parts])),
        length=float(np.linalg.norm(mean) / np.linalg.norm(truth)),
        of_return=None if nothing else cosine(mean, truth),
        at_states=None if nothing else cosine(mean, at_states),
        of_episodes=None if nothing else cosine(mean, of_episodes),
        gated=None if nothing else cosine(gated, truth),
        mixed=bench.bias(truth + COEF * mean),
    )


def _of_level(
    policy: policies.TinyPolicy, level: Level, teacher: Float[jax.Array, "J S V"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """Sums over tokens, means over episodes: the gradient without and with a gate, and those of both objectives."""
    t, sampled = level.t, jnp.asarray(level.logprob)
    of_token = jnp.where(t.mask, jnp.take_along_axis(teacher, t.tokens[..., None], axis=2)[..., 0], 0.0)

    def lost(logprob, gated):
        gap = distillation.gap(logprob, of_token)
        losses = distillation.sampled_loss(logprob, sampled, gap, cap=2.0)
        return jnp.sum(level.chance[:, None] * losses * (distillation.gate(gap, 1.0) if gated else 1.0))

    slopes = [-np.asarray(jax.grad(lost)(sampled, gated)) for gated in (False, True)]
    found = [np.einsum("js,jsp->p", slope, level.slopes) for slope in slopes]

    def student(parameters):
        return jax.nn.log_softmax(policy.logits(parameters))[t.context]

    def chance(logprob):
        sampled = jnp.take_along_axis(logprob, t.tokens[..., None], axis=2)[..., 0]
        return t.chance * jnp.exp(jnp.sum(jnp.where(t.mask, sampled, 0.0), axis=1))

    def objective(parameters, fixed):
        logprob = student(parameters)
        divergence = jnp.sum(jnp.exp(logprob) * (logprob - teacher), axis=2)
        weight = level.chance if fixed else chance(logprob)
        return -jnp.sum(weight[:, None] * jnp.where(t.mask, divergence, 0.0))

    exact = [np.asarray(jax.grad(objective)(jnp.asarray(policy.start), fixed)) for fixed in (True, False)]
    gained = float((np.asarray(chance(teacher)) - level.chance) @ t.returns)
    return found[0], found[1], exact[0], exact[1], gained


def run(*, policy: str, format: str) -> list[Taught]:
    """Runs `agentrl bench teachers`, whose options `cli.bench.Bench` describes: prints the results and returns them."""
    trained = policies.NAMED[policy]()
    found = measure(Bench(trained, trained.start))
    rows = [[taught.teacher, *("-" if x is None else f"{x:.3f}" for x in taught[1:])] for taught in found]
    columns = ["teacher", "gain", "length", "return", "KL at states", "KL of episodes", "return, gated", "bias of sum"]
    if format == "table":
        title = f"Exact mean gradient of self-distillation, {trained.name}: length, cosines with other gradients"
        Terminal().print(terminal_table(columns, rows, title))
    else:
        print(markdown_table(columns, rows) if format == "markdown" else json.dumps([x._asdict() for x in found]))
    return found
