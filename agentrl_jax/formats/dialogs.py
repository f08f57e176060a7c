"""The texts of recorded episodes: what was read before each response, and the response."""

import dataclasses

from agentrl_jax.config import PromptConfig
from agentrl_jax.formats.messages import MessageFormat
from agentrl_jax.rollout.contexts import Context
from agentrl_jax.runs.rollout_records import RolloutRecord
from agentrl_jax.setup.served_task import OPENINGS
from agentrl_jax.text.chat import chat_format
from agentrl_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Dialog:
    """The texts of one episode."""

    system: str | None
    """The system message; None without one."""
    messages: tuple[str, ...]
    """The user message before each response."""
    responses: tuple[str, ...]
    """The responses as `episodes.Turn.response` has them."""
    unanswered: str | None
    """As `episodes.Episode.unanswered`."""


def message_format(prompt: PromptConfig, tokenizer: Tokenizer) -> MessageFormat:
    """The text around the messages of a run."""
    chat = chat_format(tokenizer, prompt.thinks)
    opening = OPENINGS[prompt.think]
    if prompt.has_answer_block:
        opening = "<think>" if prompt.think else "<answer>"
    return MessageFormat(chat, (opening,) if prompt.forced_tag else ())


def read_dialog(record: RolloutRecord, row: int, tokenizer: Tokenizer, form: MessageFormat, context: Context) -> Dialog:
    """The texts of row `row`, whose messages joined as `context` says."""
    prompt = record.prompt[row, : record.prompt_length[row]].tolist()
    system, messages, responses = None, [], []
    for t in range(record.num_turns[row]):
        read = record.observation[row, t, : record.observation_length[row, t]].tolist()
        if t == 0 or context.fresh:
            found, message, opening = form.first(tokenizer.decode([*prompt, *read], skip_special=False))
            system = found if t == 0 else system
        else:
            message, opening = form.later(tokenizer.decode(read, skip_special=False))
        tokens = record.tokens[row, t, : record.length[row, t]].tolist()
        shown = tokens[:-1] if ended(tokens, tokenizer) else tokens
        messages.append(message)
        responses.append(opening + tokenizer.decode(shown, skip_special=False))
    last = record.final_observation[row, : record.final_observation_length[row]].tolist()
    unanswered = None
    if last and not context.fresh:
        unanswered = form.later(tokenizer.decode(last, skip_special=False))[0]
    elif last:
        unanswered = form.first(tokenizer.decode([*prompt, *last], skip_special=False))[1]
    return Dialog(system, tuple(messages), tuple(responses), unanswered)


def ended(tokens: list[int], tokenizer: Tokenizer) -> bool:
    """Whether the sampled tokens of a response end with one that ends a response."""
    return bool(tokens) and tokens[-1] in tokenizer.stop_ids
