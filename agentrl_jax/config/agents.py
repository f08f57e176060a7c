"""What the model reads of an episode before each response: a union, discriminated by `kind`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from agentrl_jax.config.fields import Section
from agentrl_jax.errors import UserError


class _Context(Section):
    """What all kinds say of themselves."""

    kind: str

    @property
    def limit(self) -> int:
        """Turns of a context, the current one included; 0: all."""
        return 0

    @property
    def label(self) -> str:
        """The agent in a word."""
        return self.kind

    def visible(self, turns: int) -> int:
        """Turns that the longest context has, of so many in an episode."""
        return min(self.limit or turns, turns)


class FullContext(_Context):
    """The whole conversation."""

    kind: Literal["full"] = "full"


class SingleTurn(_Context):
    """The current turn alone, after the prompt."""

    kind: Literal["single_turn"] = "single_turn"

    @property
    def limit(self) -> int:
        """See `_Context.limit`."""
        return 1


class WindowContext(_Context):
    """The last turns, after the prompt; earlier ones are forgotten. The learner reads as many rows an episode as there
    are windows."""

    kind: Literal["window"] = "window"
    turns: Annotated[int, Field(ge=2, le=2**16)] = 2
    """Turns of a context, the current one included."""

    @property
    def limit(self) -> int:
        """See `_Context.limit`."""
        return self.turns

    @property
    def label(self) -> str:
        """See `_Context.label`."""
        return f"{self.kind}({self.turns})"


Agent = Annotated[FullContext | SingleTurn | WindowContext, Field(discriminator="kind")]

MOVED = {"rollout.context": "agent.kind"}
"""Keys of before by their names of today; they are still read."""


def with_agent(data: dict[str, Any]) -> dict[str, Any]:
    """A configuration whose `rollout.context`, as it was before, is its `agent`; an agent of one word is its kind.

    Raises:
        UserError: both are given.
    """
    rollout, agent = data.get("rollout"), data.get("agent")
    if isinstance(rollout, dict) and "context" in rollout:
        if agent is not None:
            why = "but agent, which it is called today, is given too; leave it out"
            raise UserError.of("rollout.context", rollout["context"], why)
        rest = {name: value for name, value in rollout.items() if name != "context"}
        agent = rollout["context"]
        data = {**data, "rollout": rest, "agent": agent}
    return {**data, "agent": {"kind": agent}} if isinstance(agent, str) else data
