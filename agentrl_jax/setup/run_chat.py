"""The conversations that the policy of a run was trained on, for those who talk with it by messages."""

import dataclasses

from agentrl_jax.config import Config
from agentrl_jax.services.catalog import get_service
from agentrl_jax.setup.served_task import OPENINGS
from agentrl_jax.text.chat import Chat, chat_format
from agentrl_jax.text.tokenizer import Tokenizer


def run_chat(config: Config, tokenizer: Tokenizer) -> Chat:
    """The chat format of a run's prompts: those of style compact leave out the ends of messages if they may."""
    chat = chat_format(tokenizer, config.prompt.thinks)
    if config.prompt.style == "compact" and chat.ends_optional:
        chat = dataclasses.replace(chat, system_end=(), user_end=())
    return chat


def run_opening(config: Config, chat: Chat) -> str:
    """The text that the prompts of a run insert before every response, behind the header; may be empty.

    Raises:
        ValueError: the header starts a block that the run's response format does not start in.
    """
    prompt = config.prompt
    if not config.prompt.has_answer_block:  # of tasks of several kinds, those whose answers have tags
        marked = bool(config.tasks) and get_service(config.tasks[0].env).marked
        opening = OPENINGS[prompt.think] if prompt.forced_tag and marked else ""
        return "" if chat.opens(opening) else opening
    return "".join(map(str, chat.opening("<think>" if prompt.think else "<answer>", forced=prompt.forced_tag)))
