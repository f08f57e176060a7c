"""Chat templates that behave like those of the model families, written independently."""

import functools

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from agentrl_jax.text import tokenizer
from agentrl_jax.text.chat_template import ChatTemplate
from agentrl_jax.text.tokenizer_settings import TokenizerSettings

# fmt: off
_HEADER = "{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' }}"
CHATML = """
{%- for m in messages %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}
{%- endfor %}
""" + _HEADER

CHATML_WITH_DEFAULT = """
{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are a small model and glad to help.<|im_end|>\\n' }}
{%- endif %}""" + CHATML

# Drops the thoughts of earlier responses, gives the last one an empty think block, and supports responses without one.
QWEN3 = """
{%- set where = namespace(asked=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set where.asked = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- set said, thought = m.content, '' %}
    {%- if m.role == 'assistant' and '</think>' in said %}
        {%- set thought = said.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set said = said.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if m.role == 'assistant' and loop.index0 > where.asked %}
        {%- set said = '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + said.lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}
{%- endfor %}
""" + _HEADER + """
{%- if add_generation_prompt and enable_thinking is defined and not enable_thinking %}
    {{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
"""

_LLAMA3_TURN = "'<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>'"
_LLAMA3_HEADER = "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' if add_generation_prompt else '' }}"
LLAMA3 = f"""
{{%- for m in messages %}}
    {{%- set text = {_LLAMA3_TURN} %}}
    {{{{- (bos_token if loop.first else '') + text }}}}
{{%- endfor %}}
""" + _LLAMA3_HEADER

_LLAMA3_DATED = """
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' + date_string + '\\n\\n' }}
{%- if messages[0].role == 'system' %}
    {{- messages[0].content | trim }}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- '<|eot_id|>' }}
""" + f"{{%- for m in messages %}}{{{{- {_LLAMA3_TURN} }}}}{{% endfor %}}" + _LLAMA3_HEADER
LLAMA31 = "{% if date_string is not defined %}{% set date_string = '26 Jul 2024' %}{% endif %}" + _LLAMA3_DATED
LLAMA32 = LLAMA31.replace("'26 Jul 2024'", "strftime_now('%d %b %Y')")

# The system message goes into the first user message; every turn is a separate sequence.
LLAMA2 = """
{%- set lead = '' %}
{%- if messages[0].role == 'system' %}
    {%- set lead = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for m in messages %}
    {%- set said = (lead + m.content if loop.first else m.content).strip() %}
    {{- bos_token + '[INST] ' + said + ' [/INST]' if m.role == 'user' else ' ' + said + ' ' + eos_token }}
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
    {%- set said = (lead if lead is defined and loop.last else '') + m.content %}
    {{- '[INST] ' + said + '[/INST]' if m.role == 'user' else ' ' + m.content + eos_token }}
{%- endfor %}
"""

MISTRAL_V7 = """
{%- set lead = 'You are a model. Today is ' + strftime_now('%Y-%m-%d') + '.' %}
{%- if messages[0].role == 'system' %}
    {%- set lead = messages[0].content %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- bos_token + '[SYSTEM_PROMPT]' + lead + '[/SYSTEM_PROMPT]' }}"""
MISTRAL_V7 += _MISTRAL_TURNS.replace("[INST] ", "[INST]").replace(" [/INST]", "[/INST]")

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
""" + _HEADER

# fmt: on

LLAMA_TOKENS = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
CHATML_TOKENS = {"eos_token": "<|im_end|>"}
SENTENCE_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
_OF_CHATML = {
    "chatml": CHATML, "chatml with default": CHATML_WITH_DEFAULT, "qwen3": QWEN3, "reasoner": REASONER,
    "always thinks": ALWAYS_THINKS,
}  # fmt: skip
_OF_LLAMA = {"llama3": LLAMA3, "llama3.1": LLAMA31, "llama3.2": LLAMA32}
_OF_SENTENCES = {"llama2": LLAMA2, "mistral": MISTRAL, "mistral v3": MISTRAL_V3, "mistral v7": MISTRAL_V7}
FAMILIES = {
    **{name: (source, CHATML_TOKENS) for name, source in _OF_CHATML.items()},
    **{name: (source, LLAMA_TOKENS) for name, source in _OF_LLAMA.items()},
    **{name: (source, SENTENCE_TOKENS) for name, source in _OF_SENTENCES.items()},
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
    """The small tokenizer with the special tokens of all families."""
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
    """Messages as transformers takes them."""
    return [{"role": role, "content": content} for role, content in messages]
