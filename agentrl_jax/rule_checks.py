"""Checks of the learning rule: combinations that make no sense, and numbers that nothing would read."""

from collections.abc import Callable
from typing import Any

from agentrl_jax.algos.estimate import PER_EPISODE, PER_GROUP, WITH_CRITIC
from agentrl_jax.config_tree import Config
from agentrl_jax.rule_tree import AlgoConfig

_RANGES = {"clip_low": (0.0, 1.0), "format_penalty": (float("-inf"), 0.0), "temperature": (1e-6, float("inf"))}
"""Where a value that moves has to end; the others anywhere from 0."""


def check_rule(config: Config, need: Callable[[bool, str], None]) -> None:
    """Checks `config.algo` and what it asks of the rest.

    Args:
        config: the run.
        need: takes whether something holds, and what to say if it does not.
    """
    algo, members = config.algo, config.rollout.members
    episodes = members * sum(task.groups for task in config.tasks)
    need(
        algo.kl_target is None or episodes < 5 * algo.kl_horizon,
        f"algo.kl_horizon is {algo.kl_horizon:g} for {episodes} episodes an iteration, so that one step could turn the "
        f"coefficient negative; use more than {episodes / 5:g}",
    )
    need(
        algo.filter_rule == "fraction" or config.train.max_bad_updates > 1,
        f"algo.filter_rule {algo.filter_rule} may keep nothing, which counts as a skipped update, and "
        "train.max_bad_updates is 1, so that the run would stop; raise it",
    )
    _check_estimator(algo, members, need)
    _check_single_turn(config, need)
    _check_filter(algo, members, need)
    _check_loss(config, need)
    _check_movement(config, need)


def _unread(algo: AlgoConfig, names: tuple[str, ...], why: str, need: Callable[[bool, str], None]) -> None:
    """Refuses values that differ from their defaults though nothing reads them."""
    for name in names:
        value, default = getattr(algo, name), getattr(AlgoConfig, name)
        need(
            value == default,
            f"algo.{name} is {_shown(value)}, which {why} does not read; leave it at {_shown(default)}",
        )


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _check_estimator(algo: AlgoConfig, members: int, need: Callable[[bool, str], None]) -> None:
    name = algo.advantage
    this = f"algo.advantage {name}"
    need(
        name not in PER_GROUP or members > 1,
        f"{this} compares the members of a group, but rollout.members is 1; use at least 2 members or algo.advantage "
        "gae",
    )
    need(
        name not in PER_EPISODE or algo.reward_placement == "episode",
        f"algo.reward_placement is turn, but {this} compares the returns of whole episodes; use episode, or "
        "algo.advantage gae",
    )
    need(
        algo.reward_normalisation == "identity" or (name not in PER_EPISODE and algo.reward_placement == "episode"),
        f"algo.reward_normalisation is {algo.reward_normalisation}, which makes one number of an episode's return, but "
        f"algo.advantage is {name} and algo.reward_placement {algo.reward_placement}; use gae and episode, or "
        "algo.reward_normalisation identity",
    )
    need(
        algo.reward_normalisation == "identity" or algo.reward_grouping != "state" or members > 1,
        f"algo.reward_normalisation is {algo.reward_normalisation}, which compares the members of a group, but "
        "rollout.members is 1; use at least 2 members, or identity",
    )
    if algo.reward_normalisation == "identity":
        _unread(algo, ("reward_grouping",), "algo.reward_normalisation identity", need)
    if algo.overlong_buffer == 0.0:
        _unread(algo, ("overlong_penalty",), "algo.overlong_buffer 0", need)
    need(
        algo.overlong_buffer == 0.0 or algo.overlong_penalty > 0.0,
        f"algo.overlong_buffer is {algo.overlong_buffer:g}, but algo.overlong_penalty is 0, so that it costs nothing; "
        "set algo.overlong_penalty above 0, or algo.overlong_buffer to 0",
    )
    if name in PER_EPISODE:
        _unread(algo, ("gamma",), this, need)
    if name not in WITH_CRITIC:
        _unread(algo, ("lam", "value_coef", "value_clip"), this, need)
    need(
        not algo.bootstrap_truncated or name in WITH_CRITIC,
        f"algo.bootstrap_truncated is true, but {this} has no critic whose value could stand for what was cut off; use "
        "false, or algo.advantage gae",
    )
    if name not in ("grpo", "gigpo"):
        _unread(algo, ("grpo_std",), this, need)
    if name not in ("bi_level_gae", "gigpo"):
        _unread(algo, ("turn_gamma",), this, need)
    if name != "gigpo":
        _unread(algo, ("step_weight", "anchor", "anchor_history", "history_power"), this, need)
    elif algo.anchor_history == 0:
        _unread(algo, ("history_power",), "algo.anchor_history 0", need)
    need(
        not algo.spread_weighted or (members > 1 and algo.filter_members != 1),
        "algo.spread_weighted is true, but groups of one have no spread; use at least 2 rollout.members (and "
        "algo.filter_members), or false",
    )


def _check_single_turn(config: Config, need: Callable[[bool, str], None]) -> None:
    """Refuses what tells the turns of an episode apart where there is one."""
    if config.prompt.max_turns > 1:
        return
    algo = config.algo
    _unread(algo, ("reward_placement", "turn_gamma", "anchor_history"), "prompt.max_turns 1", need)
    need(
        algo.advantage != "bi_level_gae",
        "algo.advantage is bi_level_gae, which is gae where prompt.max_turns is 1; use gae, or more turns",
    )
    need(
        config.rollout.context == "full",
        f"rollout.context is {config.rollout.context}, but prompt.max_turns is 1, so that nothing is left out of the "
        "context; use full, or more turns",
    )


def _check_filter(algo: AlgoConfig, members: int, need: Callable[[bool, str], None]) -> None:
    filters = algo.filter_rule != "fraction" or algo.filter_ratio < 1.0
    if not filters:
        _unread(algo, ("filter_kind", "filter_largest"), "algo.filter_ratio 1", need)
    need(
        not filters or members > 1 or algo.filter_kind not in ("std", "entropy_std"),
        f"algo.filter_ratio is {algo.filter_ratio:g} and algo.filter_kind {algo.filter_kind}, which ranks groups by "
        "the spread of their members, but rollout.members is 1; use at least 2 members or algo.filter_ratio 1",
    )
    if algo.filter_rule == "fraction":
        _unread(algo, ("filter_value", "filter_zero"), "algo.filter_rule fraction", need)
    else:
        need(
            algo.filter_ratio == 1.0,
            f"algo.filter_ratio is {algo.filter_ratio:g}, which algo.filter_rule {algo.filter_rule} does not read; use "
            "1, or algo.filter_rule fraction",
        )
    if algo.filter_rule == "top_p" and algo.filter_value < 1.0:
        # It adds up scores above 0 alone.
        _unread(algo, ("filter_zero",), "algo.filter_rule top_p with algo.filter_value below 1", need)
    need(
        algo.filter_rule not in ("top_p", "min_p") or algo.filter_kind != "mean",
        f"algo.filter_rule is {algo.filter_rule}, which needs scores of at least 0, but algo.filter_kind is mean, and "
        "mean returns may be negative; use top_p_softmax, top_k or fraction",
    )
    need(
        algo.filter_rule != "top_k" or (algo.filter_value >= 1.0 and algo.filter_value.is_integer()),
        f"algo.filter_value is {algo.filter_value:g}, but algo.filter_rule top_k keeps that many groups; use a whole "
        "number from 1",
    )
    need(
        algo.filter_rule != "min_p" or algo.filter_value <= 1.0,
        f"algo.filter_value is {algo.filter_value:g}, but algo.filter_rule min_p keeps scores of at least that share "
        "of the best; use at most 1",
    )
    need(
        algo.filter_rule != "top_p" or algo.filter_largest,
        "algo.filter_rule top_p covers a sum from the largest score down, but algo.filter_largest is false; use true, "
        "or top_p_softmax",
    )
    need(
        algo.max_rollouts == 1 or members > 1,
        f"algo.max_rollouts is {algo.max_rollouts}, which draws groups without a spread of returns anew, but "
        "rollout.members is 1; use at least 2 members, or 1",
    )
    need(
        algo.max_rollouts == 1 or algo.logprobs != "strict",
        f"algo.max_rollouts is {algo.max_rollouts}, which puts groups of several rollouts side by side, but "
        "algo.logprobs strict replays one; use 1, or algo.logprobs parallel",
    )
    least = 2 if algo.advantage in PER_GROUP else 1
    need(
        algo.filter_members == 0 or least <= algo.filter_members < members,
        f"algo.filter_members is {algo.filter_members}; expected at least {least} and fewer than rollout.members = "
        f"{members}, or 0 for all",
    )


def _check_loss(config: Config, need: Callable[[bool, str], None]) -> None:
    algo = config.algo
    if algo.objective == "policy_gradient":
        _unread(algo, ("clip_low", "clip_high"), "algo.objective policy_gradient", need)
        need(
            algo.logprobs != "rollout" or algo.kl_where == "reward",
            "algo.logprobs is rollout, from which ratios start, but algo.objective policy_gradient has none; use "
            "algo.logprobs parallel",
        )
    need(
        algo.objective == "clip" or algo.dual_clip is None,
        f"algo.dual_clip is {algo.dual_clip}, which algo.objective {algo.objective} does not read; use none",
    )
    need(
        algo.kl_coef == 0.0 or algo.kl_where != "none",
        f"algo.kl_coef is {algo.kl_coef:g}, but algo.kl_where is none, so that it has no effect; "
        "set algo.kl_where to loss or reward, or algo.kl_coef to 0",
    )
    need(
        algo.kl_where == "none" or algo.kl_coef > 0.0 or "kl_coef" in algo.schedules,
        f"algo.kl_where is {algo.kl_where}, but algo.kl_coef is 0 and stays so, so that it has no effect; set "
        "algo.kl_coef above 0, or algo.kl_where to none",
    )
    if algo.kl_where == "none":
        _unread(algo, ("kl_kind",), "algo.kl_where none", need)
    need(
        algo.kl_target is None or algo.kl_coef > 0.0,
        f"algo.kl_target is {algo.kl_target}, but algo.kl_coef is 0 and stays so; set algo.kl_coef above 0, or leave "
        "algo.kl_target out",
    )
    need(
        algo.kl_target is None or "kl_coef" not in algo.schedules,
        f"algo.kl_target is {algo.kl_target}, which moves algo.kl_coef, and algo.schedules.kl_coef moves it too; leave "
        "one of them out",
    )
    if algo.kl_target is None:
        _unread(algo, ("kl_horizon",), "algo.kl_target none", need)
    need(
        algo.kl_where != "reward" or algo.advantage not in PER_EPISODE,
        f"algo.kl_where is reward, but algo.advantage {algo.advantage} compares returns and would not see it; "
        "use algo.kl_where loss, or algo.advantage gae or reward_to_go",
    )
    need(
        algo.kl_where != "reward" or algo.kl_kind == "k1",
        f"algo.kl_where is reward and algo.kl_kind {algo.kl_kind}, whose sum over tokens has another gradient than the "
        "divergence; use algo.kl_kind k1, or algo.kl_where loss with k2 or full",
    )
    if algo.logprobs not in ("truncated", "masked"):
        _unread(algo, ("importance_cap", "importance_level"), f"algo.logprobs {algo.logprobs}", need)


def _check_movement(config: Config, need: Callable[[bool, str], None]) -> None:
    algo, turns = config.algo, config.prompt.max_turns
    if algo.horizon == "fixed":
        need(
            not algo.horizons,
            f"algo.horizons is {list(algo.horizons)}, which algo.horizon fixed does not read; set algo.horizon to "
            "stepwise or adaptive, or leave it out",
        )
    else:
        need(
            bool(algo.horizons) and list(algo.horizons) == sorted(set(algo.horizons)) and algo.horizons[-1] <= turns,
            f"algo.horizons is {list(algo.horizons)}; expected growing numbers of turns, at most prompt.max_turns = "
            f"{turns}: raise that, or lower these",
        )
        need(
            algo.horizons != (turns,),
            f"algo.horizons is {list(algo.horizons)}, which is prompt.max_turns from the start, as with algo.horizon "
            "fixed; use that, or give a smaller number of turns",
        )
    if algo.horizon != "adaptive":
        _unread(algo, ("horizon_gain", "horizon_spread"), f"algo.horizon {algo.horizon}", need)
    if algo.horizon == "fixed":
        _unread(algo, ("horizon_every",), "algo.horizon fixed", need)
    starts = {"temperature": config.rollout.temperature, "format_penalty": config.prompt.format_penalty}
    for name, schedule in algo.schedules.items():
        start = starts[name] if name in starts else getattr(algo, name)
        need(
            schedule.end != start,
            f"algo.schedules.{name}.end is {schedule.end:g}, where {name} starts from, so that nothing moves; give "
            "another end, or leave it out",
        )
        low, high = _RANGES.get(name, (0.0, float("inf")))
        need(
            low <= schedule.end <= high,
            f"algo.schedules.{name}.end is {schedule.end:g}; expected {low:g} to {high:g}",
        )
        given = f"algo.schedules.{name}.end is {schedule.end:g}"
        need(
            name not in ("clip_low", "clip_high") or algo.objective != "policy_gradient",
            f"{given}, which algo.objective policy_gradient does not read; leave it out",
        )
        need(
            name != "kl_coef" or algo.kl_where != "none",
            f"{given}, but algo.kl_where is none; set it to loss or reward",
        )
        need(
            name != "value_coef" or algo.advantage in WITH_CRITIC,
            f"{given}, but algo.advantage {algo.advantage} has no critic; use gae, or leave it out",
        )
