"""The estimators that are measured, and what is known about each."""

from typing import Any

from agentrl_jax.algos.estimate import EstimatorRule
from agentrl_jax.truth.exact import Case


def _case(name: str, advantage: Any, *, rule: dict[str, Any] | None = None, **options: Any) -> Case:
    return Case(name=name, rule=EstimatorRule(advantage=advantage, **(rule or {})), **options)


_NO_STD = {"normalise_std": False}
_TURNS: dict[str, Any] = {"placement": "turn"}

CASES: tuple[Case, ...] = (
    # Without a baseline, or with one that does not depend on the episode itself: no bias.
    _case("reinforce", "reward_to_go", unbiased=True),
    _case("reinforce, rewards by turn", "reward_to_go", **_TURNS, unbiased=True),
    _case("rloo", "rloo", unbiased=True),
    _case("remax", "remax", unbiased=True),
    _case("dr_grpo", "grpo", rule=_NO_STD, unbiased=True, note="(M - 1) / M times the gradient"),
    # A critic of the history is a baseline too, as long as lambda is 1 or its values are right.
    _case("gae, true critic", "gae", critic="true", **_TURNS, unbiased=True),
    _case("gae, wrong critic", "gae", critic="wrong", **_TURNS, unbiased=True, note="lambda 1"),
    _case("gae 0.9, true critic", "gae", lam=0.9, critic="true", **_TURNS, unbiased=True),
    _case("gae 0.9, wrong critic", "gae", lam=0.9, critic="wrong", **_TURNS),
    _case("turn_gae, true critic", "turn_gae", critic="true", **_TURNS, unbiased=True),
    _case("turn_gae, wrong critic", "turn_gae", critic="wrong", **_TURNS, unbiased=True, note="lambda 1"),
    _case("turn_gae 0.9, wrong critic", "turn_gae", lam=0.9, critic="wrong", **_TURNS),
    _case("bi_level_gae, true critic", "bi_level_gae", critic="true", **_TURNS, unbiased=True),
    _case("bi_level_gae, wrong critic", "bi_level_gae", critic="wrong", **_TURNS, unbiased=True, note="lambda 1"),
    _case("bi_level_gae, turns 0.95", "bi_level_gae", turn_gamma=0.95, critic="true", **_TURNS, note="discounts turns"),
    # What is popular and is not the gradient of the return.
    _case("grpo", "grpo"),
    _case("whitened reinforce (reinforce_pp)", "reward_to_go", rule={"whiten": True}),
    _case("whitened dr_grpo (reinforce_pp baseline)", "grpo", rule=_NO_STD | {"whiten": True}),
    _case("whitened gae, true critic (ppo)", "gae", rule={"whiten": True}, critic="true", **_TURNS),
    _case("gigpo", "gigpo"),
    _case("gigpo without std", "gigpo", rule=_NO_STD),
    _case("hgpo, one state of history", "gigpo", rule={"history": 1}),
    _case("hgpo without std", "gigpo", rule=_NO_STD | {"history": 1}),
    _case("per-turn normalisation", "gigpo", anchor="turn", note="verl's issue 7244"),
    _case("per-turn mean", "gigpo", rule=_NO_STD, anchor="turn"),
    _case("dr_grpo, two groups by spread", "grpo", rule=_NO_STD, pairing="spread_of_two"),
    _case("grpo, rows by length", "grpo", rule={"length_weighted": True}),
    # The aggregation of the loss.
    _case("rloo, token_mean", "rloo", aggregation="token_mean"),
    _case("rloo, seq_mean_token_mean", "rloo", aggregation="seq_mean_token_mean"),
    _case("rloo, seq_mean_token_sum_norm", "rloo", aggregation="seq_mean_token_sum_norm", unbiased=True),
    _case("grpo, token_mean", "grpo", aggregation="token_mean"),
    _case("grpo, seq_mean_token_mean", "grpo", aggregation="seq_mean_token_mean"),
    # The objective: on policy it matters through its weights alone.
    _case("gspo", "grpo", aggregation="seq_mean_token_mean", objective="gspo"),
    _case("cispo", "grpo", aggregation="token_mean", objective="cispo"),
    # Filters.
    _case("rloo, better of two groups", "rloo", pairing="best_of_two"),
    _case("grpo, better of two groups", "grpo", pairing="best_of_two"),
    _case("gae, true critic, better of two groups", "gae", critic="true", **_TURNS, pairing="best_of_two"),
    _case("rloo, informative groups", "rloo", pairing="informative", unbiased=True),
    _case("grpo, informative groups", "grpo", pairing="informative"),
    _case("gae, true critic, informative groups", "gae", critic="true", **_TURNS, pairing="informative"),
)
"""All cases, by kind."""
