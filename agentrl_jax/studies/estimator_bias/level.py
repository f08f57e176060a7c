"""All trajectories of one level under a trained policy and a behavior policy."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import entr
from jaxtyping import Float, Int

from agentrl_jax.algos import gigpo
from agentrl_jax.algos.groups import STD_FLOOR
from agentrl_jax.algos.rewards import place_rewards
from agentrl_jax.config.advantages import Gigpo, Grpo, Remax, Rloo
from agentrl_jax.studies.estimator_bias import apply, task
from agentrl_jax.studies.estimator_bias.cases import Case
from agentrl_jax.studies.estimator_bias.policies import TinyPolicy

_CHUNK = 8192


class Level:
    """The J trajectories of one level.

    Attributes:
        t: the trajectories.
        logprob, behavior_logprob: f64[J, S] of their sampled tokens under the trained and under the behavior policy.
        entropy: f64[J, S] of the trained policy.
        slopes: f64[J, S, P] derivatives of `logprob` with respect to the parameters.
        chance: f64[J], their probabilities under the behavior policy.
        gradient: f64[P] of the trained policy's expected return with respect to its parameters.
        values: f64[J, S] exact values of the trained policy.
        baselines: (probability, return) of the behavior policy's greedy episodes.
    """

    def __init__(self, policy: TinyPolicy, behavior: Float[np.ndarray, " P"], level: int):
        """Computes all attributes; `behavior` are the parameters of the behavior policy."""
        self.t = t = task.enumerate_level(level)

        def logprobs(parameters):
            return jnp.where(t.mask, jax.nn.log_softmax(policy.logits(parameters))[t.context, t.tokens], 0.0)

        def chances(parameters):
            return t.chance * jnp.exp(jnp.sum(logprobs(parameters), axis=1))

        trained, sampling = jnp.asarray(policy.start), jnp.asarray(behavior)
        self.logprob, self.behavior_logprob = np.asarray(logprobs(trained)), np.asarray(logprobs(sampling))
        shares = jax.nn.softmax(policy.logits(trained))
        self.entropy = np.asarray(jnp.sum(entr(shares), axis=1)[t.context])
        self.slopes = np.asarray(jax.jacobian(logprobs)(trained))
        self.chance = np.asarray(chances(sampling))
        self.gradient = np.asarray(jax.grad(lambda x: jnp.sum(chances(x) * t.returns))(trained))
        self.values = task.true_values(t, np.asarray(chances(trained)))
        best = np.argmax(np.asarray(policy.logits(sampling)), axis=1)
        greedy = np.where(np.all((t.tokens == best[t.context]) | ~t.mask, axis=1), t.chance, 0.0)
        self.baselines = [(greedy[t.returns == r].sum(), r) for r in np.unique(t.returns[greedy > 0])]

    def rows(self, case: Case) -> apply.Rows:
        """All trajectories, with the values that the case uses."""
        t, values = self.t, np.zeros(self.t.mask.shape)
        if case.critic != "none":
            earned = place_rewards(jnp.asarray(t.reward), jnp.asarray(t.last), task.ROW, "turn")
            before = np.cumsum(earned, axis=1) - earned if case.placement == "episode" else 0.0
            values = self.values + before + (0.3 * np.sin(1.0 + t.context) if case.critic == "wrong" else 0.0)
        of_tokens = self.logprob, self.behavior_logprob, self.entropy, self.slopes
        return apply.Rows(*map(jnp.asarray, (t.mask, t.last, t.reward, t.state, values, *of_tokens)))

    def population(self, case: Case) -> Float[np.ndarray, "J S"]:
        """Advantages in a batch of one infinitely large group: of the behavior policy instead of its members."""
        advantage, mask = self._unweighted(case), self.t.mask
        if case.rule.length_weighted:
            advantage = advantage * self.mean_length / mask.sum(axis=1, keepdims=True)
        if case.rule.whiten:
            chance = self.chance[:, None] * mask / self.mean_length
            mean = np.sum(chance * advantage)
            advantage = (advantage - mean) / np.sqrt(np.sum(chance * np.square(advantage - mean)))
        return advantage * mask

    @property
    def mean_length(self) -> float:
        """Mean number of sampled tokens of a trajectory."""
        return float(self.chance @ self.t.mask.sum(axis=1))

    def _unweighted(self, case: Case) -> Float[np.ndarray, "J S"]:
        """Advantages before weights of rows and before whitening."""
        returns, mean = self.t.returns, self.chance @ self.t.returns
        rule = case.rule
        if isinstance(rule, Gigpo):
            return self._gigpo(case)
        if isinstance(rule, Grpo | Rloo | Remax):
            baseline = sum(p * r for p, r in self.baselines) if rule.kind == "remax" else mean
            std = math.sqrt(self.chance @ np.square(returns - mean))
            divided = std if isinstance(rule, Grpo) and rule.normalize_by_std else 1.0
            return np.broadcast_to(((returns - baseline) / divided)[:, None], self.t.mask.shape)
        unwhitened = dataclasses.replace(case, rule=rule.replace(whiten=False))
        # Each trajectory is passed as a group, which these estimators ignore.
        return np.asarray(apply.advantages(unwhitened, self.rows(case), 1, jnp.float64(0.0)))

    def _gigpo(self, case: Case) -> Float[np.ndarray, "J S"]:
        """Advantages from gigpo's two comparisons: episodes of the level, and turns in the same state."""
        rule = case.rule
        assert isinstance(rule, Gigpo)
        t, of_turns = self.t, np.zeros(self.t.turn_mask.shape)
        if case.anchor == "state":
            of_turns += _relative(t.returns, np.zeros(len(t), int), self.chance, rule.normalize_by_std)[:, None]
        returns = np.asarray(gigpo.returns_to_go(jnp.asarray(t.reward), rule.turn_gamma))
        state = t.state if case.anchor == "state" else np.broadcast_to(np.arange(task.TURNS), t.state.shape)
        code = jnp.asarray(np.stack([state, state], axis=-1), jnp.uint32)
        # The cases weight the history levels with power 1.
        shares = np.arange(1.0, rule.history + 2)
        for steps, share in enumerate(shares / shares.sum()):
            state_group = gigpo.same_state(
                gigpo.with_history(code, steps), jnp.zeros(len(t), int), jnp.asarray(t.turn_mask)
            )
            chance = np.repeat(self.chance[:, None], task.TURNS, axis=1) * t.turn_mask
            number = np.asarray(state_group).reshape(-1)
            compared = _relative(returns.reshape(-1), number, chance.reshape(-1), rule.normalize_by_std)
            of_turns += rule.step_weight * share * np.where(t.turn_mask, compared.reshape(returns.shape), 0.0)
        return of_turns[:, np.arange(task.ROW) // (task.RESPONSE + 1)]

    def own_gradient(self, case: Case) -> Float[np.ndarray, " P"]:
        """The gradient of a batch of one infinitely large group."""
        lengths = self.t.mask.sum(axis=1, keepdims=True)
        of_row = 1.0 / lengths if case.aggregation == "seq_mean_token_mean" else np.ones(lengths.shape)
        weights = of_row / (self.mean_length if case.aggregation == "token_mean" else 1.0) * self.t.mask
        advantage = jnp.asarray(self.population(case))
        of_logprobs = apply.logprob_gradient(case, self.rows(case), advantage, jnp.asarray(weights))
        return np.einsum("j,js,jsp->p", self.chance, np.asarray(of_logprobs), self.slopes)

    def all_groups(self, group_size: int) -> tuple[Int[np.ndarray, "C M"], Float[np.ndarray, " C"]]:
        """Every unordered group and its probability."""
        index, orders = _groups(len(self.t), group_size)
        return index, self.chance[index].prod(axis=1) * orders

    def sampled_groups(
        self, group_size: int, count: int, rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, "C M"], Float[np.ndarray, " C"]]:
        """Groups sampled from the behavior policy, each with weight 1 / count."""
        index = rng.choice(len(self.t), (count, group_size), p=self.chance / self.chance.sum())
        return index, np.full(count, 1.0 / count)

    def gradients(
        self, case: Case, index: Int[np.ndarray, "C M"], chance: Float[np.ndarray, " C"]
    ) -> tuple[Float[np.ndarray, " C"], Float[np.ndarray, " C"], Float[np.ndarray, "C P"]]:
        """Weights, standard deviations of returns and gradients of groups; remax has each once per greedy return."""
        rows, padded = self.rows(case), np.pad(index, ((0, -len(index) % _CHUNK), (0, 0)))

        def of_baseline(baseline: float) -> list[np.ndarray]:
            parts = [
                apply.group_gradients(case, rows, padded[start : start + _CHUNK], jnp.float64(baseline))
                for start in range(0, len(index), _CHUNK)
            ]
            return [np.concatenate(part)[: len(index)] for part in zip(*parts)]

        baselines = self.baselines if case.rule.has_greedy else [(1.0, 0.0)]
        parts = [(chance * weight, *of_baseline(value)) for weight, value in baselines]
        chances, spreads, gradients = (np.concatenate(x) for x in zip(*parts))
        return chances, spreads, gradients


def _relative(
    values: Float[np.ndarray, " X"], classes: Int[np.ndarray, " X"], chance: Float[np.ndarray, " X"], by_std: bool
) -> Float[np.ndarray, " X"]:
    """Difference of values from the weighted mean of their class; optionally divided by the standard deviation."""
    weight = np.maximum(np.bincount(classes, weights=chance), 1e-300)
    centered = values - (np.bincount(classes, weights=chance * values) / weight)[classes]
    if not by_std:
        return centered
    std = np.sqrt(np.bincount(classes, weights=chance * centered**2) / weight)[classes]
    return np.where(std <= STD_FLOOR, 0.0, centered / (std + STD_FLOOR))


@functools.cache
def _groups(number: int, group_size: int) -> tuple[Int[np.ndarray, "C M"], Float[np.ndarray, " C"]]:
    """Every unordered group of trajectories, and the number of its orders."""
    index = np.array(list(itertools.combinations_with_replacement(range(number), group_size)))
    # Equal members are adjacent; counting along each run of them multiplies to the run's factorial.
    run, repeats = np.ones(len(index)), np.ones(len(index))
    for before, here in itertools.pairwise(index.T):
        run = np.where(here == before, run + 1, 1)
        repeats *= run
    return index, math.factorial(group_size) / repeats
