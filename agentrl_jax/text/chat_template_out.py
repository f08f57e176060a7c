"""Writes a chat format as a Jinja template, for models whose tokenizer has none."""

import json

from agentrl_jax.text.chat import Chat, Pieces
from agentrl_jax.text.pieces import Special

_TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role == "system" %}
        {{- OPEN_SYSTEM ~ message.content ~ SYSTEM_END }}
    {%- elif message.role == "user" %}
        {{- OPEN_USER if loop.first else FIRST_USER_HEADER if loop.previtem.role == "system" else USER_HEADER }}
        {{- message.content ~ USER_END }}
    {%- else %}
        {{- RESPONSE_HEADER ~ message.content ~ RESPONSE_END }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- RESPONSE_HEADER }}
{%- endif %}"""

_LAST_TURNS = """\
{%- set system = messages[:-1] | selectattr("role", "equalto", "system") | list %}
{%- set others = messages | rejectattr("role", "equalto", "system") | list %}
{%- set messages = system + others[-NUMBER:] %}
"""


def write_template(chat: Chat, *, opening: str = "", turns: int = 0) -> str:
    """A Jinja template that writes conversations as `chat` does, which has a system role and changes no content.

    `opening` is the text that is inserted before every response; a response that is given as text is what followed it.
    With `turns`, a conversation is its system message and so many of its last turns, the current one included.
    """
    assert chat.open_system is not None
    texts = {
        "FIRST_USER_HEADER": chat.first_user_header,
        "RESPONSE_HEADER": (*chat.response_header, opening),
        "RESPONSE_END": chat.response_end,
        "OPEN_SYSTEM": chat.open_system,
        "SYSTEM_END": chat.system_end,
        "OPEN_USER": chat.open_user,
        "USER_HEADER": (*chat.after_end, *chat.user_header),
        "USER_END": chat.user_end,
    }
    source = (_LAST_TURNS.replace("NUMBER", str(2 * turns - 1)) if turns else "") + _TEMPLATE
    for name, pieces in texts.items():
        source = source.replace(name, _literal(pieces))
    return source


def _literal(pieces: Pieces) -> str:
    text = "".join(piece.name if isinstance(piece, Special) else piece for piece in pieces)
    return json.dumps(text, ensure_ascii=False)
