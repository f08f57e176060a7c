"""Checks that stop a run before it saves, if it would otherwise go wrong silently."""

from collections.abc import Mapping
from typing import Any

from agentrl_jax.config import AlgoConfig
from agentrl_jax.errors import UserError


def check_skipped(in_a_row: int, limit: int, rate: str, kept: str) -> None:
    """Stops a run after too many updates in a row that were skipped.

    Args:
        in_a_row: number of consecutive skipped updates.
        limit: number that stops the run.
        rate: configuration key of the learning rate of these updates.
        kept: which checkpoint is left, for the message.

    Raises:
        UserError: the limit is reached.
    """
    if in_a_row >= limit:
        raise UserError(
            f"{in_a_row} updates in a row were skipped, because loss or gradient was not finite or no token was "
            f"there to learn from; expected fewer than {limit}; {kept}; lower {rate} or "
            "optim.max_grad_norm, or see whether train/failed is high, and use a new run folder"
        )


def check_services(failed: float, limit: float, where: str, last: str, kept: str) -> None:
    """Stops a run in which too many episodes fail.

    Args:
        failed: share of the episodes that failed.
        limit: largest share that is allowed.
        where: the services, for the message.
        last: the last error, for the message.
        kept: which checkpoint is left, for the message.

    Raises:
        UserError: the share is above the limit.
    """
    if failed > limit:
        raise UserError(
            f"{failed:.0%} of the episodes failed in {where} (the last one: {last}); expected at most {limit:.0%} "
            f"(env.max_failed); {kept}; see whether the service is well, then give the same command again"
        )


def check_logprobs(algo: AlgoConfig, metrics: Mapping[str, Any], kept: str) -> None:
    """Stops a run in which the log-probabilities of learner and rollout differ too much.

    Args:
        algo: holds the limit, `logprob_gap_limit`.
        metrics: metrics of the iteration.
        kept: which checkpoint is left, for the message.

    Raises:
        UserError: the gap is above the limit, or `algo.mismatch` is replay and they are not equal bit for bit.
    """
    gap, limit = metrics["rollout/logprob_gap_mean"], algo.logprob_gap_limit
    if limit is not None and gap > limit:
        raise UserError(
            f"log-probabilities by the learner and by the rollout differ by {gap:.3g} nats in the mean, and "
            f"algo.logprob_gap_limit is {limit:g}; {kept}; use model.precision float32, algo.mismatch replay, "
            "or a higher limit (none for no limit), and a new run folder"
        )
    equal = metrics["rollout/logprob_bit_equal"]
    if algo.mismatch.kind == "replay" and equal < 1.0 and metrics["update/trained_tokens"]:
        raise UserError(
            f"algo.mismatch is replay, but only {equal:.4%} of the replay's log-probabilities are those of the "
            f"rollout bit for bit (largest difference {metrics['rollout/logprob_gap_max']:.3g}), so that this "
            f"machine computes the same steps in different ways; {kept}; use algo.mismatch none or "
            "tis and a new run folder"
        )
