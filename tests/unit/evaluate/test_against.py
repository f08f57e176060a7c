"""`agentrl eval --against`: runs that would play different tasks are refused before anything is loaded or played."""

import pytest
import tiny_run
from evaluating import refusal

from agentrl_jax.config import TaskConfig, load_config
from agentrl_jax.evaluate import against
from agentrl_jax.runs.run_folder import write_config

TASKS = "tasks: [{env: SimpleSokoban, groups: 2, levels: LEVELS}, {env: FrozenLake, groups: 2}]"
TASKS_OF = {
    "lake": "tasks: [{env: FrozenLake, groups: 2}]",
    "wet": "tasks: [{env: FrozenLake, groups: 2, options: {success_rate: 0.5, frozen_probability: 0.7}}]",
    "dry": "tasks: [{env: FrozenLake, groups: 2, options: {success_rate: 1.0}}]",
    "babyai": "tasks: [{env: BabyAI, groups: 2, options: {objects_shown: 8}}]",
}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(against, "evaluate_run", lambda *args, **options: pytest.fail("played"))
    folders = {}
    for name, tasks in TASKS_OF.items():
        assert TASKS in tiny_run.CONFIG
        config = load_config(tiny_run.write_config(tmp_path, tiny_run.CONFIG.replace(TASKS, tasks)))
        folders[name] = tmp_path / name
        folders[name].mkdir()
        write_config(folders[name], config)
    (tmp_path / "served").mkdir()
    write_config(tmp_path / "served", load_config(tiny_run.write_config(tmp_path, tiny_run.SERVED)))
    return folders | {"served": tmp_path / "served"}


@pytest.mark.parametrize(
    ("first", "second", "words", "parts"),
    [
        ("lake", "babyai", (), ["plays FrozenLake and", "plays BabyAI (objects_shown 8), which cannot"]),
        ("wet", "dry", (), ["FrozenLake (success_rate 0.5, frozen_probability 0.7)", "FrozenLake (success_rate 1.0)"]),
        ("served", "lake", (), ["plays maze and", "plays FrozenLake"]),
        # Both would have to play it.
        ("lake", "served", ("--env", "FrozenLake"), ["has items of maze only"]),
        ("lake", "served", ("--panel", "frozen-lake-4x4-v2"), ["on the services maze"]),
        ("served", "lake", ("--panel", "maze-v1"), ["on compiled environments"]),
        ("lake", "dry", ("--levels", "LEVELS"), ["expected one of S F H G"]),
    ],
)
def test_different_tasks_are_refused_at_once(runs, tmp_path, first, second, words, parts):
    words = [tmp_path / "levels.txt" if word == "LEVELS" else word for word in words]
    message = str(refusal("eval", runs[first], "--against", runs[second], *words))
    assert all(part in message for part in parts)


@pytest.mark.parametrize(
    ("first", "second", "options"),
    [
        ("lake", "babyai", {"env": "FrozenLake"}),
        ("lake", "babyai", {"panel": "frozen-lake-4x4-v2"}),
        ("wet", "dry", {"panel": "frozen-lake-4x4-v2"}),
        ("lake", "dry", {}),
    ],
)
def test_what_both_can_play_is_not_refused(runs, first, second, options):
    with pytest.raises(pytest.fail.Exception, match="played"):
        against.evaluate_against(runs[first], runs[second], **options)
    # What is shown of an item is a run's own: whether the levels are the same is known after play.
    assert not against._differ(*(TaskConfig(env="BabyAI", groups=2, options={"objects_shown": n}) for n in (8, 6)))
