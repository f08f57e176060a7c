"""Checks of the tasks with the rest of a configuration."""

from collections.abc import Iterator
from typing import Any

from agentrl_jax.config.schema import Config


def check_tasks(config: Config) -> Iterator[tuple[str, Any, str]]:
    """Yields what tasks cannot be used with, as key, value and what to do."""
    labels, prompt = [task.label for task in config.tasks], config.prompt
    for index, label in enumerate(labels):
        if label in labels[:index]:
            yield f"tasks.{index}.name", label, f"the name of two tasks; give another one, e.g. {label}-2"
    for index, task in enumerate(config.tasks):
        kind, levels = task.sampling.kind, getattr(task.sampling, "levels", 0)
        if kind != "draws" and config.algo.dynamic_sampling > 1:
            why = "but algo.dynamic_sampling plays new levels until groups differ; use one of them"
            yield f"tasks.{index}.sampling", kind, why
        if 0 < levels < task.groups:
            why = f"but a batch has {task.groups} groups, all on different levels; use at least so many"
            yield f"tasks.{index}.sampling.levels", levels, why
    algo = config.algo
    of_several: list[tuple[str, Any, Any]] = [("algo.balance_tasks", algo.balance_tasks, False)]
    of_several += [("algo.whiten_by", algo.whiten_by, "batch")]
    usual_task = {"loss_weight": 1.0, "temperature": None, "max_turns": None}
    of_several += [
        (f"tasks.0.{name}", getattr(task, name), x) for task in config.tasks for name, x in usual_task.items()
    ]
    for key, value, usual in of_several if len(config.tasks) == 1 else ():
        if value != usual:
            yield key, value, f"but there is one task; use {str(usual).lower()}, or several tasks"
    for index, task in enumerate(config.tasks):
        if task.max_turns is not None and task.max_turns > prompt.max_turns:
            yield f"tasks.{index}.max_turns", task.max_turns, f"expected at most prompt.max_turns = {prompt.max_turns}"
    if config.tasks and max(config.turns) < prompt.max_turns:
        why = f"but no task has more than {max(config.turns)} turns (tasks.0.max_turns); use so many"
        yield "prompt.max_turns", prompt.max_turns, why
    if all(task.temperature is not None for task in config.tasks) and "rollout.temperature" in config.algo.schedules:
        why = "but each task gives its temperature; leave the schedule out, or tasks.0.temperature"
        yield "algo.schedules.rollout.temperature", config.algo.schedules["rollout.temperature"].end, why
    if algo.whiten_by == "task" and not algo.advantage.whiten:
        yield "algo.whiten_by", "task", "but algo.advantage.whiten is false; use batch, or whiten true"
    actions, most = prompt.max_actions_per_turn, prompt.max_actions
    if prompt.has_answer_block and actions > most:
        yield "prompt.max_actions_per_turn", actions, f"expected at most prompt.max_actions = {most}; change one"
