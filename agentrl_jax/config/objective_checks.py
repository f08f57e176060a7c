"""Checks of the loss of the policy with the rest of a configuration."""

from collections.abc import Iterator
from typing import Any

from agentrl_jax.config.algo import AlgoConfig
from agentrl_jax.config.mismatch import NoCorrection
from agentrl_jax.config.schema import Config


def check_objective(config: Config) -> Iterator[tuple[str, Any, str]]:
    """Yields what the loss cannot be used with, as key, value and what to do."""
    algo, kl = config.algo, config.algo.kl
    from_rollout = algo.mismatch == NoCorrection(ratio_from="rollout")
    objective = algo.objective
    if not objective.has_ratio and from_rollout and kl.apply_to != "reward":
        yield "algo.mismatch.ratio_from", "rollout", f"but algo.objective {objective.kind} has no ratios; use learner"
    if objective.from_rollout and algo.mismatch.ratio_from != "rollout":
        why = (
            f"which measures from the rollout, but ratios of algo.mismatch {algo.mismatch.kind} start from the learner"
        )
        why += "; use algo.mismatch {ratio_from: rollout}, or replay"
        yield "algo.objective", objective.kind, why
    if objective.unit == "row" and algo.aggregation != "seq_mean_token_mean":
        why = f"but algo.objective {objective.kind} has one loss a row, which this would weight by tokens"
        why += "; use seq_mean_token_mean"
        yield "algo.aggregation", algo.aggregation, why
    if algo.tokens.kind != "all" and objective.unit == "row":
        why = f"which treats tokens apart, but algo.objective {objective.kind} has one loss a row; use all"
        yield "algo.tokens", algo.tokens.kind, why
    if algo.tokens.kind == "kl_cov" and algo.epochs * algo.minibatches == 1:
        why = "but algo.epochs x algo.minibatches is 1, so that no probability has changed; use more steps, or clip_cov"
        yield "algo.tokens", "kl_cov", why
    if algo.entropy_target is None and algo.entropy_step != AlgoConfig().entropy_step:
        yield "algo.entropy_step", algo.entropy_step, "but algo.entropy_target is none; set it, or leave this out"
    if algo.entropy_target is not None and "entropy_coef" in algo.schedules:
        why = "which moves algo.entropy_coef, and algo.schedules.entropy_coef moves it too; leave one out"
        yield "algo.entropy_target", algo.entropy_target, why
