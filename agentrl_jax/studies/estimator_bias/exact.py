"""Exact mean and variance of an estimated policy gradient, summed over all groups, compared with the true gradient.

An estimator is applied as a learner applies it (`apply`) to a batch of one group, sampled by the behavior policy (on
policy: the trained one). Its gradient is computed for every group of 2 or 3 trajectories and weighted with the group's
probability: there is no sampling noise in these figures. Everything is computed in float64.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from agentrl_jax.algos.groups import STD_FLOOR
from agentrl_jax.config.fields import is_own
from agentrl_jax.studies.estimator_bias import own_filter, task
from agentrl_jax.studies.estimator_bias.cases import Case, Pairing
from agentrl_jax.studies.estimator_bias.level import Level
from agentrl_jax.studies.estimator_bias.policies import TinyPolicy


class PolicyDrift(NamedTuple):
    """Distance between the behavior policy and the trained policy, over the tokens that the behavior policy samples."""

    log_ratio: float
    """Mean absolute log-ratio per token."""
    kl: float
    """Mean KL(behavior || trained) per token, in nats."""
    outside: float
    """Share of tokens whose ratio is below 0.8 or above 1.28, where clips bound it."""


@dataclasses.dataclass(frozen=True)
class Result:
    """Properties of an estimator."""

    case: Case
    group_size: int
    drift_size: PolicyDrift
    cosine: float
    """Between the mean estimate and the gradient of the expected return."""
    scale: float
    """Length of the mean along that gradient over the gradient's length; a learning rate can compensate it."""
    bias: float
    """What remains of the mean, scaled by 1 / scale, minus the gradient; as a share of the gradient's length."""
    noise: float
    """Standard deviation of the gradient of one batch, scaled likewise."""
    error: float
    """Standard error of the mean over the groups that count, scaled likewise; 0 if all groups were summed."""
    own_cosine: float | None
    """Between the mean and the gradient of the estimator's own objective, see `own_objective`; None without one."""
    limit: float | None
    """Bias of that objective: what is left with infinitely large groups; of own estimators, with `MANY` members."""
    limit_error: float = 0.0
    """Standard error of the limit, which is from sampled groups then."""


MANY = 64
"""Members of a group that stand for infinitely many, for estimators of which nothing is known."""
_OF_LIMIT = 2000
"""Groups of so many members that are sampled."""


class Sampling(NamedTuple):
    """Number of sampled groups, and the seed of the sampling."""

    num_groups: int
    seed: int


class Bench:
    """The task under a trained policy and a behavior policy."""

    def __init__(self, policy: TinyPolicy, behavior: Float[np.ndarray, " P"]):
        """Computes probabilities, values and the true gradient: that of the expected return of `policy`.

        `behavior` are the parameters of the behavior policy; on policy `policy.start`.
        """
        self.policy = policy
        self._sampled_limits: dict[Case, tuple[float, float]] = {}
        with jax.enable_x64(True):
            self.levels = [Level(policy, behavior, level) for level in range(task.LEVELS)]
            self.truth = np.mean([level.gradient for level in self.levels], axis=0)
        mean_length = np.mean([level.mean_length for level in self.levels])
        sums = []
        for level in self.levels:
            gap = level.behavior_logprob - level.logprob
            ratio = np.exp(-gap)
            of_token = np.stack([abs(gap), gap, (ratio < 0.8) | (ratio > 1.28)], axis=2)
            sums.append(level.chance @ of_token.sum(axis=1))
        self.drift_size = PolicyDrift(*(np.mean(sums, axis=0) / mean_length).tolist())

    def measure(self, case: Case, group_size: int, sampling: Sampling | None = None) -> Result:
        """The mean gradient of a case over all groups of a size, compared with the true gradient.

        Beyond 3 trajectories there are too many groups to sum over: `sampling` samples half of its groups from each
        level.
        """
        mean, square, kept = self._moments(case, group_size, sampling)
        with jax.enable_x64(True):
            own = self.own_objective(case)
        size = np.linalg.norm(self.truth)
        scale = float(mean @ self.truth / size**2)
        noise = _noise(mean, square) / (abs(scale) * size)
        limit, limit_error = None if own is None else self.bias(own), 0.0
        if is_own(case.rule.kind):
            if case not in self._sampled_limits:
                self._sampled_limits[case] = self._sampled_limit(case)
            limit, limit_error = self._sampled_limits[case]
        return Result(
            case=case,
            group_size=group_size,
            drift_size=self.drift_size,
            cosine=cosine(mean, self.truth),
            scale=scale,
            bias=self.bias(mean),
            noise=float(noise),
            error=float(noise) / math.sqrt(kept * sampling.num_groups) if sampling else 0.0,
            own_cosine=None if own is None else cosine(mean, own),
            limit=limit,
            limit_error=limit_error,
        )

    def _sampled_limit(self, case: Case) -> tuple[float, float]:
        """Bias with `MANY` members, and its standard error."""
        mean, square, _ = self._moments(case, MANY, Sampling(_OF_LIMIT, 0))
        along = abs(mean @ self.truth) / np.linalg.norm(self.truth)
        return self.bias(mean), float(_noise(mean, square) / along / math.sqrt(_OF_LIMIT))

    def _moments(
        self, case: Case, group_size: int, sampling: Sampling | None
    ) -> tuple[Float[np.ndarray, " P"], float, float]:
        """Mean and mean squared length of the gradients of groups, and the share of groups that count."""
        if sampling is None:
            groups = [level.all_groups(group_size) for level in self.levels]
        else:
            rng = np.random.default_rng(sampling.seed)
            groups = [level.sampled_groups(group_size, sampling.num_groups // 2, rng) for level in self.levels]
        with jax.enable_x64(True):
            parts = [level.gradients(case, *these) for level, these in zip(self.levels, groups)]
        chances, scores, gradients = (np.concatenate(part) for part in zip(*parts))
        chances /= len(self.levels)
        if case.filter is not None:
            returns = np.concatenate([level.t.returns[index] for level, (index, _) in zip(self.levels, groups)])
            return own_filter.moments(case.filter, returns, chances, gradients)
        mean, square = _paired(case.pairing, chances, scores, gradients)
        return mean, square, float(chances[scores > 0].sum()) if case.pairing == "informative" else 1.0

    def bias(self, mean: Float[np.ndarray, " P"]) -> float:
        """`Result.bias` of a mean gradient."""
        square = self.truth @ self.truth
        return float(np.linalg.norm(mean * (square / (mean @ self.truth)) - self.truth) / math.sqrt(square))

    def own_objective(self, case: Case) -> Float[np.ndarray, " P"] | None:
        """The gradient of a case for infinitely large groups, still one group a batch.

        Means and standard deviations of groups, lengths in denominators and moments of a whitened batch are then those
        of the behavior policy on the group's level. The mean's difference from this gradient is the bias of small
        groups; this gradient's difference from the true one is that of the objective, which no size of a group
        removes. None for pairings, as infinite groups of a level are alike, for advantages of the user, and for
        rules that rank the tokens of a minibatch.
        """
        if case.pairing != "none" or is_own(case.rule.kind) or case.tokens.kind != "all":
            return None
        return np.mean([level.own_gradient(case) for level in self.levels], axis=0)


def _paired(
    pairing: Pairing,
    chances: Float[np.ndarray, " C"],
    scores: Float[np.ndarray, " C"],
    gradients: Float[np.ndarray, "C P"],
) -> tuple[Float[np.ndarray, " P"], float]:
    """Mean and mean squared length of the gradient; other groups matter only through their scores."""
    distinct, number = np.unique(np.round(scores, 12), return_inverse=True)
    of_score = np.bincount(number, weights=chances, minlength=len(distinct))
    if pairing == "best_of_two":
        # The first of two groups is kept if it scores at least as high, the second if it scores higher.
        below = np.cumsum(of_score) - of_score
        chances = chances * (2 * below + of_score)[number]
    elif pairing == "informative":
        chances = np.where(scores > 0, chances, 0.0) / chances[scores > 0].sum()
    mean, square = chances @ gradients, float(chances @ np.square(gradients).sum(axis=1))
    if pairing != "spread_of_two":
        return mean, square
    weights = distinct[:, None] / (np.maximum(distinct[:, None], distinct) + STD_FLOOR)
    sums = np.stack([np.bincount(number, weights=chances * x, minlength=len(distinct)) for x in gradients.T], axis=1)
    squares = np.bincount(number, weights=chances * np.square(gradients).sum(axis=1), minlength=len(distinct))
    together = np.einsum("st,ts,sp,tp->", weights, weights, sums, sums)
    return (weights @ of_score) @ sums, float(squares @ (np.square(weights) @ of_score) + together) / 2


def _noise(mean: Float[np.ndarray, " P"], square: float) -> float:
    return float(np.sqrt(max(square - mean @ mean, 0.0)))


def cosine(a: Float[np.ndarray, " P"], b: Float[np.ndarray, " P"]) -> float:
    """Of the angle between two gradients."""
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
