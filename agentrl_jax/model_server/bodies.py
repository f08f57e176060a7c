"""Bodies of requests and answers, after OpenAI's API and vLLM's additions (`return_token_ids`).

A field that would change the answer and is not supported is refused, unless it has the value that changes nothing.
"""

import bisect
import json
import math
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl_jax.errors import BadValue
from agentrl_jax.model_server.sampler import Sampled
from agentrl_jax.text.conversation import SampledResponse, Turn
from agentrl_jax.text.tokenizer import Tokenizer

MAX_CHOICES = 64
"""Maximum number of responses to one prompt."""

MAX_STOPS = 4
"""Maximum number of texts that end a response, as in OpenAI's API."""

_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    # OpenAI's API.
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (False, True),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    # vLLM, SGLang and llama.cpp; these are their defaults.
    "min_p": (0,),
    "repetition_penalty": (1,),
    "repeat_penalty": (1,),
    "length_penalty": (1,),
    "typical_p": (1,),
    "mirostat": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (False, True),
    "add_special_tokens": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template_kwargs": ({},),
}
"""Fields that are refused, and their values that change nothing; null changes nothing either."""

_IGNORED = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "request_id"),
    *("prompt_cache_key", "prompt_cache_retention", "cache_prompt", "cache_salt", "priority"),
)
"""Fields that concern the sender, or how fast the answer comes."""

Token = Annotated[int, Field(ge=0, lt=2**31)]


class ContentPart(BaseModel):
    """One part of a message; only text is understood."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class MessageBody(BaseModel):
    """A message. `token_ids` are those of an earlier response as it was sampled here, instead of its text.

    Further fields, such as the refusal and the annotations of an answer that is sent back, do not reach the model.
    """

    model_config = ConfigDict(extra="ignore")
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart] | None = None
    token_ids: list[Token] | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None

    @model_validator(mode="after")
    def _without_calls(self) -> "MessageBody":
        """The model would read a message without its calls, which often are all that it says."""
        for name in ("tool_calls", "function_call"):
            if getattr(self, name):
                raise BadValue(
                    f"{name} of a message is not supported; leave it out, and write the call as content", key=name
                )
        return self


class StreamOptions(BaseModel):
    """What else a stream has."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    continuous_usage_stats: Literal[False] = False
    include_obfuscation: bool = False
    """Padding of events, which has no effect: a response comes whole."""


class Sampling(BaseModel):
    """The fields that both kinds of request have."""

    model_config = ConfigDict(extra="forbid")
    model: str = ""
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] = 1.0
    top_p: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] = 0
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | list[str] | None = None
    return_token_ids: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_effect(cls, data: Any) -> Any:
        """Drops null, fields of the sender and values that change nothing; names an unsupported field."""
        if not isinstance(data, dict):
            return data
        kept = {}
        for name, value in data.items():
            if value is None or name in _IGNORED:
                continue
            if name in _WITHOUT_EFFECT:
                if value in _WITHOUT_EFFECT[name]:
                    continue
                expected = " or ".join(map(json.dumps, _WITHOUT_EFFECT[name]))
                raise BadValue.of(name, value, f"which is not supported; expected {expected}, or leave it out")
            kept[name] = value
        return kept

    @model_validator(mode="after")
    def _check_stops(self) -> "Sampling":
        if len(self.stops) > MAX_STOPS or "" in self.stops:
            raise BadValue(
                f"stop has {len(self.stops)} texts, expected at most {MAX_STOPS}, none of them empty",
                key="stop",
                value=len(self.stops),
            )
        if self.stream_options is not None and not self.stream:
            raise BadValue("stream_options need stream; set it to true, or leave them out", key="stream_options")
        return self

    @property
    def stops(self) -> list[str]:
        """Texts that end a response."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class ChatBody(Sampling):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[MessageBody], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False

    def turns(self, tokenizer: Tokenizer) -> list[Turn]:
        """The conversation; `ValueError` for token ids outside of the vocabulary, or of a message not sampled."""
        return [_turn(message, tokenizer) for message in self.messages]


class CompletionBody(Sampling):
    """The body of /v1/completions; `prompt` is text without special tokens, or token ids, or a list of either."""

    prompt: str | Annotated[list[Token] | list[str] | list[list[Token]], Field(min_length=1)]
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None

    def prompts(self, tokenizer: Tokenizer) -> list[list[int]]:
        """The tokens of each prompt; `ValueError` for one without tokens, or ids outside of the vocabulary."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        given: list[Any] = [self.prompt] if one else list(self.prompt)
        found = [tokenizer.encode(each) if isinstance(each, str) else each for each in given]
        for number, ids in enumerate(found):
            if not ids:
                raise BadValue.of(f"prompt {number}", given[number], "which has no token; expected at least one")
            check_ids(ids, tokenizer)
        return found


def _turn(message: MessageBody, tokenizer: Tokenizer) -> Turn:
    role = "system" if message.role == "developer" else message.role
    if message.token_ids is not None:
        if role != "assistant" or not message.token_ids:
            raise BadValue(
                f"token_ids of a message of the {role}; expected those of an assistant's, at least one",
                key="token_ids",
                value=role,
            )
        check_ids(message.token_ids, tokenizer)
        ids = tuple(message.token_ids)
        return role, SampledResponse(ids, ended=ids[-1] in tokenizer.stop_ids)
    if isinstance(message.content, list):
        return role, "".join(part.text for part in message.content)
    return role, message.content or ""


def check_ids(ids: Sequence[int], tokenizer: Tokenizer) -> None:
    """Refuses ids that are not in the vocabulary with a `ValueError`."""
    if max(ids) >= tokenizer.vocab_size:
        raise BadValue.of("token id", max(ids), f"expected ids below {tokenizer.vocab_size}")


class Choice(NamedTuple):
    """A response as it is answered: with `opening`, cut before a stop text, with the tokens that are left."""

    text: str
    tokens: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]


def choice_of(sampled: Sampled, tokenizer: Tokenizer, opening: str, stops: Sequence[str]) -> Choice:
    """The answer that a sampled response gives; special tokens are no part of its text.

    A stop text in the response itself ends it, and the tokens up to the end of that text are kept.
    """
    text = tokenizer.decode(sampled.tokens)
    found = [position for stop in stops if (position := text.find(stop)) >= 0]
    if not found:
        return Choice(opening + text, sampled.tokens, sampled.logprobs, "stop" if sampled.ended else "length")

    def holds(count: int) -> bool:
        beginning = tokenizer.decode(sampled.tokens[:count])
        return any(stop in beginning for stop in stops)

    # By bisection: a text that a beginning holds is in every longer one.
    kept = bisect.bisect_left(range(len(sampled.tokens)), True, key=holds)
    return Choice(opening + text[: min(found)], sampled.tokens[:kept], sampled.logprobs[:kept], "stop")


def check_logprobs(sampled: Sampled) -> None:
    """Refuses a response whose logits were not finite with a `ValueError`: its tokens mean nothing."""
    for number, logprob in enumerate(sampled.logprobs):
        if not math.isfinite(logprob):
            raise BadValue(
                f"the model's logits for token {number} of the response are not finite; use other weights",
                key="logits",
                value=number,
            )


def usage(prompts: Sequence[Sequence[int]], choices: Sequence[Choice]) -> dict[str, int]:
    """Numbers of tokens; a prompt counts once."""
    prompt, completion = sum(map(len, prompts)), sum(len(choice.tokens) for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def chat_answer(
    body: ChatBody, model: str, prompt: list[int], choices: Sequence[Choice], tokenizer: Tokenizer
) -> dict[str, Any]:
    """The answer of /v1/chat/completions."""
    answer = _answer("chat.completion", "chatcmpl", model, [prompt], choices)
    answer["choices"] = [
        {
            "index": index,
            "message": {"role": "assistant", "content": choice.text},
            "finish_reason": choice.finish_reason,
            "logprobs": {"content": _token_logprobs(choice, tokenizer)} if body.logprobs else None,
            **({"token_ids": choice.tokens} if body.return_token_ids else {}),
        }
        for index, choice in enumerate(choices)
    ]
    return answer | ({"prompt_token_ids": prompt} if body.return_token_ids else {})


def completion_answer(
    body: CompletionBody, model: str, prompts: list[list[int]], choices: Sequence[Choice], tokenizer: Tokenizer
) -> dict[str, Any]:
    """The answer of /v1/completions; the choices of the first prompt come first."""
    answer = _answer("text_completion", "cmpl", model, prompts, choices)
    answer["choices"] = [
        {
            "index": index,
            "text": choice.text,
            "finish_reason": choice.finish_reason,
            "logprobs": None
            if body.logprobs is None
            else {
                "tokens": [tokenizer.decode([token], skip_special=False) for token in choice.tokens],
                "token_logprobs": choice.logprobs,
            },
            **(
                {"token_ids": choice.tokens, "prompt_token_ids": prompts[index // body.n]}
                if body.return_token_ids
                else {}
            ),
        }
        for index, choice in enumerate(choices)
    ]
    return answer


def events(answer: dict[str, Any], *, include_usage: bool) -> list[dict[str, Any]]:
    """An answer as the data of the events of a stream: each choice whole, then its end, and at last the usage."""
    chat = answer["object"] == "chat.completion"
    head: dict[str, Any] = {
        name: answer[name] for name in ("id", "created", "model", "system_fingerprint") if name in answer
    }
    head["object"] = "chat.completion.chunk" if chat else answer["object"]
    found: list[dict[str, Any]] = []
    for choice in answer["choices"]:
        whole = {name: value for name, value in choice.items() if name != "message"} | {"finish_reason": None}
        if chat:
            whole["delta"] = choice["message"]
        nothing: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        end = {"index": choice["index"], **nothing, "logprobs": None, "finish_reason": choice["finish_reason"]}
        found += [{**head, "choices": [whole]}, {**head, "choices": [end]}]
    if "prompt_token_ids" in answer:
        found[0]["prompt_token_ids"] = answer["prompt_token_ids"]
    if include_usage:
        found = [event | {"usage": None} for event in found]
        found.append({**head, "choices": [], "usage": answer["usage"]})
    return found


def _answer(kind: str, prefix: str, model: str, prompts: list[list[int]], choices: Sequence[Choice]) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "usage": usage(prompts, choices),
    }


def _token_logprobs(choice: Choice, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    return [
        {
            "token": tokenizer.decode([token], skip_special=False),
            "logprob": logprob,
            "bytes": list(tokenizer.decode_bytes([token])),
            "top_logprobs": [],
        }
        for token, logprob in zip(choice.tokens, choice.logprobs)
    ]
