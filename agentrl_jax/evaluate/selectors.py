"""Best-of-N: which of an agent's N samples on a level is taken as its result.

oracle: one that succeeds, if there is one, which no agent can know (pass@N); majority: the most frequent answer;
shortest: the fewest sampled tokens; logprob: the highest mean log-probability of sampled tokens; value: the highest
value of the run's critic before the last sampled token.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from agentrl_jax.config import Config
from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.statistics import best_of, majority_of, pass_at
from agentrl_jax.models import actor_critic
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.rollout.contexts import Context
from agentrl_jax.rollout.packing import layout, pack_trajectories
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.services.environment import Service
from agentrl_jax.setup.agents import context_of
from agentrl_jax.setup.policy import RunPolicy
from agentrl_jax.text.tokenizer import Tokenizer

Selector = Literal["oracle", "majority", "shortest", "value", "logprob"]
SELECTORS: tuple[str, ...] = get_args(Selector)

_ROWS = 32
"""Contexts that the critic reads at a time."""


@dataclasses.dataclass(frozen=True)
class BestOf:
    """Takes one of k samples on each level."""

    selector: str
    judge: Callable[[Trajectory], Sequence[Any]]
    """What the selector reads of n episodes: a score, or for majority an answer, of each."""

    def success(self, outcomes: Bool[np.ndarray, "n m"], judged: Sequence[Sequence[Any]], k: int) -> np.ndarray:
        """The probability that the sample taken of k succeeds, f64[n]; `judged` [m][n] is what `judge` returned."""
        return success_of_best(self.selector, outcomes, [list(row) for row in zip(*judged, strict=True)], k)


def success_of_best(
    selector: str, outcomes: Bool[np.ndarray, "n m"], judged: Sequence[Sequence[Any]], k: int
) -> Float[np.ndarray, " n"]:
    """The probability that the sample that a selector takes of k succeeds.

    `judged` [n][m] has a score, or for majority an answer, of each sample; the oracle does not read it.
    """
    if selector == "oracle":
        return pass_at(outcomes, k)
    return (majority_of if selector == "majority" else best_of)(outcomes, judged, k)


def best_of_selector(selector: str, policy: RunPolicy, config: Config) -> BestOf:
    """The selector of this name for a run whose evaluation has the task of `config`.

    Raises:
        UserError: the run has no critic, or the task's episodes end without an answer in words.
    """
    if selector == "shortest":
        return BestOf(selector, lambda played: (-np.asarray(played.response.length).sum(axis=1)).tolist())
    if selector == "logprob":
        return BestOf(selector, lambda played: mean_logprob(played).tolist())
    if selector == "value":
        if policy.model.critic == "none":
            raise UserError(
                f"--selector is value, but this run has no critic (algo.advantage is {config.algo.advantage.kind}); "
                "expected one of oracle, shortest, logprob",
                key="--selector",
                value="value",
            )
        return BestOf(selector, _critic(policy, config))
    if selector == "majority":
        env = config.tasks[0].env
        service = None if config.prompt.has_answer_block else config.kinds[0].service(env)
        if service is None or service.answer is None:
            raise UserError(
                f"--selector is majority, but episodes of {env} end without an answer in words, so that none is "
                "the most frequent; expected one of oracle, shortest, logprob, value",
                key="--selector",
                value="majority",
            )
        return BestOf(selector, lambda played: answers(played, policy.tokenizer, service))
    return BestOf(selector, lambda played: [0.0] * len(played.num_turns))


def mean_logprob(played: Trajectory) -> Float[np.ndarray, " n"]:
    """The mean log-probability of an episode's sampled tokens, at the temperature of sampling, in nats."""
    response = played.response
    sampled = np.arange(response.tokens.shape[-1]) < response.length[..., None]
    total = np.where(sampled, response.logprob, 0.0).sum(axis=(1, 2), dtype=np.float64)
    return total / np.maximum(response.length.sum(axis=1), 1)


def answers(played: Trajectory, tokenizer: Tokenizer, service: Service) -> list[str]:
    """The answer in each episode's last response, empty for none."""
    assert service.answer is not None
    last = played.num_turns - 1
    found = []
    for episode, turn in enumerate(last.tolist()):
        count = int(played.response.length[episode, turn])
        action = service.read(tokenizer.decode(played.response.tokens[episode, turn, :count].tolist())).action
        found.append(service.answer(action or ""))
    return found


def _critic(policy: RunPolicy, config: Config) -> Callable[[Trajectory], list[float]]:
    context, limit = context_of(config), config.rollout.context_tokens

    @jax.jit
    def values(params: dict[str, Any], played: Trajectory) -> Float[Array, " n"]:
        return last_values(params, policy.model, played, context, limit)

    def judge(played: Trajectory) -> list[float]:
        episodes = len(played.num_turns)
        rows = max(_ROWS // context.bounds(played.turn.reward.shape[1]).segments, 1)
        found: list[float] = []
        for first in range(0, episodes, rows):
            number = np.arange(first, first + rows) % episodes  # filled up, so that one program is enough
            part = jax.tree.map(operator.itemgetter(number), played)
            found += np.asarray(values(policy.params, part)).tolist()
        return found[:episodes]

    return judge


def last_values(
    params: dict[str, Any], model: ActorCritic, played: Trajectory, context: Context, limit: int = 0
) -> Float[Array, " n"]:
    """The critic's value before the last sampled token of each episode; arguments as for `pack_trajectories`."""
    rows = pack_trajectories(played, context, limit)
    number, _ = layout(played, context).place(jnp.maximum(played.num_turns - 1, 0))
    mask, position = rows.response_mask[number], rows.position[number]
    last = jnp.max(jnp.where(mask, position, 1), axis=1, keepdims=True)
    return actor_critic.values(params, model, rows.tokens[number], last)[:, 0]
