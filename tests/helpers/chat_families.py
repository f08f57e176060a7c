"""Chat templates that behave like those of the model families, written independently, in `chat_templates`."""

import functools
from pathlib import Path

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from agentrl_jax.text import tokenizer
from agentrl_jax.text.chat_template import ChatTemplate
from agentrl_jax.text.tokenizer_settings import TokenizerSettings

CHATML_TOKENS = {"eos_token": "<|im_end|>"}
LLAMA_TOKENS = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
SENTENCE_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
_VARIABLES = {
    **dict.fromkeys(("chatml", "chatml with default", "qwen3", "reasoner", "always thinks"), CHATML_TOKENS),
    **dict.fromkeys(("llama3", "llama3.1", "llama3.2"), LLAMA_TOKENS),
    **dict.fromkeys(("llama2", "mistral", "mistral v3", "mistral v7"), SENTENCE_TOKENS),
}
_FOLDER = Path(__file__).with_name("chat_templates")
FAMILIES = {
    name: ((_FOLDER / f"{name.replace(' ', '_')}.jinja").read_text(encoding="utf-8"), variables)
    for name, variables in _VARIABLES.items()
}
"""By name: the template, and the special tokens that it may use."""

SPECIALS = (
    *("<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<|eom_id|>", "<|end_of_text|>", "<s>", "</s>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]"),
)

NO_SYSTEM = ("mistral", "mistral v3")
PLAIN = ("chatml", "chatml with default", "llama3", "llama3.1", "llama3.2", "llama2", "mistral", "mistral v7")
"""Families whose templates never rewrite earlier messages."""
CASES = [(name, None) for name in FAMILIES] + [("qwen3", True), ("qwen3", False)]


def backend() -> Backend:
    made = Backend.from_str(tokenizer.load_small().backend.to_str())
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    return made


def with_template(source: str, variables=CHATML_TOKENS, made: Backend | None = None) -> tokenizer.Tokenizer:
    settings = TokenizerSettings(ChatTemplate(source, tuple(variables.items())), eos=variables.get("eos_token"))
    return tokenizer.from_json((made or backend()).to_str(), settings=settings)


@functools.cache
def family(name: str) -> tokenizer.Tokenizer:
    return with_template(*FAMILIES[name])


@functools.cache
def upstream(name):
    transformers = pytest.importorskip("transformers")
    source, variables = FAMILIES[name]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend(), chat_template=source, **variables)


def as_spoken(messages):
    return [{"role": role, "content": content} for role, content in messages]
