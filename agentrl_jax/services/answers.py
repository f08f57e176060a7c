"""Checks a server's answers, route by route, against the table of `services.protocol`.

A missing field or one of the wrong type is an error, never a zero: otherwise an episode without a reward would be
learned from as a failure. Required are the fields that AgentGym's own servers always send:

- /create: the handle, at least 0, under `RouteSpec.handle`; a bare number if `RouteSpec.created` is empty.
- /reset with an object: observation, and what the agent is shown with it (`RouteSpec.shown`, `RouteSpec.listed`).
  Handle, reward, score and done are checked if present: ALFWorld, Maze and Wordle send fewer fields than the others.
- /reset with a pair: an array of a text and any value; with a text: a text.
- /step: the fields of `RouteSpec.step_fields` that make a `StepResult`: text, reward, done and, for scores of the
  whole episode, score; also success, which only our own servers send. `truncated` is checked if present.
- /observation: a text.

An object with an `error` that is not null is a refusal on every route, regardless of its other fields. Every answer has
status 200; the client refuses any other status before it reads the body.
"""

from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import MAX_FOREIGN, shortened
from agentrl_jax.services.environment import StepResult
from agentrl_jax.services.protocol import RouteSpec

LARGEST = 1e30
"""Largest reward or score that is accepted; far beyond any real one, and within float32."""

_TEXTS, _ENDS = ("observation", "state"), ("done", "terminated")


class BadAnswer(ValueError):
    """An answer that does not fit its route; the message says what was expected and what came."""


def read_handle(routes: RouteSpec, found: Any) -> int:
    """The handle in an answer to /create.

    Raises:
        BadAnswer: there is none.
    """
    handle = _object(found).get(routes.handle) if routes.created else found
    if not isinstance(handle, int) or isinstance(handle, bool) or handle < 0:
        where = f"in {routes.handle}" if routes.created else "as the whole answer"
        raise _unexpected(f"a handle, 0 or more, {where}", found)
    return handle


def read_text(found: Any) -> str:
    """A text, as /observation answers.

    Raises:
        BadAnswer: it is not a text, or holds half of a character (a lone surrogate).
    """
    if not isinstance(found, str):
        raise _unexpected("text", found)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise _unexpected("text of whole characters (half of a surrogate pair is none)", found) from None
    return found


def read_reset(routes: RouteSpec, handle: int, found: Any) -> StepResult:
    """The answer to a /reset, without what `RouteSpec.first` adds to its text.

    Raises:
        BadAnswer: the answer does not fit these routes.
    """
    if routes.reset_answer == "text":
        return StepResult(read_text(found))
    if routes.reset_answer == "pair":
        if not isinstance(found, list) or len(found) != 2:
            raise _unexpected("an array of a text and null", found)
        return StepResult(read_text(found[0]))
    fields = _object(found)
    observation = read_text(_required(fields, "observation"))
    for name in routes.shown:
        read_text(_required(fields, name))
    if routes.listed:
        listed = _required(fields, routes.listed)
        if not isinstance(listed, list):
            raise _unexpected(f"an array in {routes.listed}", listed)
        for each in listed:
            read_text(each)
    if routes.handle in routes.reset_fields and fields.get(routes.handle, handle) != handle:
        raise _unexpected(f"{routes.handle} {handle}, the instance that was asked", fields[routes.handle])
    reward = _number(fields, "reward") if "reward" in fields else 0.0
    score = _number(fields, "score") if "score" in fields else reward
    done = _flag(fields, "done") if "done" in fields else False
    return StepResult(observation, reward, score, done, fields)


def read_step(routes: RouteSpec, found: Any) -> StepResult:
    """The answer to a /step.

    Raises:
        BadAnswer: a field that servers with these routes send is missing or of another type.
    """
    fields = _object(found)
    text, end = (next(name for name in names if name in routes.step_fields) for names in (_TEXTS, _ENDS))
    observation, reward = read_text(_required(fields, text)), _number(fields, "reward")
    score = _number(fields, "score") if "score" in routes.step_fields else reward
    if "truncated" in fields:
        _flag(fields, "truncated")
    if "success" in routes.step_fields:
        _flag(fields, "success")
    return StepResult(observation, reward, score, _flag(fields, end), fields)


def refusal(found: Any) -> str | None:
    """The error text that a server sent instead of an answer; None if it did answer."""
    if isinstance(found, dict) and found.get("error") is not None:
        words = found["error"] if isinstance(found["error"], str) else _written(found["error"])
        return shortened(words, MAX_FOREIGN) or "an error without words"
    return None


def _object(found: Any) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise _unexpected("an object", found)
    return found


def _required(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise _unexpected(f"a field {name}", dict(fields))
    return fields[name]


def _number(fields: Mapping[str, Any], name: str) -> float:
    value = _required(fields, name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < LARGEST:
        raise _unexpected(f"a finite number in {name}", value)
    return float(value)


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = _required(fields, name)
    if not isinstance(value, bool):
        raise _unexpected(f"true or false in {name}", value)
    return value


def _unexpected(expected: str, found: Any) -> BadAnswer:
    return BadAnswer(f"expected {expected}; found {shortened(_written(found), 200)}")


def _written(found: Any) -> str:
    try:
        return repr(found)
    except RecursionError:  # the value could only just be parsed
        return f"a {type(found).__name__} of too many levels"
