"""Scenes of actions and texts, the lists in a scene, and texts that are hard to read."""

from agentrl_jax.services.action_parsing import react_response
from agentrl_jax.services.scenes import MAX_CHARACTERS, text_scenes
from agentrl_jax.services.scenes.reading import MAX_LENGTH

SERVICES = ("alfworld", "babyai", "maze", "sciworld", "searchqa", "textcraft", "webarena", "webshop", "wordle")
REPEATED = [
    *("", "\x00\ud800", "<search>", "<information>", 'Doc 1(Title: "', '\nDoc 1(Title: "', "craft using ", "(", "["),
    *("1", "\t[1] x\n", "[SEP]", "Instruction: [SEP] ", "You are carrying a ", "There is a red ball 1 ", "Action: "),
    *("You move the ", "You move to the ", "This room is called the ", "\tA door to the ", "Tab 0: "),
    *("This room is called the x. In it, you see:\n\t", "In the a 1, you see ", "The a 1 is open. In it, you see "),
]
STARTS = [
    *("", "Goal: craft x\n", "Your task is to: x\n", "Question: x\n", "Your goal: x\n", "Inventory: "),
    *("craft x using ", "In front of you in this room, you can see several objects: ", "You focus on the "),
    *("This room is called the x. In it, you see:\n\ty\nYou also see:\n", "<information>"),
]


def scenes_of(name, texts, actions):
    return text_scenes(name, texts, [react_response(action) for action in actions])


def lists(scene):
    return {found["title"]: [tuple(entry) for entry in found["entries"]] for found in scene.get("lists", [])}


def check_long_texts(name, starts):
    """With a pattern that takes quadratic time, this would run for hours."""
    for start in starts:
        for repeated in REPEATED:
            long = start + repeated * (MAX_CHARACTERS // max(1, len(repeated))) + " " * MAX_CHARACTERS + "y"
            texts = [f"{prefix}{long}" for prefix in ("", "Goal: craft x\n", "Question: x\n", "Your task is to: x\n")]
            found = text_scenes(name, [*texts, long], [f"Action: {long}"] * len(texts))
            entries = [entry for scene in found for part in scene.get("lists", []) for entry in part["entries"]]
            assert all(len(text) <= MAX_LENGTH + 3 for entry in entries for text in entry)
