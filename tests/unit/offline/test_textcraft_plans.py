"""Plans of a made-up wheel with the layout of platoon-textcraft."""

import hashlib
import json
import zipfile

import pytest

from agentrl_jax.errors import UserError
from agentrl_jax.offline import textcraft_plans
from agentrl_jax.offline.read import read_data
from agentrl_jax.offline.textcraft_plans import DATA, FILES


def craft(item, times, made, **ingredients):
    return {"action": "craft", "target": [item, times], "ingredients": ingredients, "result_count": made}


STICKS = {
    "goal": "Craft the following items: 2x stick, 1x plank",
    "id": "textcraft.train.0",
    "max_steps": 3,
    "misc": {
        "target_items": {"stick": 2, "plank": 1},
        "initial_inventory": {"log": 2, "stick": 1},
        "gold_trajectory": [craft("plank", 2, 8, log=2), craft("stick", 1, 4, plank=2)],
    },
}


def changed(plan=STICKS, **keys):
    misc = {key: keys.pop(key) for key in list(keys) if key in plan["misc"] or key == "difficulty"}
    return {**plan, **keys, "misc": plan["misc"] | misc}


def wheel(tmp_path, sums=True, name="platoon_textcraft-0.3.0-py3-none-any.whl", **files):
    """A wheel whose splits have one plan, except those that are given."""
    path = tmp_path / name
    with zipfile.ZipFile(path, "w") as archive:
        digests = ""
        for split, file in FILES.items():
            rows = files.get(split, [STICKS])
            content = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
            archive.writestr(DATA + file, content)
            digests += f"{hashlib.sha256(content.encode() if sums else b'').hexdigest()}  {file}\n"
        archive.writestr(DATA + "SHA256SUMS", digests)
    return path


def test_a_plan_is_played_with_its_inventory(tmp_path):
    path = wheel(tmp_path)
    (plan,) = read_data([path], "val").conversations
    assert (plan.task, plan.item, plan.reward, plan.success) == ("textcraft_plans", "textcraft_val.jsonl:1", 1.0, True)
    assert plan.source == f"{path}/{DATA}textcraft_val.jsonl:1"
    assert [message.role for message in plan.messages] == ["system", *["user", "assistant"] * 3]
    assert [message.content for message in plan.messages[1:]] == [
        "Goal: Craft the following items: 2x stick, 1x plank\n"
        'Inventory: {"log": 2, "stick": 1}\n'
        'Recipes:\n{"log": 1} -> 4 plank\n{"plank": 2} -> 4 stick',
        'craft({"log": 2}, ("plank", 8))',
        'Successfully crafted 8 plank(s)\nInventory: {"stick": 1, "plank": 8}',
        'craft({"plank": 2}, ("stick", 4))',
        'Successfully crafted 4 stick(s)\nInventory: {"stick": 5, "plank": 6}',
        'finish("Crafted 2x stick, 1x plank")',
    ]


def test_what_no_episode_could_be_is_left_out_and_counted(tmp_path):
    rows = [
        STICKS,
        changed(max_steps=2),
        changed(initial_inventory={"log": 1, "stick": 1}),
        changed(target_items={"stick": 5}),
        changed(target_items={"stick": 4}),
    ]
    data = read_data([wheel(tmp_path, train=rows)], "train")
    assert [plan.item[-1] for plan in data.conversations] == ["1", "5"]
    assert data.dropped == {"longer than its max_steps": 1, "crafts what the inventory lacks": 1, "misses its goal": 1}


def test_splits_are_files_and_difficulties(tmp_path):
    hard = changed(difficulty="hard")
    path = wheel(tmp_path, synth_train=[changed(difficulty="easy", max_steps=1), hard, changed(difficulty="easy")])
    assert [(plan.task, plan.item) for plan in read_data([path], "synth_train-easy").conversations] == [
        ("textcraft_synth_plans", "textcraft_synth_train.jsonl:3")
    ]
    whole = read_data([path])
    assert (len(whole), whole.dropped) == (5, {"longer than its max_steps": 1})
    assert len(read_data([path], "synth_train-hard")) == len(read_data([path], "synth_train[1:]")) == 1
    for split in ("test", "train-easy", "synth_train-odd"):
        with pytest.raises(UserError) as error:
            read_data([path], split)
        assert error.value.key == "split"


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ("{", "{place}"),
        ("[]", "{place}"),
        ({"goal": ""}, "misc"),
        (changed(max_steps="3"), "goal and max_steps"),
        (changed(goal=None), "goal and max_steps"),
        (changed(gold_trajectory="x"), "gold_trajectory"),
        (changed(gold_trajectory=[STICKS]), "gold_trajectory"),
        (changed(gold_trajectory=[craft("plank", 2, 8, log=2) | {"action": "get"}]), "gold_trajectory"),
        (changed(gold_trajectory=[craft("plank", 0, 8, log=2)]), "target"),
        (changed(gold_trajectory=[craft("plank", 2, 7, log=2)]), "target"),
        (changed(gold_trajectory=[craft("plank", 2, None, log=2)]), "target"),
        (changed(gold_trajectory=[craft(["plank"], 2, 8, log=2)]), "target"),
        (changed(gold_trajectory=[craft("plank", 2, 8, log=1)]), "target"),
        (changed(gold_trajectory=[craft("plank", 2, 8, log=True)]), "ingredients"),
        (changed(initial_inventory=[]), "initial_inventory"),
        (changed(target_items={"stick": 0}), "target_items"),
    ],
)
def test_what_is_no_plan_is_refused_by_line(tmp_path, row, key):
    path = wheel(tmp_path, train=[STICKS, row])
    with pytest.raises(UserError) as error:
        read_data([path], "train")
    place = f"{path}/{DATA}textcraft_train.jsonl:2"
    assert error.value.key == key.replace("{place}", place)
    assert str(error.value).startswith(place)


def test_another_or_a_damaged_wheel_is_refused(tmp_path, monkeypatch):
    def key(path):
        with pytest.raises(UserError) as error:
            read_data([path])
        return error.value.key

    file = f"{DATA}textcraft_train.jsonl"
    assert key(wheel(tmp_path, sums=False)) == f"{tmp_path}/platoon_textcraft-0.3.0-py3-none-any.whl/{file}"
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a", "b")
    assert key(other) == str(other)
    whole = wheel(tmp_path, name="whole.whl")
    other.write_bytes(whole.read_bytes()[:-40])
    assert key(other) == str(other)
    monkeypatch.setattr(textcraft_plans, "_LARGEST", 100)
    assert key(whole) == f"{whole}/{file}"
