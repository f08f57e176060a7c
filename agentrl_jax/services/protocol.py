"""AgentGym's protocol (arXiv 2406.04151) as data: how each of its environments names things on the routes.

Client and server both read this table. All bodies and answers are JSON; an instance is known by a small number, its
handle. Three families name it differently, and say differently that something went wrong; `Errors` tells how.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Literal

from agentrl_jax.services.environment import StepResult


class Errors(enum.Enum):
    """What an answer looks like when a request could not be met."""

    PAYLOAD = "payload"
    """Status 200 and {"error": text} in place of everything else."""
    STATUS = "status"
    """A status above 399."""
    TEXT = "text"
    """Status 200 and the text in place of the observation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouteSpec:
    """How one environment is talked to.

    Answers name their fields: "observation", "reward", "score" and "done" are those of a `StepResult`, "state" is the
    observation and "terminated" is done under other names, "id" and "env_idx" the handle, "deleted" and "truncated" are
    false, and any other is taken from `StepResult.info`, null where that lacks it.

    Attributes:
        title: as its health route spells it; empty for the routes that answer `ok`.
        prefix: of all routes.
        handle: name of the handle in bodies and queries.
        create: what the body of /create holds, by name and whether the server insists on it; None for no body.
        created: fields of its answer; empty for the handle as a bare number.
        item: name of the item's number in the body of /reset.
        reset: what else that body holds.
        reset_answer: "object" with the fields `reset_fields`, "pair" for [observation, null], or "text".
        reset_fields: see there.
        step_fields: fields of the answer to /step.
        plays: fields of the answers of further routes that play an action, each by a method of its name.
        observes: the observation of a reset or a step is fetched from /observation instead.
        shown: in front of the observation of a reset, the fields of it that the agent is shown, a line each.
        listed: behind the observation of a reset, the field of it that lists what the agent may do.
        cumulative: the score of a step is that of the whole episode, which AgentGym takes for the reward.
        final: a reward counts in the last answer only.
        opens: /create starts an episode, on the item with the number of the handle.
        closes: AgentGym's server knows /close.
        goes_on: AgentGym's server plays steps behind the end of an episode.
        errors: what refusals look like.
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
        """What an agent is shown first: the answer to a reset, with the fields `shown` and `listed` in its text."""
        lines = [*(str(answer.info[name]) for name in self.shown if name in answer.info), answer.observation]
        actions = answer.info.get(self.listed)
        if isinstance(actions, list):
            lines.append(f"AVAILABLE ACTIONS: {','.join(map(str, actions))}")
        return dataclasses.replace(answer, observation="\n".join(lines))

    def fields(self, names: tuple[str, ...], handle: int, answer: StepResult) -> dict[str, Any]:
        """The fields of an answer on the routes."""
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
"""Environments of ours that AgentGym does not have: as BabyAI, and told whether they are solved."""

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
"""By AgentGym's names."""


def wire_of(name: str) -> RouteSpec:
    """The routes of an environment; of one that AgentGym does not have, `COMPILED` under its name."""
    return ROUTES.get(name) or dataclasses.replace(COMPILED, title=name)
