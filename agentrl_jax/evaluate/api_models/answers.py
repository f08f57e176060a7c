"""Reads the answers of /chat/completions, of OpenAI and of servers that follow it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from agentrl_jax.errors import MAX_FOREIGN, shortened
from agentrl_jax.strict_json import finite

Finish = Literal["stop", "length", "refusal"]
"""How a reply ended: by itself, cut by a limit of tokens, or withheld by the model or its provider."""

_LENGTH = ("length", "max_tokens", "model_length")
_REFUSED = (
    *("content_filter", "refusal", "safety"),
    *("blocklist", "image_safety", "prohibited_content", "recitation", "spii"),  # Gemini
    "sensitive",  # GLM
)
_REFUSAL_CODES = ("content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation", "invalid_prompt")
_QUOTA_CODES = ("insufficient_quota", "billing_hard_limit_reached")
_ABORTED = ("abort", "error", "insufficient_system_resource", "network_error")
"""vLLM, DeepSeek and GLM end a reply so, with status 200 and its beginning, if something has failed."""
_WITHOUT_MESSAGE = ("tool_calls", "function_call", "malformed_function_call", "function_call_filter")
"""Gemini ends a reply so without any message."""
_TOO_LONG_CODES = ("context_length_exceeded", "exceed_context_size_error", "1261")  # the last of GLM
_TOO_LONG = (
    "maximum context length",  # OpenAI, vLLM, llama-cpp-python, Mistral
    "longer than the maximum model length",  # vLLM
    "exceeds the available context size",  # llama-server of llama.cpp
    "longer than the model's context length",  # SGLang
    "prompt is too long",  # Anthropic
    "exceeds the maximum number of tokens",  # Gemini
    "context length of only",  # LM Studio
    "`inputs` must have less than",  # Text Generation Inference, and the next
    "`max_new_tokens` must be <=",
    "maximum prompt length is",  # xAI, and the next
    "[input_too_large]",
    "exceeded model token limit",  # Moonshot, and the next
    "model max length exceeded",
    "input is too long for requested model",  # Bedrock
    "prompt exceeds max length",  # GLM
    "request too large for model",  # Groq, and OpenAI with status 429: longer than all tokens of a minute
    "exceeds the context window",  # OpenAI's models behind other servers
    "context window exceeds limit",  # MiniMax
)


class BadReply(ValueError):
    """The answer is not what the API promises, for example because it was cut; another attempt may go better."""


class NoReply(BadReply):
    """The answer is whole, but has no reply."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """A reply of a model, or why there is none. Numbers of tokens are null where the server does not give them.

    Attributes:
        text: what the agent says; empty also where it has only called tools or thought, which is a turn without action.
        reasoning: what the model thought before, where the server gives it apart (`reasoning_content`).
        refusal: why there is no reply, in the words of the server.
        model: name of the model that replied, as the server gives it.
        prompt_token_ids: tokens that the model has read, if asked for and given (vLLM, `agentrl serve-model`).
        token_ids: tokens that the model has sampled, likewise.
        logprobs: text and log-probability of each sampled token, if asked for (`logprobs`) and given.
    """

    text: str
    finish: Finish
    reasoning: str = ""
    refusal: str = ""
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[list[Any]] | None = None


def read_reply(answer: Any) -> Reply:
    """The reply in an answer of status 200; `BadReply` if there is none."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise NoReply(f"the answer has no choices: {shortened(answer, 200)}")
    choice = choices[0]
    # Gemini writes SAFETY, and behind some proxies content_filter: SAFETY.
    reason = _text(choice.get("finish_reason")).lower().partition(":")[0].strip()
    message = choice.get("message")
    if message is None and reason in (*_WITHOUT_MESSAGE, *_LENGTH, *_REFUSED):
        message = {}
    if not isinstance(message, dict):
        raise NoReply(f"the answer has no message: {shortened(choice, 200)}")
    if reason in _ABORTED:
        raise BadReply(f"the server broke the reply off: finish_reason is {reason}")
    refusal = _text(message.get("refusal"))
    finish: Finish = "stop"
    if reason in _LENGTH:
        finish = "length"
    elif refusal or reason in _REFUSED:
        finish = "refusal"
    usage = _mapping(answer.get("usage"))
    of_completion, of_prompt = (_mapping(usage.get(f"{kind}_tokens_details")) for kind in ("completion", "prompt"))
    return Reply(
        text=_text(message.get("content")),
        finish=finish,
        reasoning=_text(message.get("reasoning_content")) or _text(message.get("reasoning")),
        refusal=refusal,
        model=shortened(_text(answer.get("model"))),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        reasoning_tokens=_count(of_completion.get("reasoning_tokens")),
        cached_tokens=_count(of_prompt.get("cached_tokens")),
        prompt_token_ids=_ids(answer.get("prompt_token_ids")),
        token_ids=_ids(choice.get("token_ids")),
        logprobs=_logprobs(_mapping(choice.get("logprobs")).get("content")),
    )


def without_thought(text: str) -> str:
    """What is said after a thought at the start, which servers without a parser for it leave in the text.

    Where the template has opened the thought, the text only closes it.
    """
    thought, closing, said = text.partition("</think>")
    at_start = thought.lstrip().startswith("<think>") or "<think>" not in thought
    return said if closing and at_start else text


def reply_of_error(status: int, answer: Any) -> Reply | None:
    """The reply that an error stands for: the conversation was too long, or the provider filtered it; else None."""
    if status not in (400, 403, 413, 422, 429):
        return None
    error = error_of(answer)
    code, text = str(error.get("code", "")), _text(error.get("message"))
    # llama-server has the reason as `type`, and the status as `code`.
    too_long = status == 413 or code in _TOO_LONG_CODES or error.get("type") in _TOO_LONG_CODES
    if too_long or any(words in text.lower() for words in _TOO_LONG):
        return Reply(text="", finish="length", refusal=shortened(text, MAX_FOREIGN))
    if code in _REFUSAL_CODES:
        return Reply(text="", finish="refusal", refusal=shortened(text, MAX_FOREIGN))
    return None


def out_of_quota(answer: Any) -> bool:
    """Whether an error says that the account has no money left, which no later attempt changes."""
    return str(error_of(answer).get("code", "")) in _QUOTA_CODES


def invalid_field(status: int, answer: Any) -> bool:
    """Whether a status 500 stands for an invalid field, which llama-cpp-python answers so; no attempt changes it."""
    return status == 500 and "validation error" in _text(error_of(answer).get("message"))


def error_of(answer: Any) -> Mapping[str, Any]:
    """The object `error` of an answer; its `message` is the text if a server sends only text.

    Gemini sends a list with one answer. SGLang and older versions of vLLM send the error without an object around it.
    """
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if not isinstance(answer, dict):
        return {}
    error = answer.get("error", answer.get("detail"))
    if error is None and isinstance(answer.get("message"), str):
        return answer
    return error if isinstance(error, dict) else {"message": error} if isinstance(error, str) else {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    """A text, or the texts of its parts; empty for anything else. Half of a character (a lone surrogate) becomes ?."""
    if isinstance(value, list):
        value = "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None


def _logprobs(value: Any) -> list[list[Any]] | None:
    """Texts and log-probabilities of tokens; None unless all are usable."""
    entries = [_mapping(entry) for entry in value] if isinstance(value, list) else []
    pairs = [[_text(entry.get("token")), entry.get("logprob")] for entry in entries]
    usable = all(isinstance(number, int | float) and finite(number) is not None for _, number in pairs)
    return pairs if pairs and usable else None


def _ids(value: Any) -> list[int] | None:
    usable = isinstance(value, list) and all(type(token) is int and 0 <= token < 2**31 for token in value)
    return value if usable else None
