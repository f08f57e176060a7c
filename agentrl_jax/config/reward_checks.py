"""Checks of the parts of the reward with the rest of a configuration."""

from collections.abc import Iterator
from typing import Any

from agentrl_jax.config.schema import Config


def check_rewards(config: Config) -> Iterator[tuple[str, Any, str]]:
    """Yields what parts cannot be used with, as key, value and what to do."""
    algo, labels = config.algo, [task.label for task in config.tasks]
    for name, part in algo.rewards.items():
        key = f"algo.rewards.{name}"
        if name == "environment" and part.kind != name:
            yield f"{key}.kind", part.kind, "but this name is that of the reward of the environment; give another name"
        for label in part.tasks:
            if label not in labels:
                yield f"{key}.tasks", label, f"but this run has no such task; its tasks are {', '.join(labels)}"
        if part.weight == 0.0 and f"rewards.{name}.weight" not in algo.schedules:
            yield (
                f"{key}.weight",
                0.0,
                "and stays so, so that it has no effect; give another one, or leave the part out",
            )
    if len(set(algo.skip_truncated)) < len(algo.skip_truncated):
        yield "algo.skip_truncated", algo.skip_truncated, "which names a cause twice; name it once"


def check_normalized(config: Config) -> Iterator[tuple[str, Any, str]]:
    """The same of parts that are normalized apart."""
    if config.algo.normalize_rewards == "none":
        return
    algo, key, group = config.algo, "algo.normalize_rewards", "group"
    advantage = algo.advantage
    if config.rollout.group_size == 1:
        yield key, group, "which compares members of a group, but rollout.group_size is 1; use at least 2 members"
    if not algo.rewards:
        yield key, group, "but there are no parts to normalize apart; give algo.rewards, or use none"
    for penalty, value in (
        ("algo.overlong_buffer", algo.overlong_buffer),
        ("prompt.format_penalty", config.prompt.format_penalty),
    ):
        if value:
            yield penalty, value, "which is part of no sum of normalized parts; use 0, and the parts format or overlong"
    for rule in advantage.rules:
        if rule.kind == "gigpo" or rule.has_greedy:
            why = "which reads more than returns of whole episodes; use another kind, or algo.normalize_rewards none"
            yield "algo.advantage", rule.kind, why
    wanted = {"reward_placement": "episode", "reward_normalization": "identity", "normalize_by_std": False}
    for name, needed in wanted.items():
        for given in (getattr(rule, name, needed) for rule in advantage.rules):
            if given != needed:
                why = f"but algo.normalize_rewards normalizes each part of a return; use {str(needed).lower()}"
                yield f"algo.advantage.{name}", given, why
