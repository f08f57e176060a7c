"""AgentGym's protocol (arXiv 2406.04151) as data: the routes and field names of each environment.

Client and server both read this table. All bodies and answers are JSON; an instance is identified by a small number,
its handle. Three families of environments use different field names and report errors differently, see `Errors`.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Literal

from agentrl_jax.services.environment import StepResult


class Errors(enum.Enum):
    """How an answer reports that a request failed."""

    PAYLOAD = "payload"
    """Status 200 and {"error": text} instead of all other fields."""
    STATUS = "status"
    """A status code of 400 or more."""
    TEXT = "text"
    """Status 200 and the error text as the observation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouteSpec:
    """Routes and field names of one environment.

    Field names in answers: "observation", "reward", "score" and "done" are the fields of a `StepResult`; "state" and
    "terminated" are other names for observation and done; "id" and "env_idx" are the handle; "deleted" and "truncated"
    are false. Any other field is taken from `StepResult.info`, or null if missing there.

    Attributes:
        title: name in the answer of the health route; empty for servers that answer `ok`.
        prefix: prefix of all routes.
        handle: name of the handle in bodies and queries.
        create: fields of the body of /create, by name, and whether the server requires them; None for no body.
        created: fields of the answer to /create; empty for the handle as a bare number.
        item: name of the item number in the body of /reset.
        reset: further fields of that body.
        reset_answer: "object" with the fields `reset_fields`, "pair" for [observation, null], or "text".
        reset_fields: see `reset_answer`.
        step_fields: fields of the answer to /step.
        plays: further routes that play an action by the method of the same name, with the fields of their answers.
        observes: the observation of a reset or a step is fetched from /observation instead.
        shown: fields of a reset's answer that the agent is shown before the observation, one per line.
        listed: field of a reset's answer that lists the available actions, shown after the observation.
        cumulative: the score of a step is that of the whole episode, which AgentGym uses as the reward.
        final: only the reward of the last answer counts.
        opens: /create starts an episode, on the item with the number of the handle.
        closes: AgentGym's server has the route /close.
        goes_on: AgentGym's server plays steps after the end of an episode.
        errors: how errors are reported.
    """

    title: str = ""
    prefix: str = ""
    handle: Literal["id", "env_idx"] = "id"
    create: Mapping[str, bool] | None = None
    created: tuple[str, ...] = ()
    item: str = "data_idx"
    reset: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reset_answer: Literal["object", "pair", "text"] = "object"
    reset_fields: tuple[str, ...] = ("observation",)
    step_fields: tuple[str, ...] = ("observation", "reward", "done")
    plays: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    observes: bool = False
    shown: tuple[str, ...] = ()
    listed: str = ""
    cumulative: bool = False
    final: bool = False
    opens: bool = False
    closes: bool = True
    goes_on: bool = False
    errors: Errors = Errors.PAYLOAD

    def first(self, answer: StepResult) -> StepResult:
        """What an agent is shown first: a reset's answer with the fields `shown` and `listed` added to its text."""
        lines = [*(str(answer.info[name]) for name in self.shown if name in answer.info), answer.observation]
        actions = answer.info.get(self.listed)
        if isinstance(actions, list):
            lines.append(f"AVAILABLE ACTIONS: {','.join(map(str, actions))}")
        return dataclasses.replace(answer, observation="\n".join(lines))

    def fields(self, names: tuple[str, ...], handle: int, answer: StepResult) -> dict[str, Any]:
        """The given fields of an answer, as sent on these routes."""
        known = {
            "id": handle,
            "env_idx": handle,
            "observation": answer.observation,
            "state": answer.observation,
            "reward": answer.reward,
            "score": answer.score,
            "done": answer.done,
            "terminated": answer.done,
            "truncated": False,
            "deleted": False,
        }
        return {name: known[name] if name in known else answer.info.get(name) for name in names}


_SCORED = ("observation", "reward", "score", "done")
_TOOL = RouteSpec(
    handle="env_idx",
    create={"id": True},
    item="id",
    reset_answer="text",
    observes=True,
    closes=False,
    goes_on=True,
    errors=Errors.STATUS,
)
_LMRL = RouteSpec(title="LMRL-Gym", created=("id",), item="game", closes=False)

_BABYAI = RouteSpec(
    title="BabyAI", created=("id",), reset_fields=(*_SCORED, "deleted"), step_fields=_SCORED, cumulative=True
)

COMPILED = dataclasses.replace(_BABYAI, title="", step_fields=(*_SCORED, "success"))
"""Our environments that AgentGym does not have: like BabyAI, with an additional field for success."""

ROUTES: Mapping[str, RouteSpec] = {
    "babyai": _BABYAI,
    "textcraft": RouteSpec(
        title="TextCraft",
        create={"commands": False, "goal": False},
        created=("id", "observation", "done", "reward"),
        reset_fields=("id", "observation", "done", "reward"),
        opens=True,
        goes_on=True,
    ),
    "sciworld": RouteSpec(
        title="ScienceWorld",
        created=("id",),
        reset_fields=("task_name", "var_num", "task_description", *_SCORED, "deleted"),
        step_fields=_SCORED,
        plays={"step_visual": (*_SCORED, "info", "object_tree", "inventory", "moves")},
        shown=("task_description",),
        cumulative=True,
    ),
    "alfworld": RouteSpec(
        title="AlfWorld",
        created=("id",),
        item="game",
        reset={"world_type": "Text"},
        reset_fields=("id", "observation", "available_actions", "task_type"),
        listed="available_actions",
        step_fields=("observation", "reward", "available_actions", "done"),
        closes=False,
    ),
    "maze": dataclasses.replace(_LMRL, prefix="/maze"),
    "wordle": dataclasses.replace(_LMRL, prefix="/wordle", item="seed", reset_fields=("id", "observation")),
    "searchqa": dataclasses.replace(_TOOL, step_fields=("observation", "reward", "done", "info"), closes=True),
    "webshop": RouteSpec(
        handle="env_idx",
        item="session_id",
        reset_answer="pair",
        step_fields=("state", "reward", "done", "info"),
        observes=True,
        closes=False,
        goes_on=True,
        errors=Errors.STATUS,
    ),
    "sqlgym": RouteSpec(
        handle="env_idx",
        item="item_id",
        reset_answer="pair",
        step_fields=("state", "reward", "done", "info"),
        closes=False,
        goes_on=True,
        errors=Errors.STATUS,
    ),
    "webarena": RouteSpec(
        handle="env_idx",
        created=("env_idx",),
        item="idx",
        reset={"seed": 0},
        reset_fields=("observation", "sites", "object"),
        step_fields=("observation", "reward", "terminated", "truncated", "info"),
        observes=True,
        final=True,
        goes_on=True,
        errors=Errors.TEXT,
    ),
    **dict.fromkeys(("weather", "movie", "academia", "todo", "sheet"), _TOOL),
}
"""By AgentGym's names of the environments."""


def wire_of(name: str) -> RouteSpec:
    """The routes of an environment; `COMPILED` under its name if AgentGym does not have it."""
    return ROUTES.get(name) or dataclasses.replace(COMPILED, title=name)
