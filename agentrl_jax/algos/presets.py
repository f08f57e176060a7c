"""The three learning rules of RAGEN (arXiv 2504.20073) as values of `AlgoConfig`.

Values are those that the published code computes with (version 1 on its pinned verl), and the
comments name where each comes from. Two of them look different in its files: the KL coefficient in the script of plain
StarPO has no effect there, and its token mean is taken over micro-batches of one row, which is a mean over rows.
"""

from typing import Any

_STARPO: dict[str, Any] = {
    # PPO with a critic and GAE (paper section 3.2); gamma = lambda = 1 (base.yaml, algorithm).
    "advantage": "gae",
    "grpo_std": True,
    "gamma": 1.0,
    "lam": 1.0,
    "whiten": True,
    # Symmetric clip of plain PPO; dual clip and value clip are verl's defaults (clip_ratio_c, cliprange_value).
    "clip_low": 0.2,
    "clip_high": 0.2,
    "dual_clip": 3.0,
    "value_clip": 0.5,
    # base.yaml, actor.entropy_coeff.
    "entropy_coef": 0.001,
    "kl_kind": "k1",
    "kl_coef": 0.0,
    "kl_where": "none",
    # Mean over the tokens of a trajectory, then over trajectories (paper section 3.2).
    "aggregation": "seq_mean_token_mean",
    "filter_ratio": 1.0,
    "filter_kind": "std",
    # 8 groups of 16 in minibatches of 32 rows, one pass (base.yaml, ppo_mini_batch_size, ppo_epochs).
    "epochs": 1,
    "minibatches": 4,
}

PRESETS: dict[str, dict[str, Any]] = {
    "starpo": _STARPO,
    # The return relative to its group, no critic; the KL loss (kl_loss_type kl, coefficient 0.001) is active here.
    "starpo_grpo": _STARPO
    | {"advantage": "grpo", "whiten": False, "kl_kind": "k1", "kl_coef": 0.001, "kl_where": "loss"},
    # Paper section 4.2: a quarter of the prompts, clip-higher, no KL. What is left is one minibatch of 32 rows.
    "starpo_s": _STARPO | {"clip_high": 0.28, "filter_ratio": 0.25, "minibatches": 1},
}
"""Preset name -> {field of AlgoConfig: value}."""
