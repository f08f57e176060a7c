"""Chat templates that behave like those of the model families, written independently."""

import dataclasses
import functools

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from agentrl_jax.text import tokenizer
from agentrl_jax.text.chat_template import ChatTemplate
from agentrl_jax.text.pieces import Special
from agentrl_jax.text.tokenizer_settings import TokenizerSettings

CHATML = """
{%- for m in messages %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

CHATML_WITH_DEFAULT = (
    """
{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are a small model and glad to help.<|im_end|>\\n' }}
{%- endif %}"""
    + CHATML
)

# Drops the thoughts of earlier responses, gives the last one an empty think block, and supports responses without one.
QWEN3 = """
{%- set where = namespace(asked=0) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set where.asked = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role != 'assistant' %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- else %}
        {%- set said, thought = m.content, '' %}
        {%- if '</think>' in said %}
            {%- set thought = said.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set said = said.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > where.asked %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + said.lstrip('\\n') }}
        {%- else %}
            {{- said }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

LLAMA3 = """
{%- for m in messages %}
    {%- set text = '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' %}
    {{- (bos_token if loop.first else '') + text }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

_LLAMA3_DATED = """
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' + date_string + '\\n\\n' }}
{%- if messages[0].role == 'system' %}
    {{- messages[0].content | trim }}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- '<|eot_id|>' }}
{%- for m in messages %}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
LLAMA31 = "{% if date_string is not defined %}{% set date_string = '26 Jul 2024' %}{% endif %}" + _LLAMA3_DATED
LLAMA32 = (
    "{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}" + _LLAMA3_DATED
)

# The system message goes into the first user message; every turn is a separate sequence.
LLAMA2 = """
{%- set lead = '' %}
{%- if messages[0].role == 'system' %}
    {%- set lead = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {%- set said = lead + m.content if loop.first else m.content %}
        {{- bos_token + '[INST] ' + said.strip() + ' [/INST]' }}
    {%- else %}
        {{- ' ' + m.content.strip() + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
"""

_MISTRAL_TURNS = """
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate: user, assistant, user') }}
    {%- endif %}
    {{- '[INST] ' + m.content + ' [/INST]' if m.role == 'user' else m.content + eos_token }}
{%- endfor %}
"""
MISTRAL = "{{ bos_token }}" + _MISTRAL_TURNS

# The system message goes into the current last user message; a response begins with a space.
MISTRAL_V3 = """
{%- if messages[0].role == 'system' %}
    {%- set lead = messages[0].content + '\\n\\n' %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {{- '[INST] ' + (lead if lead is defined and loop.last else '') + m.content + '[/INST]' }}
    {%- else %}
        {{- ' ' + m.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""

MISTRAL_V7 = """
{%- if messages[0].role == 'system' %}
    {%- set lead = messages[0].content %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set lead = 'You are a model. Today is ' + strftime_now('%Y-%m-%d') + '.' %}
{%- endif %}
{{- bos_token + '[SYSTEM_PROMPT]' + lead + '[/SYSTEM_PROMPT]' }}""" + _MISTRAL_TURNS.replace(
    "[INST] ", "[INST]"
).replace(" [/INST]", "[/INST]")

# Every response starts inside a think block that the template opens; thoughts of earlier responses are dropped.
REASONER = """
{%- for m in messages %}
    {%- set said = m.content.split('</think>')[-1] if m.role == 'assistant' else m.content %}
    {{- '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n<think>\\n' if add_generation_prompt else '' }}
"""

# Every response has a think block, earlier ones too, and it may be empty.
ALWAYS_THINKS = """
{%- for m in messages %}
    {%- set said = m.content %}
    {%- if m.role == 'assistant' %}
        {%- set thought = said.split('</think>')[0].split('<think>')[-1].strip() if '</think>' in said else '' %}
        {%- set said = '<think>\\n' + thought + '\\n</think>\\n\\n' + said.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' }}
"""

LLAMA_TOKENS = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
SENTENCE_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
FAMILIES = {
    "chatml": (CHATML, {"eos_token": "<|im_end|>"}),
    "chatml with default": (CHATML_WITH_DEFAULT, {"eos_token": "<|im_end|>"}),
    "qwen3": (QWEN3, {"eos_token": "<|im_end|>"}),
    "llama3": (LLAMA3, LLAMA_TOKENS),
    "llama3.1": (LLAMA31, LLAMA_TOKENS),
    "llama3.2": (LLAMA32, LLAMA_TOKENS),
    "llama2": (LLAMA2, SENTENCE_TOKENS),
    "mistral": (MISTRAL, SENTENCE_TOKENS),
    "mistral v3": (MISTRAL_V3, SENTENCE_TOKENS),
    "mistral v7": (MISTRAL_V7, SENTENCE_TOKENS),
    "reasoner": (REASONER, {"eos_token": "<|im_end|>"}),
    "always thinks": (ALWAYS_THINKS, {"eos_token": "<|im_end|>"}),
}
"""By name: the template, and the special tokens that it may use."""

SPECIALS = (
    *("<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<|eom_id|>", "<|end_of_text|>", "<s>", "</s>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
)
BRACKETS = ("[INST]", "[/INST]")


def backend(brackets: bool = True) -> Backend:
    """The small tokenizer with the special tokens of all families; those of `[INST]` only with `brackets`."""
    made = Backend.from_str(tokenizer.load_small().backend.to_str())
    names = SPECIALS + BRACKETS * brackets
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return made


def with_template(source: str, variables: dict[str, str], made: Backend | None = None) -> tokenizer.Tokenizer:
    """A tokenizer with a chat template."""
    template = ChatTemplate(source, tuple(variables.items()))
    settings = TokenizerSettings(template, eos=variables.get("eos_token"))
    return tokenizer.from_json((made or backend()).to_str(), settings=settings)


def family(name: str, **changes: object) -> tokenizer.Tokenizer:
    """Returns the tokenizer of a family; `changes` are fields of its template."""
    made = with_template(*FAMILIES[name])
    return dataclasses.replace(made, template=dataclasses.replace(made.template, **changes))


@functools.cache
def upstream(name):
    transformers = pytest.importorskip("transformers")
    source, variables = FAMILIES[name]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend(), chat_template=source, **variables)


def spelled(pieces):
    return "".join(piece.name if isinstance(piece, Special) else piece for piece in pieces)
