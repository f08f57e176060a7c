"""Commands as ReAct text, as a function call in JSON, or as a line of Python, read without running anything.

AgentGym offers the three for WebShop, ALFWorld and SciWorld. Its reader of Python evaluates what the model wrote; here
a call is taken apart as a syntax tree, and only constants pass.
"""

import ast
import dataclasses
import io
import json
import tokenize
from collections.abc import Callable, Mapping
from typing import Literal, get_args

from agentrl_jax.services.action_functions import FUNCTIONS, NUMBERS, Function, from_command, to_command
from agentrl_jax.services.replies import READERS, Reader, Reading, react_reply, without_end
from agentrl_jax.strict_json import parse_object

ActionFormat = Literal["react", "function_calling", "code_as_action"]

LONGEST_REPLY = 100_000
"""Characters; a longer reply in JSON or Python is invalid, before it is parsed."""

INVALID = Reading(None, "Invalid Action.\n\n", repeats=True)
"""What AgentGym's clients answer to a reply that they cannot read."""


@dataclasses.dataclass(frozen=True)
class Move:
    """What a reply says."""

    action: str
    thought: str = ""


def reader(environment: str, action_format: str) -> Reader:
    """Finds the action in replies of a format; a reply that does not keep to it gives `INVALID`.

    Raises:
        ValueError: the environment is not known, or has no such format.
    """
    if action_format == "react" and environment in READERS:
        return READERS[environment]
    parse = parser(environment, action_format)

    def read(reply: str) -> Reading:
        try:
            return Reading(parse(reply).action)
        except ValueError:
            return INVALID

    return read


def parser(environment: str, action_format: str) -> Callable[[str], Move]:
    """Finds action and thought in replies of a format, for converting them. It raises `ValueError` where it cannot.

    Raises:
        ValueError: the environment is not known, or has no such format.
    """
    functions = _functions(environment, action_format)
    if action_format == "react":
        return lambda reply: _parse_react(reply, READERS[environment])
    parse = _parse_call if action_format == "function_calling" else _parse_code
    return lambda reply: parse(reply, {function.name: function for function in functions})


def writer(environment: str, action_format: str) -> Callable[[str, str], str]:
    """Writes replies of a format: (command, thought) -> reply. It raises `ValueError` for a command without function.

    What it writes is read again as the same command, in its usual spelling.

    Raises:
        ValueError: the environment is not known, or has no such format.
    """
    functions = _functions(environment, action_format)
    if action_format == "react":
        return react_reply
    write = _write_call if action_format == "function_calling" else _write_code

    def convert(command: str, thought: str = "") -> str:
        return write(*from_command(functions, command), thought)

    return convert


def describe(environment: str, action_format: str) -> str:
    """What a model is told about the commands and the format of its replies, for a prompt.

    Raises:
        ValueError: the environment is not known, or has no such format.
    """
    functions = _functions(environment, action_format)
    if action_format == "react":
        commands = "\n".join(
            f"- {function.command}" + (f"[{function.extra}]" if function.extra else "") + f": {function.meaning}"
            for function in functions
        )
        form = react_reply("one command", "what you think")
        return f"Commands, with your own words in place of braces:\n{commands}\n\nReply in this form:\n{form}"
    if action_format == "function_calling":
        blocks = json.dumps([_block(function) for function in functions], indent=2)
        form = json.dumps({"thought": "...", "function_name": "...", "arguments": {"...": "..."}}, indent=2)
        request = "Act by calling one function. Reply with one JSON object of this form in a block, and nothing else:"
        return f"These are the functions:\n{blocks}\n\n{request}\n```json\n{form}\n```"
    signatures = "\n\n".join(_signature(function) for function in functions)
    request = (
        "Act by calling one function. Reply with one block of Python and nothing else: comments that tell what you "
        "think, then a single call with plain text or numbers as arguments."
    )
    form = _write_code(functions[0], dict.fromkeys(functions[0].parameters, "..."), "what you think")
    return f"These are the functions:\n```python\n{signatures}\n```\n\n{request} For example:\n{form}"


def _functions(environment: str, action_format: str) -> tuple[Function, ...]:
    formats = get_args(ActionFormat)
    if action_format not in formats:
        raise ValueError(f"action format {action_format!r}; expected one of {', '.join(formats)}")
    if environment not in FUNCTIONS:
        known = ", ".join(FUNCTIONS)
        raise ValueError(f"{environment!r} with action format {action_format!r}: commands are known for {known} alone")
    return FUNCTIONS[environment]


def _check_length(reply: str) -> None:
    if len(reply) > LONGEST_REPLY:
        raise ValueError(f"the reply has {len(reply)} characters; at most {LONGEST_REPLY} are read")


def _parse_react(reply: str, read: Reader) -> Move:
    action = read(reply).action
    if not action:
        raise ValueError("the reply holds no action")
    return Move(action, reply.rpartition("Action:")[0].partition("Thought:")[2].strip())


def _parse_call(reply: str, functions: Mapping[str, Function]) -> Move:
    _check_length(reply)
    data = parse_object(reply[reply.find("{") : reply.rfind("}") + 1].encode(), "reply")
    thought, name, arguments = (data.get(key) for key in ("thought", "function_name", "arguments"))
    if not (isinstance(thought, str) and isinstance(name, str) and isinstance(arguments, dict)):
        raise ValueError("expected thought and function_name as text and arguments as an object")
    function = functions.get(name.strip())
    if function is None:
        raise ValueError(f"there is no function {name[:100]!r}")
    return Move(to_command(function, arguments), thought)


def _parse_code(reply: str, functions: Mapping[str, Function]) -> Move:
    _check_length(reply)
    code = without_end(reply)
    if code.startswith("```"):
        code = code.partition("\n")[2]
    code = code.removesuffix("```").strip()
    try:
        call = ast.parse(code, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:  # MemoryError is how the parser says: nested too deep
        raise ValueError(f"no Python expression ({str(error)[:100]})") from None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in functions):
        raise ValueError("expected one call of a known function")
    function = functions[call.func.id]
    if len(call.args) > len(function.parameters):
        raise ValueError(f"{function.name} takes at most {len(function.parameters)} arguments")
    pairs = [*zip(function.parameters, call.args), *((keyword.arg, keyword.value) for keyword in call.keywords)]
    arguments = {name: value.value for name, value in pairs if name and isinstance(value, ast.Constant)}
    if len(arguments) < len(pairs):
        raise ValueError("expected text or numbers as arguments, each once")
    return Move(to_command(function, arguments), _comments(code))


def _comments(code: str) -> str:
    """The comments of code that is known to parse, a line each."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (SyntaxError, tokenize.TokenError):  # the two parsers of Python do not agree on every line end
        return ""
    return "\n".join(token.string[1:].strip() for token in tokens if token.type == tokenize.COMMENT)


def _write_call(function: Function, arguments: Mapping[str, str | int], thought: str) -> str:
    data = {"thought": thought, "function_name": function.name, "arguments": arguments}
    return f"```json\n{json.dumps(data, indent=2, ensure_ascii=False)}\n```"


def _write_code(function: Function, arguments: Mapping[str, str | int], thought: str) -> str:
    # A comment ends where Python ends a line; other signs that are not seen may end the text or not be encodable.
    seen = ["".join(sign if sign.isprintable() else " " for sign in line) for line in thought.splitlines()]
    call = f"{function.name}({', '.join(map(repr, arguments.values()))})"
    return "\n".join(["```python", *(f"# {line}" for line in seen), call, "```"])


def _block(function: Function) -> dict[str, object]:
    parameters = {
        "type": "object",
        "properties": {name: {"type": "integer" if name in NUMBERS else "string"} for name in function.parameters},
        "required": list(function.required),
    }
    named = {"name": function.name, "description": function.meaning, "parameters": parameters}
    return {"type": "function", "function": named}


def _signature(function: Function) -> str:
    parts = [
        f"{name}: {'int' if name in NUMBERS else 'str'}" + ("" if name in function.required else " | None = None")
        for name in function.parameters
    ]
    return f'def {function.name}({", ".join(parts)}):\n    """{function.meaning}"""'
