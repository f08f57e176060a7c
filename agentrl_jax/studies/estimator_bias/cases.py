"""The estimators that are measured, and what is known about each."""

import dataclasses
from typing import Any, Literal

from agentrl_jax.algos import losses
from agentrl_jax.config import decode
from agentrl_jax.config.advantages import Advantage
from agentrl_jax.config.fields import LARGEST, is_own
from agentrl_jax.config.filters import OwnFilter
from agentrl_jax.config.keys import kind_of, sections_of
from agentrl_jax.config.mismatch import IcePop, Tis
from agentrl_jax.config.objectives import Cispo, DppoKl, DppoTv, Gmpo, Gspo, Objective, Ppo, Sapo
from agentrl_jax.config.own import OwnAdvantage, OwnKind, OwnObjective
from agentrl_jax.config.token_rules import AllTokens, ClipCov, KlCov, TokenRule, TopEntropy

Pairing = Literal["none", "best_of_two", "informative", "spread_of_two", "own"]
UNBIASED = 1e-9
"""Largest measured bias of an unbiased estimator, as a share of the gradient: float64 rounding."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """An estimator of the policy gradient; results show its unique name and its note."""

    name: str
    rule: Advantage
    """The token discount is 1."""
    aggregation: losses.Aggregation = "seq_mean_token_sum"
    objective: Objective = dataclasses.field(default_factory=Ppo)
    """On policy, objectives differ in their weights only."""
    tokens: TokenRule = dataclasses.field(default_factory=AllTokens)
    """Tokens that are treated apart; the group is the minibatch, and clip_cov has no draws: all between its bounds."""
    correction: Literal["ratio", "none", "mismatch", "trajectory", "prefix", "per_decision"] = "ratio"
    """Correction for tokens sampled by another policy. ratio: the objective's ratios are relative to that policy.

    In all other cases they are relative to the trained policy itself, as in the first step of an update whose learner
    has recomputed the log-probabilities, and each token's loss gets a weight. none: no weight; mismatch: those of
    `mismatch`, as in the learner; trajectory: the product of the ratios of all tokens of the episode;
    prefix: the product up to the token. per_decision: instead of the loss, each reward is multiplied by the product up
    to where it is earned (Precup et al. 2000, per-decision importance sampling); only for estimators that read rewards
    instead of returns."""
    mismatch: Tis | IcePop | None = None
    """Rule of the weights, for the correction mismatch."""
    critic: Literal["none", "true", "wrong"] = "none"
    """Values used as the critic: none, the exact ones, or these with an error that depends on the state.

    They are those of the rewards as placed: with `placement` episode of the whole return, with what has been earned.
    """
    placement: Literal["episode", "turn"] = "episode"
    """The whole return at the episode's end, or rewards at the ends of their turns."""
    pairing: Pairing = "none"
    """How other groups affect a group. best_of_two: of two groups, the one whose returns differ more is kept
    (StarPO-S); informative: groups are resampled until one has different returns (DAPO's dynamic sampling);
    spread_of_two: two groups are weighted by `groups.spread_weights`; own: `filter` keeps some of two groups."""
    filter: OwnFilter | None = None
    """Of the user, for the pairing own; it sees the returns."""
    anchor: Literal["state", "turn"] = "state"
    """How gigpo groups turns: by state, or by turn number; the latter without the comparison of episodes, which is the
    per-turn normalization of verl's issue 7244."""
    unbiased: bool = False
    """The mean is a multiple of the true gradient; proven, and tested."""
    note: str = ""

    @property
    def rounding(self) -> float:
        """`UNBIASED`, or more with a function of the user, which may compute in float32."""
        of_user = is_own(self.rule.kind) or is_own(self.objective.kind) or self.filter is not None
        return 1e-5 if of_user else UNBIASED


_RULES: dict[str, Any] = {kind_of(rule): rule for rule in sections_of(Advantage)}


def _case(name: str, kind: str, *, rule: dict[str, Any] | None = None, **options: Any) -> Case:
    plain = {"whiten": False} | ({"turn_gamma": 1.0} if "turn_gamma" in _RULES[kind].model_fields else {})
    return Case(name=name, rule=_RULES[kind](**plain | (rule or {})), **options)


def _preset(name: str, **options: Any) -> Case:
    """A whole preset: its advantages, its aggregation and its objective; without the entropy bonus."""
    algo = decode({"algo": {"preset": name}}).algo
    return Case(
        name=f"preset {name}",
        rule=algo.advantage,
        aggregation=algo.aggregation,
        objective=algo.objective,
        placement=algo.advantage.reward_placement,
        **options,
    )


def _weighted(name: str, mismatch: Tis | IcePop) -> Case:
    return _case(name, "rloo", correction="mismatch", mismatch=mismatch)


_NO_STD, _DISCOUNTED = {"normalize_by_std": False}, {"turn_gamma": 0.95}
_TURNS: dict[str, Any] = {"placement": "turn"}
_COVARIANCE = ClipCov(share=1.0, low=0.1)
"""Between bounds that some tokens of the small task are in."""

CASES: tuple[Case, ...] = (
    # Without a baseline, or with one that does not depend on the episode itself: unbiased.
    _case("reinforce", "reward_to_go", unbiased=True),
    _case("reinforce, rewards by turn", "reward_to_go", **_TURNS, unbiased=True),
    _case("rloo", "rloo", unbiased=True),
    _case("remax", "remax", unbiased=True),
    _case("dr_grpo", "grpo", rule=_NO_STD, unbiased=True, note="(M - 1) / M times the gradient"),
    # A critic of the history is a baseline too, as long as lambda is 1 or its values are exact.
    _case("gae, true critic", "gae", critic="true", **_TURNS, unbiased=True),
    _case("gae, wrong critic", "gae", critic="wrong", **_TURNS, unbiased=True, note="lambda 1"),
    _case("gae, true critic of the whole return", "gae", critic="true", unbiased=True, note="rewards at the end"),
    _case("gae 0.9, true critic", "gae", rule={"lam": 0.9}, critic="true", **_TURNS, unbiased=True),
    _case("gae 0.9, wrong critic", "gae", rule={"lam": 0.9}, critic="wrong", **_TURNS),
    _case("turn_gae, true critic", "turn_gae", critic="true", **_TURNS, unbiased=True),
    _case("turn_gae, wrong critic", "turn_gae", critic="wrong", **_TURNS, unbiased=True, note="lambda 1"),
    _case("turn_gae 0.9, wrong critic", "turn_gae", rule={"lam": 0.9}, critic="wrong", **_TURNS),
    _case("bi_level_gae, true critic", "bi_level_gae", critic="true", **_TURNS, unbiased=True),
    _case("bi_level_gae, wrong critic", "bi_level_gae", critic="wrong", **_TURNS, unbiased=True, note="lambda 1"),
    _case(
        "bi_level_gae, turns 0.95", "bi_level_gae", rule=_DISCOUNTED, critic="true", **_TURNS, note="discounts turns"
    ),
    # Popular estimators that are not the gradient of the return.
    _case("grpo", "grpo"),
    _case("whitened reinforce (reinforce_pp)", "reward_to_go", rule={"whiten": True}),
    _case("whitened dr_grpo (reinforce_pp baseline)", "grpo", rule=_NO_STD | {"whiten": True}),
    _case("whitened gae, true critic (ppo)", "gae", rule={"whiten": True}, critic="true", **_TURNS),
    _case("gigpo", "gigpo"),
    _case("gigpo without std", "gigpo", rule=_NO_STD),
    _case("hgpo, one state of history", "gigpo", rule={"history": 1}),
    _case("hgpo without std", "gigpo", rule=_NO_STD | {"history": 1}),
    _case("per-turn normalization", "gigpo", anchor="turn", note="verl's issue 7244"),
    _case("per-turn mean", "gigpo", rule=_NO_STD, anchor="turn"),
    _case("dr_grpo, two groups by spread", "grpo", rule=_NO_STD, pairing="spread_of_two"),
    _case("grpo, rows by length", "grpo", rule={"length_weighted": True}),
    # The aggregation of the loss.
    _case("rloo, token_mean", "rloo", aggregation="token_mean"),
    _case("rloo, seq_mean_token_mean", "rloo", aggregation="seq_mean_token_mean"),
    _case("rloo, seq_mean_token_sum_norm", "rloo", aggregation="seq_mean_token_sum_norm", unbiased=True),
    _case("grpo, token_mean", "grpo", aggregation="token_mean"),
    _case("grpo, seq_mean_token_mean", "grpo", aggregation="seq_mean_token_mean"),
    # The objective: on policy, only its weights matter.
    _case("gspo", "grpo", aggregation="seq_mean_token_mean", objective=Gspo()),
    _case("cispo", "grpo", aggregation="token_mean", objective=Cispo()),
    # Tokens that are treated apart.
    _case("rloo, top half by entropy", "rloo", tokens=TopEntropy(share=0.5)),
    _case("rloo, clip-cov, all above 0.1", "rloo", tokens=_COVARIANCE),
    # Filters.
    _case("rloo, better of two groups", "rloo", pairing="best_of_two"),
    _case("grpo, better of two groups", "grpo", pairing="best_of_two"),
    _case("gae, true critic, better of two groups", "gae", critic="true", **_TURNS, pairing="best_of_two"),
    _case("rloo, informative groups", "rloo", pairing="informative", unbiased=True),
    _case("grpo, informative groups", "grpo", pairing="informative"),
    _case("gae, true critic, informative groups", "gae", critic="true", **_TURNS, pairing="informative"),
    # Whole presets: whitened, and a mean over each row.
    _preset("ppo", critic="true"),
    _preset("starpo_s", critic="true", pairing="best_of_two", note="better of two groups"),
)
"""Cases measured on policy, sorted by kind."""

_PAPER = Gspo(clip_low=3e-4, clip_high=4e-4)
_BY_ROW: dict[str, Any] = {"aggregation": "seq_mean_token_mean"}

# Advantage and aggregation are unbiased on policy, so that any bias found comes from the drift; the last three are
# whole recipes.
OFF_POLICY: tuple[Case, ...] = (
    _case("reinforce, drift ignored", "reward_to_go", **_TURNS, correction="none"),
    _case("rloo, drift ignored", "rloo", correction="none"),
    # The objective's ratio is relative to the behavior policy.
    _case("token ratio, no clip", "rloo", objective=Ppo(clip_low=1.0, clip_high=LARGEST, dual_clip=None)),
    _case("clip 0.2, 0.2", "rloo", objective=Ppo(clip_high=0.2, dual_clip=None)),
    _case("clip 0.2, 0.28", "rloo", objective=Ppo(dual_clip=None)),
    _case("clip 0.2, 0.28, dual clip 3", "rloo"),
    _case("gspo, no clip", "rloo", objective=Gspo(clip_low=1.0, clip_high=LARGEST)),
    _case("gspo 0.2, 0.28", "rloo", objective=Gspo(clip_low=0.2, clip_high=0.28)),
    _case("gspo 0.0003, 0.0004", "rloo", objective=_PAPER, note="the paper's range"),
    _case("gmpo, no clip", "rloo", objective=Gmpo(clip_low=losses.MAX_LOG_RATIO, clip_high=LARGEST)),
    _case("gmpo 0.4", "rloo", objective=Gmpo(), note="the paper's range"),
    _case("cispo 0.28", "rloo", objective=Cispo()),
    _case("sapo 1", "rloo", objective=Sapo(tau_pos=1.0, tau_neg=1.0)),
    _case("sapo 4", "rloo", objective=Sapo(tau_pos=4.0, tau_neg=4.0)),
    _case("dppo_tv 0.15", "rloo", objective=DppoTv(ratio_cap=LARGEST)),
    _case("dppo_kl 0.05", "rloo", objective=DppoKl(ratio_cap=LARGEST)),
    _case("clip 0.2, 0.28, top half by entropy", "rloo", tokens=TopEntropy(share=0.5)),
    _case("clip 0.2, 0.28, clip-cov, all above 0.1", "rloo", tokens=_COVARIANCE),
    _case("clip 0.2, 0.28, kl-cov 20 %, 0.1", "rloo", tokens=KlCov(share=0.2, coef=0.1)),
    # An importance weight accounts for the difference between the policies.
    _weighted("truncated by token, 2", Tis()),
    _weighted("truncated by token, 1.2", Tis(high=1.2)),
    _weighted("masked by token, 2", IcePop()),
    _weighted("masked by token, 1.2", IcePop(low=1 / 1.2, high=1.2)),
    _weighted("masked by token, 2, weight 1", IcePop(weighted=False)),
    _weighted("masked by token, k3 0.05", IcePop(criterion="k3", low=None, high=0.05)),
    _weighted("truncated by sequence, 2", Tis(reduction="mean")),
    _weighted("truncated by sequence, 1.2", Tis(reduction="mean", high=1.2)),
    _weighted("truncated product, 1.2", Tis(reduction="sum", high=1.2)),
    _weighted("masked by sequence, 2", IcePop(reduction="mean")),
    _weighted("masked by sequence, 1.2", IcePop(reduction="mean", low=1 / 1.2, high=1.2)),
    _weighted("masked product, 1.2", IcePop(reduction="sum", low=1 / 1.2, high=1.2)),
    _weighted("masked by the furthest token, 2", IcePop(reduction="max")),
    _weighted("masked by sequence, k1 0.05", IcePop(criterion="k1", low=None, high=0.05, reduction="mean")),
    _weighted("masked by sequence, k3 0.05", IcePop(criterion="k3", low=None, high=0.05, reduction="mean")),
    # Products of ratios.
    _case("product up to the token", "rloo", correction="prefix"),
    _case("product over the episode", "rloo", correction="trajectory", unbiased=True),
    _case("product over the episode, reinforce", "reward_to_go", **_TURNS, correction="trajectory", unbiased=True),
    _case("product up to each reward, reinforce", "reward_to_go", **_TURNS, correction="per_decision", unbiased=True),
    # As published, divided by the standard deviation and with the aggregation of each paper.
    _case("grpo, clip 0.2, 0.2", "grpo", **_BY_ROW, objective=Ppo(clip_high=0.2, dual_clip=None)),
    _case("gspo as published", "grpo", **_BY_ROW, objective=_PAPER),
    _case("dapo's clip, token_mean", "grpo", objective=Ppo(dual_clip=None), aggregation="token_mean"),
)
"""Cases measured off policy, sorted by their correction."""


def own_case(section: OwnKind) -> Case:
    """The case of a function of the user: its advantage with PPO's unclipped ratios, others with RLOO's advantage."""
    if isinstance(section, OwnFilter):
        return _case(section.kind, "rloo", pairing="own", filter=section, note="of two groups")
    if isinstance(section, OwnObjective):
        by_row = _BY_ROW if section.unit == "row" else {}
        return _case(section.kind, "rloo", objective=section, **by_row)
    assert isinstance(section, OwnAdvantage)
    critic: dict[str, Any] = {"critic": "true", **_TURNS} if section.has_critic else {}
    return Case(
        name=section.kind,
        rule=section.replace(whiten=False),
        objective=Ppo(clip_low=1.0, clip_high=LARGEST, dual_clip=None),
        placement=critic.pop("placement", section.reward_placement),
        **critic,
    )
