import re
import sys

import pytest
from sciworld_texts import BORDERS, HALLWAY

from agentrl_jax.services.action_parsing import react_response
from agentrl_jax.services.environment import ItemError
from agentrl_jax.services.environments.sciworld.env import ITEMS, SERVICE, TASKS, find_item, item_table
from agentrl_jax.services.environments.sciworld.scripted import TEMPLATES, Random


def test_items_are_numbered_as_agentgym_numbers_them():
    assert ITEMS == SERVICE.items == 4639
    assert list(BORDERS.values()) == list(TASKS)
    table = item_table()
    assert len(table) == ITEMS
    for (first, last), task in BORDERS.items():
        assert find_item(first) == (task, 0)
        assert SERVICE.category(last) == task
        assert find_item(last) == (task, last - first)
        assert table[last] == {"item": last, "task_name": task, "var_num": last - first}
    for item in (-1, 4639):
        with pytest.raises(ItemError, match=r"^list index out of range$"):  # the original's words
            find_item(item)


def test_what_is_missing_is_named_with_what_to_install(monkeypatch):
    pytest.importorskip("scienceworld")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match=r"needs a Java runtime.*default-jre-headless"):
        SERVICE.make(False)
    for package in ("py4j", "scienceworld"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ValueError, match=rf"package {package}.*pip install scienceworld==1\.2\.3`"):
            SERVICE.make(False)


def test_the_random_player_names_what_it_has_seen_and_the_service_tells_every_template():
    player, same = Random(3), Random(3)
    actions = [player.act(HALLWAY) for _ in range(400)]
    assert actions == [same.act(HALLWAY) for _ in range(400)]
    assert not any(re.search(r"\b(OBJ|LOC)\b", action) for action in actions)
    expected = {"look around", "wait1", "go to kitchen", "focus on picture", "open door to kitchen", "eat air"}
    assert expected < set(actions)
    assert not any("called" in action or "closed" in action for action in actions)
    assert player.act("Ambiguous request: Please enter the number\n0:\topen a\n1:\topen b\n") in ("0", "1")
    assert SERVICE.read(react_response("focus on water")).action == "focus on water"
    assert all(template in SERVICE.instruction for template in TEMPLATES)
    assert len(TEMPLATES) == 25
