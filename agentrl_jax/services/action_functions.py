"""Which function stands for which command of WebShop, ALFWorld and SciWorld, and the way from one to the other."""

import dataclasses
import re
import string
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Function:
    """A command as a function.

    Attributes:
        name: of the function.
        command: in the environment's words, with the parameters in braces.
        meaning: what it does.
        extra: added to the command when its parameter is given, which is optional.
        spellings: further commands that mean the same, which are understood and not written.
    """

    name: str
    command: str
    meaning: str
    extra: str = ""
    spellings: tuple[str, ...] = ()

    @property
    def commands(self) -> tuple[str, ...]:
        """The command with and without the optional parameter, where there is one."""
        return (self.command + self.extra, self.command) if self.extra else (self.command,)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the parameters that have to be given, in order."""
        return _names(self.command)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of all parameters, in order."""
        return _names(self.commands[0])


_F = Function
FUNCTIONS: dict[str, tuple[Function, ...]] = {
    "webshop": (
        _F("search", "search[{keywords}]", "Looks for products, where the page has a search bar."),
        _F("click", "click[{item}]", "Presses one of the things on the page that can be clicked."),
    ),
    "alfworld": (
        _F("goto", "go to {recep}", "Walks to a place."),
        _F("take", "take {obj} from {recep}", "Takes a thing from a place."),
        _F(
            "put",
            "put {obj} in/on {recep}",
            "Puts a thing that you hold in or on a place.",
            spellings=("move {obj} to {recep}", "put {obj} in {recep}", "put {obj} on {recep}"),
        ),
        _F("open", "open {recep}", "Opens a place, to see what is inside."),
        _F("close", "close {recep}", "Closes a place."),
        _F("toggle", "toggle {obj}", "Switches a thing on or off, where the list of actions has it."),
        _F("heat", "heat {obj} with {recep}", "Heats a thing that you hold, with a microwave for instance."),
        _F("cool", "cool {obj} with {recep}", "Cools a thing that you hold, with a fridge for instance."),
        _F("clean", "clean {obj} with {recep}", "Cleans a thing that you hold, with a sink for instance."),
        _F("examine", "examine {recep}", "Looks closely at a place, or at it with a thing.", " with {obj}"),
        _F("inventory", "inventory", "Tells what you hold."),
        _F("look", "look", "Tells where you are and what is near."),
        _F("use", "use {obj}", "Uses a thing, a lamp for instance."),
    ),
    "sciworld": (
        _F("open", "open {obj}", "Opens a container or a door."),
        _F("close", "close {obj}", "Closes a container or a door."),
        _F("activate", "activate {obj}", "Turns a device on."),
        _F("deactivate", "deactivate {obj}", "Turns a device off."),
        _F("connect", "connect {obj1} to {obj2}", "Joins two electrical parts."),
        _F("disconnect", "disconnect {obj}", "Takes an electrical part off its circuit."),
        _F("use", "use {tool}", "Uses a tool, on a thing if one is given.", " on {obj}"),
        _F("lookaround", "look around", "Describes the room."),
        _F("lookat", "look at {obj}", "Describes a thing."),
        _F("lookin", "look in {obj}", "Tells what a container holds."),
        _F("read", "read {obj}", "Reads a note or a book."),
        _F("move", "move {obj} to {container}", "Moves a thing into a container."),
        _F("pickup", "pick up {obj}", "Puts a thing into the inventory."),
        _F("drop", "drop {obj}", "Puts a thing of the inventory down.", spellings=("put down {obj}",)),
        _F(
            "pour",
            "pour {liq} into {container}",
            "Pours a liquid into a container.",
            spellings=("pour {liq} in {container}",),
        ),
        _F(
            "dunk",
            "dunk {container} in {liq}",
            "Dips a container into a liquid.",
            spellings=("dunk {container} into {liq}",),
        ),
        _F("mix", "mix {container}", "Mixes what a container holds."),
        _F("goto", "go to {loc}", "Goes to a room next to this one."),
        _F("eat", "eat {food}", "Eats a food."),
        _F("flush", "flush {obj}", "Flushes a toilet."),
        _F("focus", "focus on {obj}", "Says that this is the thing that the task is about."),
        _F("wait", "wait", "Lets time pass: 1 step with duration 1, without a duration 10 steps.", "{duration}"),
        _F("choose", "{option}", "Answers a question with the number of one of its choices."),
        _F("examine", "examine {obj}", "Describes a thing closely."),
        _F("task", "task", "Tells the task again."),
        _F("inventory", "inventory", "Tells what you carry."),
    ),
}
"""Functions by environment. Names, parameters and their order are AgentGym's; `lookin` it offers and then refuses."""

NUMBERS = ("duration", "option")
"""Parameters that take a whole number from 0; all others take text of one line."""

_NUMBER = r"0|[1-9][0-9]{0,8}"


def to_command(function: Function, arguments: Mapping[str, object]) -> str:
    """The environment's command for a call.

    Args:
        function: the function called.
        arguments: text or whole numbers by parameter; an optional parameter may be None or empty text.

    Raises:
        ValueError: the arguments do not fit the function.
    """
    given = {name: value for name, value in arguments.items() if name in function.required or value not in (None, "")}
    for command in function.commands:
        if set(_names(command)) == set(given):
            return command.format_map({name: _word(name, value) for name, value in given.items()})
    raise ValueError(f"{function.name} takes {function.parameters}, of which {function.required} have to be given")


def from_command(functions: tuple[Function, ...], command: str) -> tuple[Function, dict[str, str | int]]:
    """The call that stands for a command: the first function that fits, with its arguments.

    Where the words fit the parameters in two ways, the first parameter gets the fewest. `to_command` gives the same
    command again, in its usual spelling.

    Raises:
        ValueError: no function fits.
    """
    usual = [(function, text) for function in functions for text in function.commands]
    others = [(function, text) for function in functions for text in function.spellings]
    # `.` in the patterns would stop at some line ends and not at others.
    if command.splitlines() == [command]:
        for function, text in usual + others:
            found = re.fullmatch(_pattern(text), command)
            if found and all(word.strip() for word in found.groups()):
                words = found.groupdict().items()
                return function, {name: int(word) if name in NUMBERS else word for name, word in words}
    known = ", ".join(function.command for function in functions)
    raise ValueError(f"no function stands for the command {command[:200]!r}; those known are {known}")


def _names(command: str) -> tuple[str, ...]:
    return tuple(name for _, name, _, _ in string.Formatter().parse(command) if name)


def _pattern(command: str) -> str:
    return "".join(
        re.escape(literal) + (f"(?P<{name}>{_NUMBER if name in NUMBERS else '.+?'})" if name else "")
        for literal, name, _, _ in string.Formatter().parse(command)
    )


def _word(name: str, value: object) -> str:
    # `True` is a whole number to Python, and to no reader.
    word = str(value) if type(value) in (str, int) else ""
    if name in NUMBERS and not re.fullmatch(_NUMBER, word):
        raise ValueError(f"{name} is {word[:100]!r}; expected a whole number of at most nine digits")
    if not word.strip() or word.splitlines() != [word]:
        raise ValueError(f"{name} is {word[:100]!r}, a {type(value).__name__}; expected text of one line")
    return word
