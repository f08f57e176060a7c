"""A model's chat template: a Jinja program that writes a conversation as text. Host only.

It is rendered as `transformers` renders it, so that a model reads what it was trained on: in a sandbox, with the same
filters and functions, but with a date that is given instead of today's, because a prompt that changes overnight cannot
be reproduced. The sandbox keeps a template from running code, and from taking much time or memory.
"""

import dataclasses
import datetime
import functools
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser

from agentrl_jax.errors import shortened
from agentrl_jax.text.template_sandbox import BoundedEnvironment

Message = tuple[str, str]
"""Who speaks ("system", "user" or "assistant") and the content."""

DATE = datetime.date(2024, 7, 26)
"""What a template is told today is; the date that Llama's templates fall back on."""

MAX_SOURCE = 1 << 17
"""Most characters of a template."""

MAX_TEXT = 1 << 24
"""Most characters of a rendered conversation."""


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A chat template and what it may read besides the messages.

    Attributes:
        source: the Jinja program.
        variables: pairs (name, value) of the special tokens that it may name, such as `("bos_token", "<s>")`.
        date: what it is told today is.
    """

    source: str = dataclasses.field(repr=False)
    variables: tuple[tuple[str, str], ...] = ()
    date: datetime.date = DATE

    @property
    def asks_for_date(self) -> bool:
        """Whether the template can write the date."""
        return "strftime_now" in self.source

    @property
    def asks_for_thinking(self) -> bool:
        """Whether the template reads `thinking`."""
        return "enable_thinking" in self.source

    def render(self, messages: Sequence[Message], *, generate: bool, thinking: bool | None = None) -> str:
        """Returns a conversation as text, special tokens spelled by their names.

        Args:
            messages: the conversation.
            generate: whether the text ends with what opens the next reply of the assistant.
            thinking: what the template reads as `enable_thinking`; None leaves it to the template.

        Raises:
            ValueError: the template is no Jinja program, refuses this conversation, or writes too much.
        """
        program = _compile(self.source, self.date)
        options = {} if thinking is None else {"enable_thinking": thinking}
        spoken = [{"role": role, "content": content} for role, content in messages]
        parts: list[str] = []
        size = 0
        try:
            for part in program.generate(
                messages=spoken,
                tools=None,
                documents=None,
                add_generation_prompt=generate,
                **dict(self.variables),
                **options,
                **BoundedEnvironment.variables(),
            ):
                parts.append(part)
                size += len(part)
                if size > MAX_TEXT:
                    raise ValueError(f"it writes more than {MAX_TEXT} characters")
        except Exception as error:  # the template is foreign code: whatever goes wrong inside it is its refusal
            roles = ", ".join(role for role, _ in messages)
            raise ValueError(
                f"the chat template refuses a conversation of {shortened(roles)}: {shortened(error)}"
            ) from error
        text = "".join(parts)
        if not _is_unicode(text):
            raise ValueError("the chat template writes half of a surrogate pair, which is no text; correct its escapes")
        return text

    def closing_token(self, special_names: Iterable[str]) -> str | None:
        """Returns the first of some special tokens that follows a finished reply; None if there is none."""
        asked, replied = "\ue000asked\ue001", "\ue000replied\ue001"
        try:
            text = self.render([("user", asked), ("assistant", replied)], generate=False)
        except ValueError:
            return None
        found = special_pattern(special_names).search(text.partition(replied)[2])
        return found[0] if found else None


def special_pattern(special_names: Iterable[str]) -> re.Pattern[str]:
    """Returns a pattern that finds the spelling of special tokens, the longest that fits."""
    longest_first = sorted(special_names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node | list[Node]:
        """Returns the body of the block as it is."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@functools.lru_cache(maxsize=32)
def _compile(source: str, date: datetime.date) -> jinja2.Template:
    if len(source) > MAX_SOURCE:
        raise ValueError(f"a chat template of {len(source)} characters; expected at most {MAX_SOURCE}")
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.add_filter("tojson", _to_json)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = date.strftime
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(
            f"the chat template is no Jinja template: line {error.lineno}: {shortened(error.message)}"
        ) from error
    except Exception as error:  # the template is foreign code: numbers or nesting that Python does not compile
        raise ValueError(f"the chat template is no Jinja template: {shortened(error)}") from error


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """JSON without Jinja's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
