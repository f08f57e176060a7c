"""AgentGym's protocol (arXiv 2406.04151) as data: the routes and field names of each environment.

Client and server both read this table. All bodies and answers are JSON; an instance is identified by a small number,
its handle. Three families of environments use different field names and report errors differently, see `Errors`.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Literal

from agentrl_jax.service_names import text_service
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
    "terminated" are other names for observation and done; "id" and "env_idx" are the handle; "deleted" is
    false, and so is "truncated" if `StepResult.info` does not have it. Any other field is taken from `StepResult.info`,
    or null if missing there.

    Attributes:
        title: name in the answer of the health route; empty for servers that answer `ok`.
        handle: name of the handle in bodies and queries.
        create_body: fields of the body of /create, by name, and whether the server requires them; None for no body.
        create_fields: fields of the answer to /create; empty for the handle as a bare number.
        item_field: name of the item number in the body of /reset.
        reset_body: further fields of that body.
        reset_answer: "object" with `reset_fields`, "pair" for [observation, null], or "text".
        step_variants: further routes that play an action by the method of the same name, and their answers' fields.
        post_views: methods of the environment, without arguments, whose JSON results are answered to a POST.
        screenshot: method and route that give a picture of an instance; None if there is none.
        fetches_observation: the observation of a reset is fetched from /observation instead.
        shown_fields: fields of a reset's answer that the agent is shown before the observation, one per line.
        actions_field: field of a reset's answer that lists the available actions, shown after the observation.
        cumulative_score: the score of a step is that of the whole episode, which AgentGym uses as the reward.
        best_reward: the reward of a step is the best one of the episode so far; the last step of `todo` may lower it.
        final_reward_only: only the reward of the last answer counts.
        create_starts_episode: /create starts an episode, on the item with the number of the handle.
        has_close: AgentGym's server has the route /close.
        steps_after_done: AgentGym's server plays steps after the end of an episode.
    """

    title: str = ""
    prefix: str = ""
    handle: Literal["id", "env_idx"] = "id"
    create_body: Mapping[str, bool] | None = None
    create_fields: tuple[str, ...] = ()
    item_field: str = "data_idx"
    reset_body: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reset_answer: Literal["object", "pair", "text"] = "object"
    reset_fields: tuple[str, ...] = ("observation",)
    step_fields: tuple[str, ...] = ("observation", "reward", "done")
    step_variants: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    post_views: tuple[str, ...] = ()
    screenshot: tuple[Literal["GET", "POST"], str] | None = None
    fetches_observation: bool = False
    shown_fields: tuple[str, ...] = ()
    actions_field: str = ""
    cumulative_score: bool = False
    best_reward: bool = False
    final_reward_only: bool = False
    create_starts_episode: bool = False
    has_close: bool = True
    steps_after_done: bool = False
    errors: Errors = Errors.PAYLOAD

    def first_result(self, answer: StepResult) -> StepResult:
        """What an agent is shown first: a reset's answer with `shown_fields` and `actions_field` added to its text."""
        lines = [*(str(answer.info[name]) for name in self.shown_fields if name in answer.info), answer.observation]
        actions = answer.info.get(self.actions_field)
        if isinstance(actions, list):
            lines.append(f"AVAILABLE ACTIONS: {','.join(map(str, actions))}")
        return dataclasses.replace(answer, observation="\n".join(lines))

    def answer_fields(self, names: tuple[str, ...], handle: int, answer: StepResult) -> dict[str, Any]:
        """The given fields of an answer, as sent on these routes."""
        known: dict[str, Any] = {
            **dict.fromkeys(("id", "env_idx"), handle),
            **dict.fromkeys(("observation", "state"), answer.observation),
            **dict.fromkeys(("done", "terminated"), answer.done),
            "truncated": answer.info.get("truncated", False),
            "deleted": False,
            **{"reward": answer.reward, "score": answer.score},
        }
        return {name: known[name] if name in known else answer.info.get(name) for name in names}


SCORED = ("observation", "reward", "score", "done")
_TOOL = RouteSpec(
    handle="env_idx",
    create_body={"id": True},
    item_field="id",
    reset_answer="text",
    fetches_observation=True,
    has_close=False,
    steps_after_done=True,
    errors=Errors.STATUS,
)
_SQLGYM = dataclasses.replace(
    _TOOL,
    create_body=None,
    item_field="item_id",
    reset_answer="pair",
    step_fields=("state", "reward", "done", "info"),
    fetches_observation=False,
)
LMRL = RouteSpec(title="LMRL-Gym", create_fields=("id",), item_field="game", has_close=False)
"""The games of LMRL-Gym."""

COMPILED = RouteSpec(
    create_fields=("id",),
    reset_fields=(*SCORED, "deleted"),
    step_fields=(*SCORED, "success", "truncated"),
    cumulative_score=True,
)
"""Our environments that AgentGym does not have: like its BabyAI, with additional fields for success and truncation."""

REMOTE_ROUTES: Mapping[str, RouteSpec] = {
    "alfworld": RouteSpec(
        title="AlfWorld",
        create_fields=("id",),
        item_field="game",
        reset_body={"world_type": "Text"},
        reset_fields=("id", "observation", "available_actions", "task_type"),
        actions_field="available_actions",
        step_fields=("observation", "reward", "available_actions", "done"),
        has_close=False,
    ),
    "searchqa": dataclasses.replace(_TOOL, step_fields=("observation", "reward", "done", "info"), has_close=True),
    "webshop": dataclasses.replace(_SQLGYM, item_field="session_id", fetches_observation=True),
    "sqlgym": _SQLGYM,
    "webarena": RouteSpec(
        handle="env_idx",
        create_fields=("env_idx",),
        item_field="idx",
        reset_body={"seed": 0},
        reset_fields=("observation", "sites", "object"),
        step_fields=("observation", "reward", "terminated", "truncated", "info"),
        screenshot=("GET", "observation_metadata"),
        fetches_observation=True,
        final_reward_only=True,
        steps_after_done=True,
        errors=Errors.TEXT,
    ),
    **dict.fromkeys(("weather", "movie", "academia", "todo", "sheet"), dataclasses.replace(_TOOL, best_reward=True)),
}
"""Of the environments that are played on AgentGym's servers only, by its names; others have folders of their own."""


def routes_of(name: str) -> RouteSpec:
    """The routes of an environment; `COMPILED` under its name if AgentGym does not have it."""
    if own := text_service(name, "protocol"):
        found: RouteSpec = own.ROUTES
        return found
    return REMOTE_ROUTES.get(name) or dataclasses.replace(COMPILED, title=name)
