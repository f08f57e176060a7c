"""Which runs `agentrl eval` compares, and on which levels."""

import pytest
import tiny_run
from evaluating import refusal

from agentrl_jax.config import TaskConfig, load_config
from agentrl_jax.evaluate import against
from agentrl_jax.runs.run_folder import write_config

TASKS = "tasks: [{env: SimpleSokoban, groups: 2, levels: LEVELS}, {env: FrozenLake, groups: 2}]"
TASKS_OF = {
    "lake": "{env: FrozenLake, groups: 2}",
    "wet": "{env: FrozenLake, groups: 2, options: {success_rate: 0.5, frozen_probability: 0.7}}",
    "dry": "{env: FrozenLake, groups: 2, options: {success_rate: 1.0}}",
    "babyai": "{env: BabyAI, groups: 2, options: {objects_shown: 8}}",
}


def test_different_tasks_are_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(against, "evaluate_run", lambda *args, **options: pytest.fail("played"))
    assert TASKS in tiny_run.CONFIG
    texts = {name: tiny_run.CONFIG.replace(TASKS, f"tasks: [{task}]") for name, task in TASKS_OF.items()}
    for name, text in (texts | {"served": tiny_run.SERVED}).items():
        (tmp_path / name).mkdir()
        write_config(tmp_path / name, load_config(tiny_run.write_config(tmp_path, text)))
    for first, second, words, parts in (
        ("lake", "babyai", (), ["plays FrozenLake and", "plays BabyAI (objects_shown 8), which cannot"]),
        ("wet", "dry", (), ["FrozenLake (success_rate 0.5, frozen_probability 0.7)", "FrozenLake (success_rate 1.0)"]),
        ("served", "lake", (), ["plays maze and", "plays FrozenLake"]),
        # Both would have to play it.
        ("lake", "served", ("--env", "FrozenLake"), ["has items of maze only"]),
        ("lake", "served", ("--panel", "frozen-lake-4x4-v2"), ["on the services maze"]),
        ("served", "lake", ("--panel", "maze-v1"), ["on compiled environments"]),
        ("lake", "dry", ("--levels", "LEVELS"), ["expected one of S F H G"]),
    ):
        words = [tmp_path / "levels.txt" if word == "LEVELS" else word for word in words]
        message = str(refusal("eval", tmp_path / first, "--against", tmp_path / second, *words))
        assert all(part in message for part in parts)
    # What both can play is not.
    for first, second, options in (
        ("lake", "babyai", {"env": "FrozenLake"}),
        ("lake", "babyai", {"panel": "frozen-lake-4x4-v2"}),
        ("wet", "dry", {"panel": "frozen-lake-4x4-v2"}),
        ("lake", "dry", {}),
    ):
        with pytest.raises(pytest.fail.Exception, match="played"):
            against.evaluate_against(tmp_path / first, tmp_path / second, **options)
    # What is shown of an item is a run's own: whether the levels are the same is known after play.
    assert not against._differ(*(TaskConfig(env="BabyAI", groups=2, options={"objects_shown": n}) for n in (8, 6)))
