"""What a stored configuration of an earlier version means today: a function per change, applied in their order.

`format` in a config.yaml is the number of changes that came before it; files without it have 0, and each of the first
two functions leaves a file alone that was written after its change. A function is never changed once a version with it
has been used: a further change of a key gets a function of its own, which fills in what the older code did.
"""

from collections.abc import Callable, Mapping
from typing import Any

Data = dict[str, Any]

_OF_ADVANTAGE = {name: name for name in ("whiten", "spread_weighted", "length_weighted")}
_OF_REWARDS = {
    "gamma": "gamma",
    "reward_placement": "reward_placement",
    "reward_normalization": "reward_normalisation",
    "reward_grouping": "reward_grouping",
}
_OF_CRITIC = _OF_REWARDS | {"lam": "lam", "value_coef": "value_coef", "value_clip": "value_clip"}
_ADVANTAGES = {
    "gae": _OF_CRITIC,
    "turn_gae": _OF_CRITIC,
    "bi_level_gae": _OF_CRITIC | {"turn_gamma": "turn_gamma"},
    "reward_to_go": _OF_REWARDS,
    "grpo": {"normalize_by_std": "grpo_std"},
    "rloo": {},
    "remax": {},
    "gigpo": {
        **{name: name for name in ("turn_gamma", "step_weight", "anchor", "history_power")},
        "normalize_by_std": "grpo_std",
        "history": "anchor_history",
    },
}
"""By the kind of advantage, the keys of today and those of the flat rule that they were."""
_CLIP = {"clip_low": "clip_low", "clip_high": "clip_high"}
_MISMATCHES = {"parallel": "none", "strict": "replay", "truncated": "tis", "masked": "icepop"}
_SAME = ["preset", "aggregation", "entropy_coef", "epochs", "minibatches", "schedules", "logprob_gap_limit"]
_RENAMED = {
    "filter_members": "filter_group_size",
    "accumulation": "grad_accum_steps",
    "row_lengths": "length_buckets",
    "max_rollouts": "dynamic_sampling",
}


def _picked(flat: Mapping[str, Any], names: Mapping[str, str], **first: Any) -> Data:
    return first | {new: flat[old] for new, old in names.items()}


def _rule_in_sections(data: Data) -> Data:
    """Keys had other names, and the learning rule was one flat list, in which a kind read some and ignored others."""
    flat = data["algo"]
    if not isinstance(flat.get("advantage"), str):
        return data
    data = {name: dict(section) if isinstance(section, dict) else section for name, section in data.items()}
    for section, old, new in (
        ("prompt", "reply_tokens", "max_response_tokens"),
        ("model", "width", "embed_dim"),
        ("rollout", "members", "group_size"),
        ("rollout", "wait_share", "prefill_threshold"),
    ):
        data[section][new] = data[section].pop(old)
    if "lam" not in _ADVANTAGES[flat["advantage"]]:
        data["optim"]["critic_lr"] = None
    return data | {"algo": _rule(flat)}


def _rule(flat: Data) -> Data:
    kind, objective = flat["advantage"], flat["objective"].replace("clip", "ppo")
    names = _OF_ADVANTAGE | _ADVANTAGES[kind]
    rule = {name: flat[name] for name in _SAME} | {new: flat[old] for old, new in _RENAMED.items()}
    rule["advantage"] = _picked(flat, names, kind=kind)
    if "lam" in names:
        rule["advantage"]["bootstrap_truncated"] = False
    if kind == "gigpo" and not flat["anchor_history"]:
        rule["advantage"]["history_power"] = 1.0
    bounds = _CLIP | ({"dual_clip": "dual_clip"} if objective == "ppo" else {})
    rule["objective"] = _picked(flat, bounds, kind=objective)
    rule["kl"] = {"kind": "none"}
    if flat["kl_where"] != "none":
        rule["kl"] = {"kind": "fixed", "coef": flat["kl_coef"], "apply_to": flat["kl_where"]}
        rule["kl"] |= {"estimator": flat["kl_kind"]}
        if flat["kl_target"] is not None:
            rule["kl"] |= {"kind": "adaptive", "target": flat["kl_target"], "horizon": flat["kl_horizon"]}
    rule["filter"] = _filter(flat)
    rule["mismatch"] = {"kind": _MISMATCHES[flat["logprobs"]]}
    if flat["logprobs"] == "parallel":
        rule["mismatch"]["ratio_from"] = "learner"
    elif flat["logprobs"] != "strict":
        rule["mismatch"] |= {"cap": flat["importance_cap"], "level": flat["importance_level"]}
    rule["horizon"] = {"kind": flat["horizon"]}
    if flat["horizon"] != "fixed":
        rule["horizon"] |= {"turns": flat["horizons"], "every": flat["horizon_every"]}
    if flat["horizon"] == "adaptive":
        rule["horizon"] |= {"min_gain": flat["horizon_gain"], "min_spread": flat["horizon_spread"]}
    return rule


def _filter(flat: Data) -> Data:
    kind, ranked = flat["filter_rule"], {"by": flat["filter_kind"], "largest": flat["filter_largest"]}
    if kind == "fraction":
        all_groups = flat["filter_ratio"] == 1
        return {"kind": "none"} if all_groups else {"kind": kind, "ratio": flat["filter_ratio"], **ranked}
    number = {"k": int(flat["filter_value"])} if kind == "top_k" else {"p": flat["filter_value"]}
    if kind == "top_p":
        del ranked["largest"]
    return {"kind": kind, **ranked, **number, "include_zero": flat["filter_zero"]}


_FIRST_NEW: Data = {
    "mesh": {"sequence": 1},
    "hosts": {"coordinator": "", "count": 0, "index": None},
    "prompt": {"observation_tokens": 0},
    "model": {"attention": "auto"},
    "rollout": {"prefill_rows": 0, "quantization": "none"},
    "algo": {"packing": False, "overlong_buffer": 0.0, "overlong_penalty": 1.0},
    "optim": {"decay": "all", "offload": False},
    "imitation": {"schedule": "constant", "random_start": 0, "images": 0, "dagger_rounds": 0, "dagger_levels": 0},
    "train": {"critic_warmup": 0, "recorded_mb": 1024},
}


def _first_new_keys(data: Data) -> Data:
    """Hosts, packing, quantization and others came, with settings for what was done before."""
    filled = {name: {**new, **data.get(name, {})} for name, new in _FIRST_NEW.items()}
    if not filled["optim"]["weight_decay"] and "decay" not in data["optim"]:
        filled["optim"]["decay"] = "matrices"  # nothing decays
    tasks = [{"validation": "", **task} for task in data["tasks"]]
    return {**data, **filled, "tasks": tasks}


def _start_and_kept_checkpoints(data: Data) -> Data:
    """Runs could start from another run's policy, and keep checkpoints for good."""
    start = {"run": "", "checkpoint": "last", "optimizer": False}
    return {**data, "start": start, "train": {"keep_every": 0, **data["train"]}}


def _sampling_and_loggers(data: Data) -> Data:
    """Levels could be chosen from a fixed set, and rows go elsewhere than to TensorBoard."""
    tasks = [{"sampling": {"kind": "draws"}, **task} for task in data["tasks"]]
    return {**data, "tasks": tasks, "train": {"loggers": ["tensorboard"], **data["train"]}}


def _processes(data: Data) -> Data:
    """Python environments could be tasks, in processes of their own too."""
    return {**data, "env": {"processes": 0, **data["env"]}}


def _agent(data: Data) -> Data:
    """A context could have the last turns only; what a policy reads is now said by its agent."""
    rollout = dict(data["rollout"])
    return {**data, "agent": {"kind": rollout.pop("context")}, "rollout": rollout}


def _stages(data: Data) -> Data:
    """Checkpoints count the steps of a stage, see `train.progress`; the configuration stayed as it was."""
    return data


def _stages_of_data(data: Data) -> Data:
    """A run could have stages that learn from data; before, it had imitation and reinforcement learning."""
    return {**data, "stages": []}


def _distillation(data: Data) -> Data:
    """A teacher could read another prompt, and demonstrations plans in theirs."""
    algo = {**data["algo"], "distillation": {"kind": "none"}}
    return {**data, "algo": algo, "imitation": {"hinted": 0.0, **data["imitation"]}}


_SCHEDULED = {
    "clip_low": "objective.clip_low",
    "clip_high": "objective.clip_high",
    "kl_coef": "kl.coef",
    "value_coef": "advantage.value_coef",
    "temperature": "rollout.temperature",
    "format_penalty": "prompt.format_penalty",
    "distill_coef": "distillation.coef",
    "distill_rl_coef": "distillation.rl_coef",
}


def by_key(schedules: Mapping[str, Any]) -> Data:
    """Schedules by the keys of today, whichever version wrote them."""
    return {_SCHEDULED.get(name, name): value for name, value in schedules.items()}


def _scheduled_keys(data: Data) -> Data:
    """Schedules had names, two of which could be the same once functions of users have numbers; now they have keys."""
    return {**data, "algo": {**data["algo"], "schedules": by_key(data["algo"]["schedules"])}}


def _kinds_of_optimizers(data: Data) -> Data:
    """The optimizer was AdamW, for all parameters alike, and a schedule of its rates ended with the run, at 0."""
    optim = {"kind": "adamw", "warmup_share": 0.0, "groups": [], **data["optim"]}
    optim["schedule"] = scheduled_rates(optim["schedule"])
    return {**data, "optim": optim}


def scheduled_rates(schedule: Any) -> Any:
    """A schedule of learning rates as it is today, whichever version wrote it."""
    if not isinstance(schedule, str):
        return schedule
    return {"kind": schedule} | ({} if schedule == "constant" else {"end_factor": 0.0, "iterations": 0})


def _bounds_of_mismatch(data: Data) -> Data:
    """Weights from rollout to learner had one cap, whose inverse was the lower bound of icepop, and levels."""
    mismatch = dict(data["algo"]["mismatch"])
    if mismatch["kind"] in ("tis", "icepop"):
        cap, level = mismatch.pop("cap"), mismatch.pop("level")
        mismatch |= {"high": cap, "reduction": "mean" if level == "sequence" else "token", "low": 0.0}
        if mismatch["kind"] == "icepop":
            mismatch |= {"low": 1.0 / cap, "criterion": "ratio", "weighted": True}
    return {**data, "algo": {**data["algo"], "mismatch": mismatch}}


def _still_reference(data: Data) -> Data:
    """The reference of the KL divergence did not move."""
    kl = data["algo"]["kl"]
    still = {} if kl["kind"] == "none" else {"sync_every": 0, "sync_mix": 1.0}
    return {**data, "algo": {**data["algo"], "kl": {**still, **kl}}}


def _best_and_stop(data: Data) -> Data:
    """The best checkpoint was that with the highest success in validation, and no success ended a run."""
    best, stop = {"metric": "validation/success", "mode": "max"}, {"at": None, "alpha": 0.05, "patience": 0}
    return {**data, "train": {"best": best, "stop": stop, **data["train"]}}


def _rewards_of_the_environment(data: Data) -> Data:
    """Rewards had no parts, truncated episodes were trained on, tasks had equal weights; there were no own metrics."""
    algo = {"rewards": {}, "normalize_rewards": "none", "skip_truncated": [], **data["algo"]}
    algo = {"balance_tasks": False, "whiten_by": "batch", **algo}
    tasks = [{"loss_weight": 1.0, **task} for task in data["tasks"]]
    return {**data, "algo": algo, "tasks": tasks, "train": {"metrics": {}, **data["train"]}}


def _tokens_averages_and_turns(data: Data) -> Data:
    """All tokens were treated alike, the entropy bonus had a fixed weight, policies had no average, and tasks one
    temperature and one number of turns; the best checkpoint was not evaluated at the end."""
    algo = {"tokens": {"kind": "all"}, "entropy_target": None, "entropy_step": 0.005, **data["algo"]}
    tasks = [{"temperature": None, "max_turns": None, **task} for task in data["tasks"]]
    train = {**data["train"], "best": {"evaluate": False, **data["train"]["best"]}}
    return {**data, "algo": algo, "optim": {"average_rate": 0.0, **data["optim"]}, "tasks": tasks, "train": train}


MIGRATIONS: tuple[Callable[[Data], Data], ...] = (
    _rule_in_sections,
    _first_new_keys,
    _start_and_kept_checkpoints,
    _sampling_and_loggers,
    _processes,
    _agent,
    _stages,
    _stages_of_data,
    _distillation,
    _scheduled_keys,
    _kinds_of_optimizers,
    _bounds_of_mismatch,
    _still_reference,
    _best_and_stop,
    _rewards_of_the_environment,
    _tokens_averages_and_turns,
)
FORMAT = len(MIGRATIONS)
"""The format that this version writes."""


def migrated(data: Data, number: int) -> Data:
    """The content of a config.yaml of format `number`, with the keys and the meaning of today.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: it is no configuration of that format.
    """
    for migration in MIGRATIONS[number:]:
        data = migration(data)
    return data
