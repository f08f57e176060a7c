"""All trajectories of one level under a trained policy and a behavior policy."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.algos import gigpo as gigpo
from agentrl_jax.algos.groups import STD_FLOOR
from agentrl_jax.studies.estimator_bias import apply, task
from agentrl_jax.studies.estimator_bias.cases import Case
from agentrl_jax.studies.estimator_bias.policies import TinyPolicy

_CHUNK = 8192


class Level:
    """The J trajectories of one level.

    Attributes:
        t: the trajectories.
        logprob: f64[J, S] of their sampled tokens under the trained policy.
        behavior_logprob: f64[J, S] under the behavior policy.
        chance: f64[J], their probabilities under the behavior policy.
        gradient: f64[P] of the trained policy's expected return with respect to its parameters.
        values: f64[J, S] exact values of the trained policy.
        baselines: (probability, return) of the behavior policy's greedy episodes.
    """

    def __init__(self, policy: TinyPolicy, behavior: np.ndarray, level: int):
        """Computes all attributes.

        Args:
            policy: the trained policy.
            behavior: f64[P] parameters of the behavior policy.
            level: number of the level.
        """
        self.t = t = task.enumerate_level(level)

        def logprobs(parameters):
            return jnp.where(t.mask, jax.nn.log_softmax(policy.logits(parameters))[t.context, t.tokens], 0.0)

        def chances(parameters):
            return t.chance * jnp.exp(jnp.sum(logprobs(parameters), axis=1))

        start, draws = jnp.asarray(policy.start), jnp.asarray(behavior)
        self.logprob, self.behavior_logprob = np.asarray(logprobs(start)), np.asarray(logprobs(draws))
        self.slopes = np.asarray(jax.jacobian(logprobs)(start))
        self.chance = np.asarray(chances(draws))
        self.gradient = np.asarray(jax.grad(lambda x: jnp.sum(chances(x) * t.returns))(start))
        self.values = task.true_values(t, np.asarray(chances(start)))
        best = np.argmax(np.asarray(policy.logits(draws)), axis=1)
        greedy = np.where(np.all((t.tokens == best[t.context]) | ~t.mask, axis=1), t.chance, 0.0)
        self.baselines = [(greedy[t.returns == r].sum(), r) for r in np.unique(t.returns[greedy > 0])]

    def rows(self, case: Case) -> apply.Rows:
        """All trajectories, with the values that the case uses."""
        t, values = self.t, np.zeros(self.t.mask.shape)
        if case.critic != "none":
            values = self.values + (0.3 * np.sin(1.0 + t.context) if case.critic == "wrong" else 0.0)
        told = (t.mask, t.last, t.reward, t.state, values, self.logprob, self.behavior_logprob, self.slopes)
        return apply.Rows(*map(jnp.asarray, told))

    def population(self, case: Case) -> np.ndarray:
        """Advantages f64[J, S] relative to the behavior policy itself instead of the members of a group."""
        returns, mean = self.t.returns, self.chance @ self.t.returns
        rule = case.rule
        if rule.kind == "gigpo":
            return self._gigpo(case) * self.t.mask
        if rule.kind == "grpo" or rule.kind == "rloo" or rule.kind == "remax":
            baseline = sum(p * r for p, r in self.baselines) if rule.kind == "remax" else mean
            std = math.sqrt(self.chance @ np.square(returns - mean))
            divided = std if rule.kind == "grpo" and rule.normalize_by_std else 1.0
            return np.broadcast_to(((returns - baseline) / divided)[:, None], self.t.mask.shape) * self.t.mask
        plain = dataclasses.replace(case, rule=rule.replace(whiten=False))
        # Each trajectory is passed as a group, which these estimators ignore.
        return np.asarray(apply.advantages(plain, self.rows(case), 1, jnp.float64(0.0)))

    def _gigpo(self, case: Case) -> np.ndarray:
        """Advantages f64[J, S] from gigpo's two comparisons: episodes of the level, and turns in the same state."""
        rule = case.rule
        assert rule.kind == "gigpo"
        t, of_turns = self.t, np.zeros(self.t.turn_mask.shape)
        if case.anchor == "state":
            of_turns += _standing(t.returns, np.zeros(len(t), int), self.chance, rule.normalize_by_std)[:, None]
        returns = np.asarray(gigpo.returns_to_go(jnp.asarray(t.reward), rule.turn_gamma))
        state = t.state if case.anchor == "state" else np.broadcast_to(np.arange(task.TURNS), t.state.shape)
        code = jnp.asarray(np.stack([state, state], axis=-1), jnp.uint32)
        # The cases weight the history levels with power 1.
        shares = np.arange(1.0, rule.history + 2)
        for steps, share in enumerate(shares / shares.sum()):
            alike = gigpo.same_state(gigpo.with_history(code, steps), jnp.zeros(len(t), int), jnp.asarray(t.turn_mask))
            chance = np.repeat(self.chance[:, None], task.TURNS, axis=1) * t.turn_mask
            number = np.asarray(alike).reshape(-1)
            compared = _standing(returns.reshape(-1), number, chance.reshape(-1), rule.normalize_by_std)
            of_turns += rule.step_weight * share * np.where(t.turn_mask, compared.reshape(returns.shape), 0.0)
        return of_turns[:, np.arange(task.ROW) // (task.RESPONSE + 1)]

    def endless(self, case: Case, advantage: np.ndarray, mean_length: float) -> np.ndarray:
        """The gradient f64[P] of an infinite batch, from advantages f64[J, S] and the mean number of tokens per row."""
        lengths = self.t.mask.sum(axis=1, keepdims=True)
        of_row = 1.0 / lengths if case.aggregation == "seq_mean_token_mean" else np.ones(lengths.shape)
        weights = of_row / (mean_length if case.aggregation == "token_mean" else 1.0) * self.t.mask
        logprob_gradient = apply.logprob_gradient(case, self.rows(case), jnp.asarray(advantage), jnp.asarray(weights))
        return np.einsum("j,js,jsp->p", self.chance, np.asarray(logprob_gradient), self.slopes)

    def groups(self, group_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Every unordered group, i64[C, M], and its probability [C]."""
        index, orders = _groups(len(self.t), group_size)
        return index, self.chance[index].prod(axis=1) * orders

    def sampled(self, group_size: int, draws: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Groups sampled from the behavior policy, each with weight 1 / draws."""
        index = draw.choice(len(self.t), (draws, group_size), p=self.chance / self.chance.sum())
        return index, np.full(draws, 1.0 / draws)

    def gradients(self, case: Case, index: np.ndarray, chance: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights [C], standard deviations of returns [C] and gradients [C, P] of groups [C, M] with weights [C]."""
        rows, padded = self.rows(case), np.pad(index, ((0, -len(index) % _CHUNK), (0, 0)))

        def everywhere(baseline: float) -> tuple[np.ndarray, np.ndarray]:
            parts = [
                apply.of_groups(case, rows, padded[start : start + _CHUNK], jnp.float64(baseline))
                for start in range(0, len(index), _CHUNK)
            ]
            spreads, gradients = (np.concatenate(part)[: len(index)] for part in zip(*parts))
            return spreads, gradients

        baselines = self.baselines if case.rule.kind == "remax" else [(1.0, 0.0)]
        parts = [(chance * weight, *everywhere(value)) for weight, value in baselines]
        chances, spreads, gradients = (np.concatenate(x) for x in zip(*parts))
        return chances, spreads, gradients


def _standing(values: np.ndarray, alike: np.ndarray, chance: np.ndarray, normalize_std: bool) -> np.ndarray:
    """Difference of values f64[X] from the weighted mean of their class, `alike` i64[X]; optionally over the std."""
    weight = np.maximum(np.bincount(alike, weights=chance), 1e-300)
    centered = values - (np.bincount(alike, weights=chance * values) / weight)[alike]
    if not normalize_std:
        return centered
    std = np.sqrt(np.bincount(alike, weights=chance * centered**2) / weight)[alike]
    return np.where(std <= STD_FLOOR, 0.0, centered / (std + STD_FLOOR))


@functools.cache
def _groups(number: int, group_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Every unordered group of trajectories, i64[C, M], and the number of its orders f64[C]."""
    index = np.array(list(itertools.combinations_with_replacement(range(number), group_size)))
    # Equal members are adjacent; counting along each run of them multiplies to the run's factorial.
    run, repeats = np.ones(len(index)), np.ones(len(index))
    for before, here in itertools.pairwise(index.T):
        run = np.where(here == before, run + 1, 1)
        repeats *= run
    return index, math.factorial(group_size) / repeats
