"""Every setting of the algorithm, with a value that must have an effect.

`TRIED` has a value for each setting that affects the update, and the other settings that it needs for that. `BUILT`
has a value for each other one that must change what is built. `IDLE_WITH` lists settings that are accepted although
they have no effect, with the reason. A new field must be in one of the tables, or tests/unit/learner/test_settings.py
fails.
"""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

from agentrl_jax.config import Config
from agentrl_jax.config.keys import sections_of

WITH_CRITIC = ("gae", "turn_gae", "bi_level_gae")
BASE: dict[str, Any] = {
    "tasks": [
        {"env": "SimpleSokoban", "groups": 2, "name": "a"},
        {"env": "SimpleSokoban", "groups": 2, "name": "b"},
    ],
    "prompt": {"max_turns": 2, "max_response_tokens": 5},
    "rollout": {"group_size": 4},
    "algo": {
        "preset": "starpo",
        "objective": {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": None},
        "minibatches": 2,
    },
    "optim": {"lr": 0.05, "max_grad_norm": 1e4},
    "train": {"iterations": 4},
}
"""A critic, several turns and members of a group, more than one step so that clipping occurs; else the defaults."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A value of a setting, and the values of other settings that it needs to have an effect, by dotted name."""

    name: str
    value: Any
    needs: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}={str(self.value).replace(' ', '')}"


def _algo(name: str, *values: Any, needs: dict[str, Any] | None = None) -> list[Setting]:
    return [Setting(f"algo.{name}", value, {f"algo.{key}": x for key, x in (needs or {}).items()}) for value in values]


def _moves(name: str, end: float, needs: dict[str, Any] | None = None) -> list[Setting]:
    return _algo(f"schedules.{name}", {"end": end, "iterations": 1}, needs=needs)


_LOSS = {"kl.kind": "fixed", "kl.estimator": "k2", "kl.coef": 1.0}
_HELD = {"kl.kind": "adaptive", "kl.estimator": "k2", "kl.coef": 1.0, "kl.target": 0.01, "kl.horizon": 100.0}
_GIGPO = {"advantage.kind": "gigpo", "advantage.whiten": True}
_WHITE = {"advantage.whiten": True}
_KEPT = {"filter.kind": "fraction", "filter.ratio": 0.75}
_TIS = {"mismatch.kind": "tis"}

TRIED: tuple[Setting, ...] = (
    *_algo(
        "advantage.kind", "turn_gae", "bi_level_gae", "reward_to_go", "grpo", "rloo", "remax", "gigpo", needs=_WHITE
    ),
    *_algo("advantage.normalize_by_std", False, needs={"advantage.kind": "grpo", **_WHITE}),
    *_algo("advantage.gamma", 0.5),
    *_algo("advantage.lam", 0.5),
    *_algo("advantage.turn_gamma", 0.3, needs={"advantage.kind": "bi_level_gae"}),
    *_algo("advantage.turn_gamma", 0.3, needs=_GIGPO),
    *_algo("advantage.step_weight", 0.3, needs=_GIGPO),
    *_algo("advantage.anchor", "observation", needs=_GIGPO),
    *_algo("advantage.history", 1, needs=_GIGPO),
    *_algo("advantage.history_power", 3.0, needs={**_GIGPO, "advantage.history": 1}),
    *_algo("advantage.spread_weighted", True),
    *_algo("advantage.length_weighted", True),
    *_algo("objective.kind", "gspo", "cispo", "policy_gradient"),
    *_algo("objective.clip_low", 0.001),
    *_algo("objective.clip_high", 0.01),
    *_algo("objective.dual_clip", 1.05),
    *_algo("advantage.value_clip", 0.001),
    *_algo("advantage.value_coef", 5.0),
    *_algo("entropy_coef", 1.0),
    *_algo("kl.kind", "fixed", needs=_LOSS),
    *_algo("kl.kind", "adaptive", needs=_HELD),
    *_algo("kl.estimator", "k2", "k3", "full", needs={"kl.kind": "fixed", "kl.coef": 1.0}),
    *_algo("kl.coef", 1.0, needs=_LOSS),
    *_algo("kl.apply_to", "reward", needs={"kl.kind": "fixed", "kl.coef": 1.0}),
    *_algo("kl.target", 0.01, needs=_HELD),
    *_algo("kl.horizon", 100.0, needs=_HELD),
    *_algo("aggregation", "token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"),
    *_algo("advantage.whiten", False),
    *_algo("advantage.reward_placement", "turn"),
    *_algo("advantage.bootstrap_truncated", True),
    *_algo("advantage.reward_normalization", "mean", "asym_clip"),
    *_algo("advantage.reward_grouping", "batch", needs={"advantage.reward_normalization": "mean_std"}),
    *_algo("overlong_buffer", 0.6),
    *_algo("overlong_penalty", 3.0, needs={"overlong_buffer": 0.6}),
    *_algo("filter.kind", "top_p", "top_p_softmax"),
    *_algo("filter.kind", "fraction", needs={"filter.ratio": 0.75}),
    *_algo("filter.kind", "min_p", needs={"filter.p": 0.3}),
    *_algo("filter.kind", "top_k", needs={"filter.k": 2}),
    *_algo("filter.ratio", 0.75, needs={"filter.kind": "fraction"}),
    *_algo("filter.p", 0.3, needs={"filter.kind": "min_p"}),
    *_algo("filter.k", 2, needs={"filter.kind": "top_k"}),
    *_algo("filter.by", "mean", "entropy_std", needs=_KEPT),
    *_algo("filter.largest", False, needs=_KEPT),
    *_algo("filter.include_zero", False, needs={"filter.kind": "top_p", "filter.p": 1.0}),
    *_algo("filter_group_size", 2),
    *_moves("clip_low", 0.0),
    *_moves("clip_high", 0.0),
    *_moves("entropy_coef", 1.0),
    *_moves("kl_coef", 0.0, needs=_LOSS),
    *_moves("value_coef", 5.0),
    *_moves("temperature", 0.5),
    *_moves("format_penalty", -2.0),
    *_algo("epochs", 2),
    *_algo("minibatches", 1, 4),
    *_algo("mismatch.kind", "tis", "icepop"),
    *_algo("mismatch.ratio_from", "rollout"),
    *_algo("mismatch.cap", 1.05, needs=_TIS),
    *_algo("mismatch.level", "sequence", needs=_TIS),
    Setting("rollout.group_size", 1),
    Setting("rollout.temperature", 0.5),
    Setting("rollout.context", "single_turn"),
    Setting("prompt.max_turns", 1),
    Setting("prompt.format_penalty", -1.0),
    Setting("model.critic", "separate"),
    Setting("optim.lr", 0.02),
    Setting("optim.critic_lr", 0.1),
    Setting("optim.warmup", 2),
    Setting("optim.weight_decay", 0.5),
    Setting("optim.decay", "all", {"optim.weight_decay": 0.5}),
    Setting("optim.max_grad_norm", 0.05),
    Setting("optim.b1", 0.5),
    Setting("optim.b2", 0.5),
    Setting("optim.schedule", "linear"),
    Setting("optim.schedule", "cosine"),
    Setting("train.iterations", 8, {"optim.schedule": "linear"}),
    Setting("train.critic_warmup", 1),
)


def _part(path: list[str]) -> Any:
    kind: Any = Config
    for name in path:
        kind = kind.model_fields[name].annotation
    return kind


def put(data: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of plain data with values set by dotted name; fields that another kind lacks are dropped."""
    data = copy.deepcopy(data)
    for name in sorted(values, key=lambda name: not name.endswith(".kind")):
        *path, last = name.split(".")
        node = data
        for step in path:
            node = node.setdefault(step, {})
        if last == "kind":
            kinds = {kind.model_fields["kind"].default: kind for kind in sections_of(_part(path))}
            for key in node.keys() - kinds[values[name]].model_fields.keys():
                del node[key]
        node[last] = values[name]
    return data


def with_settings(settings: tuple[Setting, ...], needs: tuple[Setting, ...] = (), without: str = "") -> dict[str, Any]:
    """Returns the base with what `needs` need, except the name `without`, and the values of `settings`, which win."""
    values = {name: value for setting in needs for name, value in setting.needs.items() if name != without}
    return put(BASE, values | {setting.name: setting.value for setting in settings})


_STAGES = {"algo.horizon.kind": "stepwise", "algo.horizon.turns": (1, 2), "algo.horizon.every": 1}
_ADAPTIVE = {"algo.horizon.kind": "adaptive", "algo.horizon.turns": (1, 2), "algo.horizon.every": 2}

BUILT: tuple[Setting, ...] = (
    *_algo("grad_accum_steps", 2),
    *_algo("length_buckets", 2),
    *_algo("packing", True),
    Setting("algo.horizon.kind", "adaptive", _STAGES),
    Setting("algo.horizon.turns", (1,), _STAGES),
    Setting("algo.horizon.every", 2, _STAGES),
    Setting("algo.horizon.min_gain", 0.5, _ADAPTIVE),
    Setting("algo.horizon.min_spread", 0.5, _ADAPTIVE),
    Setting("rollout.slots", 4),
    Setting("rollout.prefill_threshold", 0.5, {"rollout.slots": 4}),
    Setting("rollout.prefill_chunk", 3),
    Setting("rollout.prefill_rows", 3),
    Setting("rollout.context_tokens", 300),
    Setting("rollout.shared_noise", True),
    Setting("rollout.quantization", "weights"),
    Setting("rollout.quantization", "weights_and_cache"),
    Setting("prompt.style", "ragen"),
    Setting("prompt.encoder", "canonical"),
    Setting("prompt.think", True),
    Setting("prompt.forced_tag", False),
    Setting("prompt.stop_at_answer", True),
    Setting("prompt.separator", "|"),
    Setting("prompt.max_actions_per_turn", 2),
    Setting("prompt.max_actions", 7),
    Setting("prompt.max_response_tokens", 9),
    Setting("prompt.observation_tokens", 20),
    Setting("optim.offload", True),
    Setting("train.keep", 5),
    Setting("train.mutual_information_pairs", 8),
)
"""Settings that do not affect the update, with a value that changes what is built."""


IDLE_WITH: tuple[tuple[frozenset[str], Callable[[Setting], bool], str], ...] = (
    (
        frozenset(f"algo.objective.{name}" for name in ("kind", "clip_low", "clip_high", "dual_clip"))
        | {"algo.advantage.value_clip", "algo.schedules.clip_low", "algo.schedules.clip_high"},
        lambda other: other.name == "algo.minibatches" and other.value == 1,
        "one step an iteration, as some published presets have it: nothing has moved that could be clipped, and all "
        "objectives have the same gradient; said at the start of a run (start.notes), not refused",
    ),
    (
        frozenset({"algo.advantage.value_coef"}),
        lambda other: other.name == "model.critic",
        "a decoder of its own learns from the value loss alone, whose scale Adam divides out; the coefficient matters "
        "where optim.max_grad_norm binds, which it does not here",
    ),
    (
        frozenset({"model.critic"}),
        lambda other: (other.needs | {other.name: other.value}).get("algo.advantage.kind", "gae") not in WITH_CRITIC,
        "a rule without a critic: the variants of a comparison share their model and differ in their rules; said at "
        "the start of a run (start.notes), not refused",
    ),
    (
        frozenset({"algo.kl.target"}),
        lambda other: other.name == "rollout.temperature",
        "sharper distributions differ more: the divergence is beyond the default and the value that is tried by more "
        "than a fifth, where the adaptation is clipped",
    ),
    (
        frozenset({"algo.advantage.whiten"}),
        lambda other: (other.needs | {other.name: other.value}).get("algo.advantage.kind", "gae") not in WITH_CRITIC,
        "false, the value that is tried, is the default of estimators without a critic",
    ),
)
"""Settings that are accepted although they have no effect: their names, with which other settings, and why."""
