from scene_lists import lists, scenes_of
from sciworld_texts import HALLWAY

from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.environments.maze import env as maze_service
from agentrl_jax.services.scenes import MAX_SCENES, text_scenes
from agentrl_jax.services.scenes.reading import MAX_ENTRIES, MAX_LENGTH, listed, shown


def test_textcraft_shows_goal_inventory_and_commands():
    """From texts of the service."""
    commands = "craft 4 oak planks using 1 oak logs\ncraft 1 bowl using 3 planks"
    plays = {
        "": f"Crafting commands:\n{commands}\n\nGoal: craft bowl.",
        "get 2000 oak logs": "Got 2000 oak logs",
        "craft 4 oak planks using 1 oak logs": "Crafted 4 minecraft:oak_planks",
        "get 1 stone": "Could not find stone",
        "inventory": "Inventory: [oak logs] (7) [oak planks] (4) ",
        "craft 1 bowl using 3 oak planks": "Crafted 1 minecraft:bowl",
    }
    found = scenes_of("textcraft", [*plays.values()], [*plays][1:])
    start, got, crafted, missing, asked, last = (lists(scene)["Inventory"] for scene in found)
    assert (start, got) == ([("nothing yet", "")], [("oak logs", "2,000")])
    assert crafted == missing == [("oak logs", "1,999"), ("oak planks", "4")]
    assert asked == [("oak logs", "7"), ("oak planks", "4")]
    assert last == [("oak logs", "7"), ("oak planks", "1"), ("bowl", "1")]
    assert [lists(found[at])["Goal"] for at in (0, -1)] == [[("bowl", "")], [("bowl", "crafted")]]
    assert lists(found[0])["Commands"] == [("craft 4 oak planks", "1 oak logs"), ("craft 1 bowl", "3 planks")]
    assert (found[0]["turn"], found[0].get("text", [])) == (0, [])
    assert (found[3]["turn"], found[3]["text"]) == (2, ["Could not find stone"])


def cells_with(scene, kind):
    return [(y, x) for y, row in enumerate(scene["cells"]) for x, cell in enumerate(row) if kind in cell]


def test_the_maze_shows_where_the_agent_is_and_was_without_the_example_of_the_instruction():
    goal, describe = maze_service.GOAL, maze_service.describe
    texts = [*map(describe, ((5, 6), (6, 6), (6, 6), (7, 6))), "Success\n"]
    found = scenes_of("maze", texts, ["move down", "move left", "move down", "move down"])
    assert [cells_with(scene, "player") for scene in found] == [[(5, 6)], [(6, 6)], [(6, 6)], [(7, 6)], [goal]]
    assert (cells_with(found[-1], "trail"), cells_with(found[0], "goal")) == ([(5, 6), (6, 6), (7, 6)], [goal])
    walls = [(y, x) for y, row in enumerate(maze_service.ROWS) for x, cell in enumerate(row) if cell == "1"]
    assert cells_with(found[0], "wall") == walls
    instruction, start = maze_service.INSTRUCTION, describe((1, 4))
    assert "player" in text_scenes("maze", [f"{instruction}\n{describe((1, 1))}"], [])[0]["cells"][1][1]
    found = text_scenes("maze", [instruction, start], ["OK"])
    assert [(scene["turn"], scene["action"]) for scene in found] == [(0, "OK")]
    assert text_scenes("maze", [describe((1, 2)), start], ["OK"])[-1]["cells"] == found[0]["cells"]
    for place in ("0, 0", "99, 3", "2, 2"):  # of another maze
        assert text_scenes("maze", [describe((1, 2)).replace("1, 2", place)], []) == []


def test_wordle_shows_guesses_with_their_colors():
    service = get_service("wordle")
    instance = service.make(False)
    texts, actions = [instance.reset(4).observation], ["s o l a r", "zzzzz", "no", "prick"]
    texts += [instance.step(action).observation for action in actions]
    cells = scenes_of("wordle", texts, actions)[-1]["cells"]
    tiles = {"g": "green tile", "y": "yellow tile", "b": "black tile"}
    for row, word, answer in ((0, "SOLAR", texts[1]), (3, "PRICK", texts[4])):
        assert cells[row] == [[tiles[color], f"letter {letter}"] for color, letter in zip(answer.split(), word)]
    assert cells[1] == [["refused tile", "letter Z"]] * 5
    assert cells[2] == [["refused tile"]] * 5
    assert cells[4:] == [[["floor"]] * 5] * 2
    assert len(scenes_of("wordle", [texts[0], *texts[1:2] * 7], ["solar"] * 7)) == 7  # no scene of a seventh guess


def test_sciworld_shows_rooms_doors_and_what_is_carried():
    """From texts of the simulator, as it has answered."""
    plays = {
        "": f"Your task is to find a(n) living thing.\n{HALLWAY}",
        "open door to kitchen": "The door is now open.",
        "go to kitchen": "You move to the kitchen.",
        "look around": "This room is called the kitchen. In it, you see: \n\tthe agent\n\ta sink\nYou also see:\n"
        "\tA door to the hallway (that is open)\n",
        "pick up thermometer": "You move the thermometer to the inventory.",
        "inventory": "In your inventory, you see:\n\ta thermometer, currently reading a temperature of 10 degrees\n",
        "focus on thermometer": "You focus on the thermometer.",
        "move thermometer to sink": "You move the thermometer to the sink.",
        "blub": "No known action matches that input.",
    }
    found = scenes_of("sciworld", [*plays.values()], [*plays][1:])
    start, opened, moved, looked, held, asked, focused, put, last = map(lists, found)
    assert start["Task"] == [("find a(n) living thing.", "")]
    assert start["Here: hallway"] == [("a substance called air", ""), ("a picture", "")]
    assert (dict(start["Exits"])["kitchen"], dict(opened["Exits"])["kitchen"]) == ("closed", "open")
    assert moved["Here: kitchen"] == [("not looked around yet", "")]
    assert (looked["Here: kitchen"], looked["Exits"]) == ([("a sink", "")], [("hallway", "open")])
    assert looked["Rooms"] == [("hallway", ""), ("kitchen", "here")]
    assert (start["Inventory"], held["Inventory"]) == ([("nothing known", "")], [("thermometer", "")])
    assert asked["Inventory"] == [("a thermometer, currently reading a temperature of 10 degrees", "")]
    assert focused["Focus"] == [("thermometer", "")]
    assert put["Inventory"] == [("nothing known", "")]
    assert last == put
    assert (found[3].get("text", []), found[-1]["text"]) == ([], ["No known action matches that input."])


QUESTION = "Answer with the tags <search> and </search>.\n\n Question: who wrote Emma?"
DOCUMENTS = '<information>Doc 1(Title: "Emma (novel)") A novel by Austen.\nIt is long.\nDoc 2(Title: "Ema") A god.'
ANSWERS = ["<think>hm</think><search>Emma novel</search>", "<answer> Jane </answer>"]
PAGE = """OBSERVATION:
Tab 0 (current): Shop | Tab 1: Wiki

[1] RootWebArea 'Shop' focused: True
\t[7] link 'Cart'
\t\t[8] StaticText '2'
URL: http://onestopmarket.com
OBJECTIVE: Empty the cart
PREVIOUS ACTION: None"""
LAMP = "WebShop [SEP] Instruction: [SEP] Find a red lamp [SEP] Search"
SHOWN = [
    ("searchqa", [QUESTION], [], {"Question": "who wrote Emma?", "Searches": "none yet"}),
    ("searchqa", [QUESTION, f"{DOCUMENTS}</information>", "Try again."], ANSWERS, {
        "Question": "who wrote Emma?", "Searches": "Emma novel", "Answers": "Jane",
        "Documents": [('"Emma (novel)"', "A novel by Austen.\nIt is long."), ('"Ema"', "A god.")],
    }),
    ("webarena", [PAGE], [], {
        "Objective": "Empty the cart", "Page": "http://onestopmarket.com",
        "Tabs": [("Tab 0 (current): Shop", ""), ("Tab 1: Wiki", "")],
        "Elements": [
            ("RootWebArea 'Shop' focused: True", "[1]"), ("· link 'Cart'", "[7]"), ("· · StaticText '2'", "[8]"),
        ],
    }),
    ("webshop", [LAMP], [], {"Instruction": "Find a red lamp", "Page": [("WebShop", ""), ("Search", "")]}),
    ("webshop", ["Instruction: [SEP] x"], [], {"Instruction": "x"}),
]  # fmt: skip


def test_questions_pages_and_instructions_are_shown():
    for name, texts, responses, expected in SHOWN:
        entries = {title: [(one, "")] if isinstance(one, str) else one for title, one in expected.items()}
        assert lists(text_scenes(name, texts, responses)[-1]) == entries
    for name, text in (("webarena", "TimeoutError"), ("webshop", "Error")):
        assert text_scenes(name, [text], []) == []


def test_alfworld_shows_place_and_inventory():
    texts = [
        "You are in the middle of a room. You see a desk 1.\nYour task is to: put a book in the safe.",
        "On the desk 1, you see a book 1, an alarmclock 2, and a pen 2.",
        "You pick up the book 1 from the desk 1.",
        "The safe 1 is closed.",
        "You put the book 1 in/on the safe 1.",
        "You open the drawer 1. The drawer 1 is open. In it, you see a cd 1, and a keychain 2.",
        "You close the drawer 1.",
    ]
    found = text_scenes("alfworld", texts, ["Action: x"] * 6)
    start, desk, taken, safe, put, drawer, closed = map(lists, found)
    assert start == {"Task": [("put a book in the safe.", "")], "Inventory": [("nothing", "")]}
    assert desk["desk 1"] == [("book 1", ""), ("alarmclock 2", ""), ("pen 2", "")]
    assert [scene["Inventory"] for scene in (taken, put)] == [[("book 1", "")], [("nothing", "")]]
    assert drawer["drawer 1"] == [("cd 1", ""), ("keychain 2", "")]
    assert safe["safe 1"] == closed["drawer 1"] == [("closed", "")]


def test_turns_and_lists_are_bounded():
    found = text_scenes("textcraft", ["Goal: craft stick.", "Got 1 log"], ["Action: get 1 log"], 7)
    assert [(scene["turn"], scene["action"]) for scene in found] == [(7, None), (7, "get 1 log")]
    found = text_scenes("textcraft", ["Goal: craft stick.", *["Got 1 log"] * 9_999], ["Action: get 1 log"] * 9_999)
    assert len(found) == MAX_SCENES
    assert lists(found[-1])["Inventory"] == [("log", f"{MAX_SCENES - 1}")]
    for name in ("sqlgym", "FrozenLake"):
        assert text_scenes(name, ["x", "y"], ["z"]) == []
    ((title, entries),) = listed("Things", [(f"thing {i}", "x") for i in range(MAX_ENTRIES + 3)])
    assert (title, len(entries), entries[-1]) == ("Things", MAX_ENTRIES + 1, ("and 3 more", ""))
    ((title, entries),) = listed("t" * 5000, [("thing", "x" * 5000)] * 20)
    assert title == shown("t" * 5000)
    assert entries == [("thing", shown("x" * 5000))] * 4 + [("and 16 more", "")]
    assert len(entries[0][1]) == MAX_LENGTH + 3
    assert listed("Nothing", []) == []
