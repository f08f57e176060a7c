"""Checks that stop a run with a `UserError` before it saves, if it would otherwise go wrong silently.

In all of them, `kept` returns which checkpoint is left, for the message.
"""

from collections.abc import Callable, Mapping
from typing import Any

from agentrl_jax.config import Config
from agentrl_jax.errors import UserError


def check_skipped(in_a_row: int, limit: int, rate: str, kept: Callable[[], str]) -> None:
    """Stops a run after `limit` consecutive skipped updates; `rate` is the configuration key of their learning rate."""
    if in_a_row >= limit:
        raise UserError(
            f"{in_a_row} updates in a row were skipped, because loss or gradient was not finite or no token was "
            f"there to learn from; expected fewer than {limit}; {kept()}; lower {rate} or "
            "optim.max_grad_norm, or see whether train/failed is high, and use a new run folder",
            key=rate,
            value=in_a_row,
        )


def check_services(failed: float, limit: float, where: str, last: str, kept: Callable[[], str]) -> None:
    """Stops a run if a larger share of episodes than `limit` failed in the services `where`, with the `last` error."""
    if failed > limit:
        raise UserError(
            f"{failed:.0%} of the episodes failed in {where} (the last one: {last}); expected at most {limit:.0%} "
            f"(env.max_failed); {kept()}; see whether the environment works, then give the same command again",
            key="env.max_failed",
            value=limit,
        )


def check_logprobs(config: Config, metrics: Mapping[str, Any], kept: Callable[[], str]) -> None:
    """Stops a run in which the log-probabilities of learner and rollout differ too much.

    That is by more than `algo.logprob_gap_limit` on average, or by a single bit if `algo.mismatch` is replay.
    """
    algo, quantization = config.algo, config.rollout.quantization
    gap, limit = metrics["rollout/logprob_gap_mean"], algo.logprob_gap_limit
    if limit is not None and gap > limit:
        remedy = "model.precision float32, algo.mismatch replay"
        if quantization != "none":
            remedy = f"rollout.quantization none instead of {quantization}"
        raise UserError(
            f"log-probabilities by the learner and by the rollout differ by {gap:.3g} nats in the mean, and "
            f"algo.logprob_gap_limit is {limit:g}; {kept()}; use {remedy}, "
            "or a higher limit (none for no limit), and a new run folder",
            key="algo.logprob_gap_limit",
            value=limit,
        )
    equal = metrics["rollout/logprob_bit_equal"]
    if algo.mismatch.kind == "replay" and equal < 1.0 and metrics["update/trained_tokens"]:
        raise UserError(
            f"algo.mismatch is replay, but only {equal:.4%} of the replay's log-probabilities are those of the "
            f"rollout bit for bit (largest difference {metrics['rollout/logprob_gap_max']:.3g}), so that this "
            f"machine computes the same steps in different ways; {kept()}; use algo.mismatch none or "
            "tis and a new run folder",
            key="algo.mismatch",
            value="replay",
        )
