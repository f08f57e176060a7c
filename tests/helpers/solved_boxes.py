"""An API model that solves the two levels of `tiny_run.LEVELS`, and the options of its evaluation on them."""

import tiny_run

from agentrl_jax.evaluate.api_models.tasks import TaskOptions

SOLUTIONS = {"#PXO_#": "Right", "#P_###": "Down"}
"""The action that solves each level, by a row of the level."""


def solve(body):
    shown = body["messages"][-1]["content"]
    return f"<answer>{next(action for row, action in SOLUTIONS.items() if row in shown)}</answer>"


def boxes(tmp_path):
    (tmp_path / "levels.txt").write_text(tiny_run.LEVELS)
    return TaskOptions(env="SimpleSokoban", levels=str(tmp_path / "levels.txt"), concurrency=1, max_tokens=40)
