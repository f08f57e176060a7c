"""Checks a server's answers, route by route, against the table of `services.protocol`.

A missing field or one of the wrong type is an error, never a zero: otherwise an episode without a reward would be
learned from as a failure. Required are the fields that AgentGym's own servers always send. An object with an `error`
that is not null is a refusal on every route. Every answer has status 200; the client refuses any other.
"""

from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import MAX_FOREIGN, shortened
from agentrl_jax.services.environment import StepResult
from agentrl_jax.services.protocol import RouteSpec

LARGEST = 1e30
"""Largest reward or score that is accepted; far beyond any real one, and within float32."""


class BadAnswer(ValueError):
    """An answer that does not fit its route; the message says what was expected and what came."""

    def __init__(self, expected: str, found: Any):
        super().__init__(f"expected {expected}; found {shortened(_repr(found), 200)}")


def read_handle(routes: RouteSpec, answer: Any) -> int:
    """The handle in an answer to /create, at least 0; the answer itself if `RouteSpec.create_fields` is empty."""
    handle = _object(answer).get(routes.handle) if routes.create_fields else answer
    if not isinstance(handle, int) or isinstance(handle, bool) or handle < 0:
        raise BadAnswer(
            f"a handle, 0 or more, {f'in {routes.handle}' if routes.create_fields else 'as a bare number'}", answer
        )
    return handle


def read_text(answer: Any) -> str:
    """A text, as /observation answers; half of a character (a lone surrogate) is none."""
    if not isinstance(answer, str):
        raise BadAnswer("text", answer)
    try:
        answer.encode()
    except UnicodeEncodeError:
        raise BadAnswer("text of valid Unicode, without a lone surrogate", answer) from None
    return answer


def read_screenshot(answer: Any) -> str:
    """The picture in an answer to `RouteSpec.screenshot`, the answer itself or its field `image`: a data URL."""
    return read_text(_required(answer, "image") if isinstance(answer, dict) else answer)


def read_reset(routes: RouteSpec, handle: int, answer: Any) -> StepResult:
    """The answer to a /reset, without what `RouteSpec.first_result` adds to its text.

    Handle, reward, score and done are checked if present: ALFWorld and the games of LMRL-Gym send fewer fields than the
    others.
    """
    if routes.reset_answer == "text":
        return StepResult(read_text(answer))
    if routes.reset_answer == "pair":
        if not isinstance(answer, list) or len(answer) != 2:
            raise BadAnswer("an array of a text and null", answer)
        return StepResult(read_text(answer[0]))
    fields = _object(answer)
    observation = read_text(_required(fields, "observation"))
    for name in routes.shown_fields:
        read_text(_required(fields, name))
    if routes.actions_field:
        actions = _required(fields, routes.actions_field)
        if not isinstance(actions, list):
            raise BadAnswer(f"an array in {routes.actions_field}", actions)
        for action in actions:
            read_text(action)
    if routes.handle in routes.reset_fields and fields.get(routes.handle, handle) != handle:
        raise BadAnswer(f"{routes.handle} {handle}, the instance that was asked", fields[routes.handle])
    reward = _number(fields, "reward") if "reward" in fields else 0.0
    score = _number(fields, "score") if "score" in fields else reward
    done = _flag(fields, "done") if "done" in fields else False
    return StepResult(observation, reward, score, done, fields)


def read_step(routes: RouteSpec, answer: Any) -> StepResult:
    """The answer to a /step: text, reward, done, and score and success if `RouteSpec.step_fields` has them.

    `truncated` is checked if present.
    """
    fields, names = _object(answer), routes.step_fields
    observation = read_text(_required(fields, "state" if "state" in names else "observation"))
    reward = _number(fields, "reward")
    score = _number(fields, "score") if "score" in names else reward
    if "truncated" in fields:
        _flag(fields, "truncated")
    if "success" in names:
        _flag(fields, "success")
    return StepResult(observation, reward, score, _flag(fields, "done" if "done" in names else "terminated"), fields)


def refusal(answer: Any) -> str | None:
    """The error text that a server sent instead of an answer; None if it did answer."""
    if isinstance(answer, dict) and (error := answer.get("error")) is not None:
        return shortened(error if isinstance(error, str) else _repr(error), MAX_FOREIGN) or "an error without words"
    return None


def _object(answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, dict):
        raise BadAnswer("an object", answer)
    return answer


def _required(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise BadAnswer(f"a field {name}", dict(fields))
    return fields[name]


def _number(fields: Mapping[str, Any], name: str) -> float:
    value = _required(fields, name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < LARGEST:
        raise BadAnswer(f"a finite number in {name}", value)
    return float(value)


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = _required(fields, name)
    if not isinstance(value, bool):
        raise BadAnswer(f"true or false in {name}", value)
    return value


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except RecursionError:  # the value could only just be parsed
        return f"a {type(value).__name__} of too many levels"
