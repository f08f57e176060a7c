"""The mean and the variance of an estimated policy gradient, summed over all groups of trajectories, and the truth.

An estimator is applied as a learner applies it (`algos.estimate`, `algos.losses`), on policy, to a batch of one group.
Its gradient is found for every group of 2 or 3 trajectories and weighted with the group's probability: there is no
sampling, and nothing in these figures is noise. Everything is computed in float64.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.algos import losses
from agentrl_jax.algos.estimate import EstimatorRule, EstimatorSettings, Evidence, estimate
from agentrl_jax.algos.groups import STD_FLOOR, group_spread
from agentrl_jax.algos.rewards import place_rewards
from agentrl_jax.truth import task
from agentrl_jax.truth.policies import TinyPolicy

Critic = Literal["none", "true", "wrong"]
Pairing = Literal["none", "best_of_two", "informative", "spread_of_two"]
Anchor = Literal["state", "turn"]

_CHUNK = 8192
_BOUNDS = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A way to estimate the gradient.

    Attributes:
        name: shown, unique.
        rule: the estimator.
        lam, turn_gamma, step_weight: its numbers; the discount of tokens is 1.
        aggregation: of the loss.
        objective: of the loss; on policy they differ in weights only.
        critic: what stands for the critic: nothing, the exact values, or these with an error that depends on the state.
        placement: the whole return at an episode's end, or rewards at the ends of their turns.
        pairing: what other groups do to a group. none; best_of_two: the one of two groups is kept whose returns differ
            more (StarPO-S); informative: groups are drawn until one has different returns (DAPO's dynamic sampling);
            spread_of_two: two groups weigh by `groups.spread_weights`.
        anchor: what gigpo compares turns by: the state, or the number of the turn; the latter without the comparison of
            episodes, which is the per-turn normalisation of verl's issue 7244.
        unbiased: the mean is a multiple of the true gradient, by proof; tested.
        note: shown.
    """

    name: str
    rule: EstimatorRule
    lam: float = 1.0
    turn_gamma: float = 1.0
    step_weight: float = 1.0
    aggregation: losses.Aggregation = "seq_mean_token_sum"
    objective: losses.Objective = "clip"
    critic: Critic = "none"
    placement: Literal["episode", "turn"] = "episode"
    pairing: Pairing = "none"
    anchor: Anchor = "state"
    unbiased: bool = False
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    """What an estimator does.

    Attributes:
        case: which.
        members: of a group.
        cosine: between its mean and the gradient of the expected return.
        scale: length of the mean along that gradient, over the gradient's length: what a learning rate makes up for.
        bias: what is left of the mean when scaled by 1 / scale, as a share of the gradient's length.
        noise: standard deviation of the gradient of one batch likewise.
        error: standard error of the mean likewise, where groups were sampled; 0 where all of them were summed.
        own_cosine: between the mean and the gradient of its own objective, see `own_objective`; None where that is not
            worked out.
    """

    case: Case
    members: int
    cosine: float
    scale: float
    bias: float
    noise: float
    error: float
    own_cosine: float | None


class Sampling(NamedTuple):
    """How many groups are drawn, and the seed of the drawing."""

    draws: int
    seed: int


class Bench:
    """The task under one policy."""

    def __init__(self, policy: TinyPolicy):
        """Works out probabilities, values and the true gradient."""
        self.policy = policy
        with jax.enable_x64(True):
            self.levels = [_Level(policy, level) for level in range(task.LEVELS)]
            self.truth = np.mean([level.gradient for level in self.levels], axis=0)

    def measure(self, case: Case, members: int, sampling: Sampling | None = None) -> Result:
        """The mean gradient of a case, over all groups of so many members, beside the truth.

        Args:
            case: what is measured.
            members: of a group, at least 2; beyond 3 there are too many groups to sum over.
            sampling: of groups instead, half of each level; None for all of them.
        """
        if sampling is None:
            groups = [level.groups(members) for level in self.levels]
        else:
            draw = np.random.default_rng(sampling.seed)
            groups = [level.sampled(members, sampling.draws // 2, draw) for level in self.levels]
        with jax.enable_x64(True):
            parts = [level.gradients(case, *these) for level, these in zip(self.levels, groups)]
            own = self.own_objective(case)
        chances, scores, gradients = (np.concatenate(part) for part in zip(*parts))
        mean, square = _paired(case.pairing, chances / len(self.levels), scores, gradients)
        size = np.linalg.norm(self.truth)
        scale = float(mean @ self.truth / size**2)
        noise = float(np.sqrt(max(square - mean @ mean, 0.0)) / (abs(scale) * size))
        return Result(
            case=case,
            members=members,
            cosine=_cosine(mean, self.truth),
            scale=scale,
            bias=float(np.linalg.norm(mean / scale - self.truth) / size),
            noise=noise,
            error=noise / math.sqrt(sampling.draws) if sampling else 0.0,
            own_cosine=None if own is None else _cosine(mean, own),
        )

    def own_objective(self, case: Case) -> np.ndarray | None:
        """The gradient that the case has for groups without end, f64[P].

        Means and standard deviations of groups, lengths in denominators and moments of a whitened batch are then those
        of the policy. What is left of a difference to it is the bias of small groups; its difference to the truth is
        that of the objective. None for gigpo and pairings, where it is not worked out.
        """
        if case.rule.advantage == "gigpo" or case.pairing != "none":
            return None
        mean_length = np.mean([level.chance @ level.t.mask.sum(axis=1) for level in self.levels])
        parts = [level.population(case) for level in self.levels]
        if case.rule.whiten:
            weights = [level.chance[:, None] * level.t.mask for level in self.levels]
            total = sum(w.sum() for w in weights)
            mean = sum((w * a).sum() for w, a in zip(weights, parts)) / total
            variance = sum((w * np.square(a - mean)).sum() for w, a in zip(weights, parts)) / total
            parts = [(a - mean) / math.sqrt(variance) for a in parts]
        return np.mean(
            [level.along(a * level.weights(case, mean_length)) for level, a in zip(self.levels, parts)], axis=0
        )


class _Level:
    """The trajectories of one level under a policy."""

    def __init__(self, policy: TinyPolicy, level: int):
        self.t = t = task.enumerate_level(level)

        def logprobs(parameters):
            return jnp.where(t.mask, jax.nn.log_softmax(policy.logits(parameters))[t.context, t.tokens], 0.0)

        def expected_return(parameters):
            return jnp.sum(t.chance * jnp.exp(jnp.sum(logprobs(parameters), axis=1)) * t.returns)

        start = jnp.asarray(policy.start)
        self.logprob = np.asarray(logprobs(start))
        self.slopes = np.asarray(jax.jacobian(logprobs)(start))
        self.chance = t.chance * np.exp(self.logprob.sum(axis=1))
        self.gradient = np.asarray(jax.grad(expected_return)(start))
        self.values = task.true_values(t, self.chance)
        best = np.argmax(np.asarray(policy.logits(start)), axis=1)
        greedy = np.where(np.all((t.tokens == best[t.context]) | ~t.mask, axis=1), t.chance, 0.0)
        self.baselines = [(greedy[t.returns == r].sum(), r) for r in np.unique(t.returns[greedy > 0])]

    def critic(self, case: Case) -> np.ndarray:
        """f64[J, S]"""
        if case.critic == "none":
            return np.zeros(self.t.mask.shape)
        wrong = 0.3 * np.sin(1.0 + self.t.context) if case.critic == "wrong" else 0.0
        return self.values + wrong

    def along(self, coefficients: np.ndarray) -> np.ndarray:
        """The mean over trajectories of a sum of score functions with coefficients f64[J, S]."""
        return np.einsum("j,js,jsp->p", self.chance, coefficients, self.slopes)

    def weights(self, case: Case, mean_length: float) -> np.ndarray:
        """Weights of tokens f64[J, 1] in an endless batch."""
        lengths = self.t.mask.sum(axis=1, keepdims=True)
        of_row = 1.0 / lengths if case.aggregation == "seq_mean_token_mean" else 1.0
        return of_row / (mean_length if case.aggregation == "token_mean" else 1.0) * np.ones_like(lengths, float)

    def population(self, case: Case) -> np.ndarray:
        """Advantages f64[J, S] that compare with the policy itself instead of a few members."""
        returns, mean = self.t.returns, self.chance @ self.t.returns
        name = case.rule.advantage
        if name in ("grpo", "rloo", "remax"):
            baseline = sum(p * r for p, r in self.baselines) if name == "remax" else mean
            std = math.sqrt(self.chance @ np.square(returns - mean))
            divided = std if name == "grpo" and case.rule.normalise_std else 1.0
            return np.broadcast_to(((returns - baseline) / divided)[:, None], self.t.mask.shape) * self.t.mask
        whole = np.arange(len(self.t))[:, None]  # each of them a group, which these estimators do not look at
        plain = dataclasses.replace(case.rule, whiten=False)
        evidence = self.evidence(case, whole, None)
        return np.asarray(estimate(evidence, plain, _settings(case))[0])

    def evidence(self, case: Case, index: jax.Array | np.ndarray, baseline: jax.Array | None) -> Evidence:
        """What an estimator sees of groups of trajectories [Gr, M]."""
        t, flat = self.t, index.reshape(-1)
        last, reward = jnp.asarray(t.last)[flat], jnp.asarray(t.reward)[flat]
        state = jnp.asarray(t.state)[flat] if case.anchor == "state" else jnp.zeros_like(last) + jnp.arange(task.TURNS)
        positions = jnp.arange(task.ROW)
        return Evidence(
            rewards=place_rewards(reward, last, task.ROW, case.placement),
            values=jnp.asarray(self.critic(case))[flat],
            mask=jnp.asarray(t.mask)[flat],
            turn=jnp.broadcast_to(positions // (task.REPLY + 1), (len(flat), task.ROW)),
            turn_end=jnp.any(last[:, :, None] == positions, axis=1),
            episode=jnp.arange(len(flat)),
            # Where only turns are compared, episodes have nothing between them.
            scores=jnp.asarray(t.returns)[index] * (case.anchor == "state"),
            intact=jnp.ones(index.shape, bool),
            baseline=baseline,
            turn_rewards=reward,
            state=jnp.stack([state, state], axis=-1).astype(jnp.uint32),
            played=last >= 0,
        )

    def groups(self, members: int) -> tuple[np.ndarray, np.ndarray]:
        """Every group without an order, i64[C, M], and its probability [C]."""
        index = np.array(list(itertools.combinations_with_replacement(range(len(self.t)), members)))
        orders = math.factorial(members) / np.array([_repeats(row) for row in index])
        return index, self.chance[index].prod(axis=1) * orders

    def sampled(self, members: int, draws: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """So many groups drawn from the policy, each of weight 1 / draws."""
        index = draw.choice(len(self.t), (draws, members), p=self.chance / self.chance.sum())
        return index, np.full(draws, 1.0 / draws)

    def gradients(self, case: Case, index: np.ndarray, chance: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights [C], standard deviations of returns [C] and gradients [C, P] of groups [C, M] of weights [C]."""
        baselines = self.baselines if case.rule.advantage == "remax" else [(1.0, 0.0)]
        slopes, logprob = jnp.asarray(self.slopes), jnp.asarray(self.logprob)

        @jax.jit
        def of_groups(index, baseline):
            def one(chosen):
                evidence = self.evidence(case, chosen[None], baseline[None])
                advantage, _ = estimate(evidence, case.rule, _settings(case))
                weights = losses.token_weights(
                    evidence.mask, case.aggregation, losses.count(evidence.mask), norm_length=float(task.ROW)
                )

                def loss(x):
                    per_token, _ = losses.objective(
                        case.objective, x, logprob[chosen], advantage, evidence.mask, **_BOUNDS
                    )
                    return jnp.sum(per_token * weights)

                return -jnp.einsum("ms,msp->p", jax.grad(loss)(logprob[chosen]), slopes[chosen])

            spread = group_spread(jnp.asarray(self.t.returns)[index], jnp.ones(index.shape, bool))[1]
            return spread, jax.vmap(one)(index)

        def everywhere(baseline) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            padded = np.pad(index, ((0, -len(index) % _CHUNK), (0, 0)))
            for start in range(0, len(index), _CHUNK):
                spread, gradient = of_groups(padded[start : start + _CHUNK], jnp.float64(baseline))
                here = min(_CHUNK, len(index) - start)
                yield np.asarray(spread)[:here], np.asarray(gradient)[:here]

        parts = [
            (chance * weight, *(np.concatenate(x) for x in zip(*everywhere(value)))) for weight, value in baselines
        ]
        chances, spreads, gradients = (np.concatenate(x) for x in zip(*parts))
        return chances, spreads, gradients


def _paired(
    pairing: Pairing, chances: np.ndarray, scores: np.ndarray, gradients: np.ndarray
) -> tuple[np.ndarray, float]:
    """Mean f64[P] and mean squared length of the gradient; other groups matter through scores [C] alone."""
    distinct, place = np.unique(np.round(scores, 12), return_inverse=True)
    of_score = np.bincount(place, weights=chances, minlength=len(distinct))
    if pairing == "best_of_two":
        # The first of two groups is kept if it scores at least as high, the second if it scores higher.
        below = np.cumsum(of_score) - of_score
        chances = chances * (2 * below + of_score)[place]
    elif pairing == "informative":
        chances = np.where(scores > 0, chances, 0.0) / chances[scores > 0].sum()
    mean, square = chances @ gradients, float(chances @ np.square(gradients).sum(axis=1))
    if pairing != "spread_of_two":
        return mean, square
    weights = distinct[:, None] / (np.maximum(distinct[:, None], distinct) + STD_FLOOR)
    sums = np.stack([np.bincount(place, weights=chances * x, minlength=len(distinct)) for x in gradients.T], axis=1)
    squares = np.bincount(place, weights=chances * np.square(gradients).sum(axis=1), minlength=len(distinct))
    together = np.einsum("st,ts,sp,tp->", weights, weights, sums, sums)
    return (weights @ of_score) @ sums, float(squares @ (np.square(weights) @ of_score) + together) / 2


def _settings(case: Case) -> EstimatorSettings:
    numbers = {"gamma": 1.0, "lam": case.lam, "turn_gamma": case.turn_gamma, "step_weight": case.step_weight}
    return EstimatorSettings(history_power=jnp.float64(1.0), **{k: jnp.float64(v) for k, v in numbers.items()})


def _repeats(row: np.ndarray) -> int:
    return math.prod(math.factorial(int(n)) for n in np.unique(row, return_counts=True)[1])


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
