"""The context of a run's agent."""

from collections.abc import Iterable

from agentrl_jax.config import Config
from agentrl_jax.errors import UserError
from agentrl_jax.rollout.contexts import FULL, Context, Window
from agentrl_jax.rollout.engine_config import EngineConfig
from agentrl_jax.text.prompt import Prompt


def context_of(config: Config) -> Context:
    """The rule that `agent` names."""
    return Window(config.agent.limit) if config.agent.limit else FULL


def check_window(engine: EngineConfig, prompts: Iterable[Prompt]) -> None:
    """Refuses prompts whose later messages cannot follow the prefix directly, as in a window of several turns.

    Raises:
        UserError: the chat template writes the first user message of a conversation otherwise than later ones.
    """
    if engine.bounds.never_restarts or engine.context.fresh:
        return
    for prompt in prompts:
        if any(part.when == "first" and part.pieces for part in prompt.message_parts):
            raise UserError.of(
                "agent.kind",
                "window",
                "but the chat template writes the first user message otherwise than later ones, which a window begins "
                "with; use prompt.style chat or ragen, or agent full",
            )
