"""Learning rules by the names that users of the papers expect, as values of `AlgoConfig` with their sources.

Values are those that the published code computes with, where it differs from its own files: the KL coefficient in
RAGEN's script of plain StarPO has no effect there, and a token mean over micro-batches of one row is a mean over rows.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Preset = Literal[
    "starpo",
    "starpo_grpo",
    "starpo_s",
    "starpo_s2",
    "ppo",
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "remax",
    "gigpo",
    "hgpo",
    "dapo",
    "gspo",
    "cispo",
    "scaling_inter",
]


@dataclasses.dataclass(frozen=True)
class PresetRule:
    """A preset.

    Attributes:
        about: one line.
        values: field of `AlgoConfig` -> value; what is not here has the field's default.
        sources: where each of these values comes from.
    """

    about: str
    values: Mapping[str, Any]
    sources: Mapping[str, str]


def _rule(about: str, base: PresetRule | None = None, **fields: tuple[Any, str]) -> PresetRule:
    values = {name: value for name, (value, _) in fields.items()}
    sources = {name: source for name, (_, source) in fields.items()}
    if base is None:
        return PresetRule(about, values, sources)
    return PresetRule(about, {**base.values, **values}, {**base.sources, **sources})


def _without(base: PresetRule, *names: str) -> PresetRule:
    """A rule that leaves some fields at their defaults, because nothing of it reads them."""
    kept = [name for name in base.values if name not in names]
    return PresetRule(base.about, {n: base.values[n] for n in kept}, {n: base.sources[n] for n in kept})


_BASE = "RAGEN v1, config/base.yaml"
_VERL = "verl's default, pinned by RAGEN v1"
_AGENTGYM = "AgentGym-RL, ppo_trainer.yaml"
_PAPER = "arXiv 2504.20073"
_V2 = "RAGEN v2, scripts"
_STEPS = "8 groups of 16 in minibatches of 32 rows (RAGEN v1)"

_STARPO = _rule(
    "PPO with a critic over whole trajectories (StarPO)",
    advantage=("gae", f"{_PAPER} section 3.2"),
    gamma=(1.0, _BASE),
    lam=(1.0, _BASE),
    whiten=(True, _VERL),
    clip_low=(0.2, _BASE),
    clip_high=(0.2, "plain PPO; RAGEN's 0.28 is StarPO-S's"),
    dual_clip=(3.0, f"{_VERL} (clip_ratio_c)"),
    value_clip=(0.5, f"{_VERL} (cliprange_value)"),
    entropy_coef=(0.001, _BASE),
    kl_where=("none", "use_kl_loss and use_kl_in_reward are off in RAGEN v1 with its pinned verl"),
    kl_coef=(0.0, "as kl_where"),
    aggregation=("seq_mean_token_mean", f"{_PAPER} section 3.2; verl's token mean at one row a micro-batch"),
    filter_rule=("fraction", _BASE),
    filter_ratio=(1.0, "no filter in plain StarPO"),
    epochs=(1, _VERL),
    minibatches=(4, _STEPS),
)
_UNWHITENED = (False, "the returns of a group are compared instead")
_GRPO = _rule(
    "Return relative to its group, divided by the standard deviation; k3 divergence in the loss",
    advantage=("grpo", "Shao et al. 2024, section 4.1.2"),
    grpo_std=(True, "Shao et al. 2024, section 4.1.2"),
    whiten=_UNWHITENED,
    clip_low=(0.2, _AGENTGYM),
    clip_high=(0.2, _AGENTGYM),
    dual_clip=(None, "AgentGym-RL's loss has none"),
    entropy_coef=(0.001, _AGENTGYM),
    kl_where=("loss", "AgentGym-RL, all ten scripts"),
    kl_kind=("k3", "AgentGym-RL, all ten scripts (low_var_kl)"),
    kl_coef=(0.001, "AgentGym-RL, all ten scripts"),
    aggregation=("seq_mean_token_mean", "Shao et al. 2024, eq. 3"),
    filter_ratio=(1.0, "no filter"),
    epochs=(1, _AGENTGYM),
    minibatches=(4, _STEPS),
)
_PLAIN = _rule(
    "",
    _without(_GRPO, "kl_kind"),
    kl_where=("none", "not part of the estimator"),
    kl_coef=(0.0, "not part of the estimator"),
)
_NO_BONUS = "no bonus in the paper's objective"
_REINFORCE = _rule(
    "",
    _without(_PLAIN, "clip_low", "clip_high", "grpo_std"),
    objective=("policy_gradient", "REINFORCE: no ratio and no clip"),
    dual_clip=(None, "REINFORCE: no ratio and no clip"),
    entropy_coef=(0.0, _NO_BONUS),
    kl_where=("none", "ours; the papers put k1 into the return, which estimators of whole returns do not see here"),
    kl_coef=(0.0, "as kl_where"),
    minibatches=(1, "one step a batch: without a ratio a second one would be off policy"),
)

_HU = "Hu et al. 2025 (arXiv 2501.03262v1)"
_REINFORCE_PP: dict[str, tuple[Any, str]] = {
    "clip_low": (0.2, f"{_HU}, table of hyper-parameters"),
    "clip_high": (0.2, f"{_HU}, table of hyper-parameters"),
    "dual_clip": (None, f"{_HU}: not part of it"),
    "entropy_coef": (0.0, f"{_HU}: {_NO_BONUS}"),
    "kl_coef": (0.01, f"{_HU}, table of hyper-parameters: general domains (0.001 for mathematics)"),
}

PRESETS: dict[str, PresetRule] = {
    "starpo": _STARPO,
    "starpo_grpo": _rule(
        "StarPO without a critic: the return relative to its group",
        _without(_STARPO, "gamma", "lam", "value_clip"),
        advantage=("grpo", "RAGEN v1, GRPO variant"),
        grpo_std=(True, "RAGEN v1, reward_normalization mean_std"),
        whiten=_UNWHITENED,
        kl_kind=("k1", "RAGEN v1, kl_loss_type kl; its gradient is noise"),
        kl_coef=(0.001, "RAGEN v1, GRPO variant"),
        kl_where=("loss", "RAGEN v1, GRPO variant"),
    ),
    "starpo_s": _rule(
        "StarPO, stabilised: uncertain prompts only, clip-higher, no divergence",
        _STARPO,
        clip_high=(0.28, f"{_PAPER} section 4.2"),
        filter_ratio=(0.25, f"{_PAPER} section 4.2"),
        filter_kind=("std", _BASE),
        minibatches=(1, "what the filter leaves is one minibatch of 32 rows"),
    ),
    "starpo_s2": _rule(
        "RAGEN-2: prompts that make up 0.9 of all spread of returns (SNR-aware filtering)",
        _STARPO,
        clip_high=(0.28, f"{_V2} (kept from v1)"),
        aggregation=("token_mean", f"{_V2}: PPO"),
        filter_rule=("top_p", "arXiv 2604.06268; RAGEN v2, top_p linear; takes no group without spread"),
        filter_value=(0.9, "RAGEN v2, recommended"),
        filter_kind=("std", _BASE),
        minibatches=(4, "minibatches of 32 of up to 128 rows (RAGEN v2); here always four, of what is kept"),
    ),
    "ppo": _rule(
        "PPO with a token-level critic and a k1 penalty in the reward (AgentGym-RL's defaults)",
        _STARPO,
        dual_clip=(None, "AgentGym-RL's loss has none"),
        kl_where=("reward", f"{_AGENTGYM}: kl_penalty is active when use_kl_loss is off"),
        kl_kind=("k1", f"{_AGENTGYM} (kl_penalty kl)"),
        kl_coef=(0.001, f"{_AGENTGYM} (kl_ctrl fixed)"),
    ),
    "grpo": _GRPO,
    "dr_grpo": _rule(
        "GRPO without the divisions by standard deviation and length",
        _PLAIN,
        grpo_std=(False, "Liu et al. 2025 (arXiv 2503.20783)"),
        aggregation=("seq_mean_token_sum_norm", "Liu et al. 2025 (arXiv 2503.20783)"),
        clip_low=(0.2, "Liu et al. 2025: PPO's clip; its code's cliprange"),
        clip_high=(0.2, "Liu et al. 2025: PPO's clip; its code's cliprange"),
        dual_clip=(None, "Liu et al. 2025: not part of it"),
        entropy_coef=(0.0, f"Liu et al. 2025: {_NO_BONUS}"),
        kl_where=("none", "Liu et al. 2025: beta 0"),
        kl_coef=(0.0, "Liu et al. 2025: beta 0"),
    ),
    "rloo": _rule(
        "REINFORCE with a leave-one-out baseline, no division",
        _REINFORCE,
        advantage=("rloo", "Ahmadian et al. 2024 (arXiv 2402.14740)"),
        aggregation=("seq_mean_token_sum_norm", "Ahmadian et al. 2024: a sum over the reply, scaled by a constant"),
    ),
    "reinforce_pp": _rule(
        "PPO's clip without a critic: advantages whitened over the batch, a k1 penalty in the reward",
        _without(_PLAIN, "grpo_std"),
        advantage=("reward_to_go", "Hu et al. 2025 (arXiv 2501.03262)"),
        whiten=(True, "Hu et al. 2025 (arXiv 2501.03262)"),
        aggregation=("token_mean", "Hu et al. 2025; verl"),
        kl_where=("reward", "Hu et al. 2025 (arXiv 2501.03262)"),
        kl_kind=("k1", "Hu et al. 2025 (arXiv 2501.03262)"),
        **_REINFORCE_PP,
    ),
    "reinforce_pp_baseline": _rule(
        "REINFORCE++ with the group's mean taken off first",
        _PLAIN,
        grpo_std=(False, "Hu et al. 2025 (arXiv 2501.03262), with baseline"),
        whiten=(True, "Hu et al. 2025 (arXiv 2501.03262), with baseline"),
        aggregation=("token_mean", "Hu et al. 2025; verl"),
        kl_where=("loss", "Hu et al. 2025 (arXiv 2501.03262), with baseline"),
        kl_kind=("k2", "Hu et al. 2025 (arXiv 2501.03262), with baseline"),
        **_REINFORCE_PP | {"kl_coef": (0.001, f"ours: {_AGENTGYM} (kl_loss_coef)")},
    ),
    "remax": _rule(
        "REINFORCE with the return of one greedy episode a group as baseline",
        _REINFORCE,
        advantage=("remax", "Li et al. 2024 (arXiv 2310.10505)"),
        aggregation=("seq_mean_token_sum_norm", "Li et al. 2024: a sum over the reply, scaled by a constant"),
    ),
    "gigpo": _rule(
        "GRPO with turns of a group compared in the same state",
        _GRPO,
        advantage=("gigpo", "Feng et al. 2025 (arXiv 2505.10978)"),
        grpo_std=(True, "Feng et al. 2025: std or 1; verl-agent's scripts take 1 (mean_norm)"),
        turn_gamma=(0.95, "verl-agent, scripts (gamma 0.95)"),
        step_weight=(1.0, "verl-agent, scripts (step_advantage_w)"),
        anchor=("state", "exact states; observation is what verl-agent compares"),
        kl_coef=(0.01, "verl-agent, scripts"),
    ),
    "dapo": _rule(
        "GRPO with clip-higher, a mean over tokens, no divergence, and groups without spread drawn anew",
        _PLAIN,
        clip_high=(0.28, "Yu et al. 2025, section 3.1"),
        dual_clip=(10.0, "DAPO's recipe in verl (clip_ratio_c); the paper has none"),
        entropy_coef=(0.0, "Yu et al. 2025"),
        aggregation=("token_mean", "Yu et al. 2025, section 3.3"),
        filter_rule=("top_p", "what max_rollouts leaves without spread (Yu et al. 2025, section 3.2)"),
        filter_value=(1.0, "all groups that vary"),
        filter_zero=(False, "Yu et al. 2025, section 3.2"),
        max_rollouts=(
            10,
            "dynamic sampling (Yu et al. 2025, section 3.2); DAPO's recipe in verl (max_num_gen_batches)",
        ),
        minibatches=(16, "Yu et al. 2025, section 4.1: 512 prompts x 16 in minibatches of 512, 16 updates a rollout"),
        overlong_buffer=(0.2, "Yu et al. 2025, section 4.1: the last 4,096 of 20,480 tokens"),
        overlong_penalty=(1.0, "Yu et al. 2025, section 3.4, eq. 13"),
    ),
    "gspo": _rule(
        "GRPO with one importance ratio a trajectory",
        _PLAIN,
        objective=("gspo", "Zheng et al. 2025 (arXiv 2507.18071)"),
        clip_low=(3e-4, "Zheng et al. 2025 (arXiv 2507.18071), experiments"),
        clip_high=(4e-4, "Zheng et al. 2025 (arXiv 2507.18071), experiments"),
        entropy_coef=(0.0, "Zheng et al. 2025"),
    ),
    "cispo": _rule(
        "Clipped importance weights instead of a clipped loss",
        _PLAIN,
        objective=("cispo", "MiniMax 2025 (arXiv 2506.13585)"),
        clip_low=(1.0, "MiniMax 2025: no lower bound"),
        clip_high=(0.28, "the upper bound of DAPO; MiniMax gives no figure"),
        entropy_coef=(0.0, "MiniMax 2025"),
        aggregation=("token_mean", "MiniMax 2025 (arXiv 2506.13585)"),
    ),
    "scaling_inter": _rule(
        "GRPO with a horizon that grows to 10 turns (ScalingInter-RL); needs prompt.max_turns 10",
        _GRPO,
        horizon=("stepwise", "arXiv 2509.08755, section 3.3"),
        horizons=((5, 8, 10), "AgentGym-RL, script of SearchQA"),
        horizon_every=(100, "AgentGym-RL, steps_scaling_inter"),
    ),
}
"""Presets by name."""

PRESETS["hgpo"] = _rule(
    "GiGPO with turns told apart by what came before, too",
    PRESETS["gigpo"],
    anchor_history=(2, "He et al. 2026 (arXiv 2602.22817): K 2 and 4 are reported"),
    history_power=(1.0, "He et al. 2026 (arXiv 2602.22817): alpha; the value is ours"),
)
