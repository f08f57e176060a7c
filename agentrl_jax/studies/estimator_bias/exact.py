"""The mean and the variance of an estimated policy gradient, summed over all groups of trajectories, and the truth.

An estimator is applied as a learner applies it (`apply`) to a batch of one group, which the trained policy has drawn or
another one. Its gradient is found for every group of 2 or 3 trajectories and weighted with the group's probability:
there is no sampling, and nothing in these figures is noise. Everything is computed in float64.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import numpy as np

from agentrl_jax.algos.groups import STD_FLOOR
from agentrl_jax.studies.estimator_bias import task
from agentrl_jax.studies.estimator_bias.cases import Case, Pairing
from agentrl_jax.studies.estimator_bias.level import Level
from agentrl_jax.studies.estimator_bias.policies import TinyPolicy


class PolicyDrift(NamedTuple):
    """How far the policy that draws is from the one that is trained, over the tokens that it draws.

    Attributes:
        log_ratio: mean absolute log-ratio of a token.
        kl: mean divergence of the trained policy from it at a token, KL(draws || trained), in nats.
        outside: share of the tokens whose ratio is below 0.8 or above 1.28, where clips bound it.
    """

    log_ratio: float
    kl: float
    outside: float


def _outside(log_ratio: np.ndarray) -> np.ndarray:
    return (np.exp(log_ratio) < 0.8) | (np.exp(log_ratio) > 1.28)


@dataclasses.dataclass(frozen=True)
class Result:
    """What an estimator does.

    Attributes:
        case: which.
        group_size: of a group.
        drift_size: how far the policy that draws is from the one that is trained.
        cosine: between its mean and the gradient of the expected return.
        scale: length of the mean along that gradient, over the gradient's length: what a learning rate makes up for.
        bias: what is left of the mean when scaled by 1 / scale, as a share of the gradient's length.
        noise: standard deviation of the gradient of one batch likewise.
        error: standard error of the mean likewise, where groups were sampled; 0 where all of them were summed.
        own_cosine: between the mean and the gradient of its own objective, see `own_objective`; None where that is not
            worked out.
    """

    case: Case
    group_size: int
    drift_size: PolicyDrift
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
    """The task under a policy that is trained and one that draws."""

    def __init__(self, policy: TinyPolicy, behavior: np.ndarray):
        """Works out probabilities, values and the true gradient.

        Args:
            policy: the one that is trained, whose expected return has the true gradient.
            behavior: f64[P] parameters of the one that draws; on policy `policy.start`.
        """
        self.policy = policy
        with jax.enable_x64(True):
            self.levels = [Level(policy, behavior, level) for level in range(task.LEVELS)]
            self.truth = np.mean([level.gradient for level in self.levels], axis=0)
        self.mean_length = np.mean([level.chance @ level.t.mask.sum(axis=1) for level in self.levels])
        gaps = [level.behavior_logprob - level.logprob for level in self.levels]
        sums = [
            level.chance @ np.stack([abs(gap), gap, _outside(-gap)], axis=2).sum(axis=1)
            for level, gap in zip(self.levels, gaps)
        ]
        self.drift_size = PolicyDrift(*(np.mean(sums, axis=0) / self.mean_length).tolist())

    def measure(self, case: Case, group_size: int, sampling: Sampling | None = None) -> Result:
        """The mean gradient of a case, over all groups of so many members, beside the truth.

        Args:
            case: what is measured.
            group_size: of a group, at least 2; beyond 3 there are too many groups to sum over.
            sampling: of groups instead, half of each level; None for all of them.
        """
        if sampling is None:
            groups = [level.groups(group_size) for level in self.levels]
        else:
            draw = np.random.default_rng(sampling.seed)
            groups = [level.sampled(group_size, sampling.draws // 2, draw) for level in self.levels]
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
            group_size=group_size,
            drift_size=self.drift_size,
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
        of the policy that draws. What is left of a difference to it is the bias of small groups; its difference to the
        truth is that of the objective. None for pairings: of groups without end, all of a level are alike.
        """
        if case.pairing != "none":
            return None
        parts = [level.population(case) for level in self.levels]
        if case.rule.whiten:
            weights = [level.chance[:, None] * level.t.mask for level in self.levels]
            total = sum(w.sum() for w in weights)
            mean = sum((w * a).sum() for w, a in zip(weights, parts)) / total
            variance = sum((w * np.square(a - mean)).sum() for w, a in zip(weights, parts)) / total
            parts = [(a - mean) / math.sqrt(variance) for a in parts]
        return np.mean([level.endless(case, a, self.mean_length) for level, a in zip(self.levels, parts)], axis=0)


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


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
