"""A model's chat template: a Jinja program that writes a conversation as text. Host only.

It is rendered by `transformers`, so that a model reads what it was trained on, but with a date that is given instead of
today's, because a prompt that changes overnight cannot be reproduced. The sandbox of `transformers` keeps a template
from running code; a process of its own, `template_worker`, keeps it from taking much time or memory.
"""

import dataclasses
import datetime
import functools
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from agentrl_jax.errors import UserError, shortened

Message = tuple[str, str]
"""Who speaks ("system", "user" or "assistant") and the content."""

DATE = datetime.date(2024, 7, 26)
"""What a template is told today is; the date that Llama's templates fall back on."""

MAX_SOURCE = 1 << 17
"""Most characters of a template."""

MAX_SECONDS = 2.0
"""CPU time that one rendering may take; those of published templates take milliseconds."""


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
            generate: whether the text ends with what opens the next response of the assistant.
            thinking: what the template reads as `enable_thinking`; None leaves it to the template.

        Raises:
            ValueError: the template is no Jinja program, refuses this conversation, or writes too much.
        """
        if len(self.source) > MAX_SOURCE:
            raise ValueError(f"a chat template of {len(self.source)} characters; expected at most {MAX_SOURCE}")
        options = {} if thinking is None else {"enable_thinking": thinking}
        answer = _ask(
            {
                "source": self.source,
                "messages": [{"role": role, "content": content} for role, content in messages],
                "generate": generate,
                "variables": dict(self.variables) | options,
                "date": self.date.isoformat(),
                "seconds": MAX_SECONDS,
            }
        )
        if "syntax" in answer:
            raise ValueError(f"the chat template is no Jinja template: {shortened(answer['syntax'])}")
        if "refusal" in answer:
            roles = shortened(", ".join(role for role, _ in messages))
            raise ValueError(f"the chat template refuses a conversation of {roles}: {shortened(answer['refusal'])}")
        text = answer["text"]
        if not _is_unicode(text):
            raise ValueError("the chat template writes half of a surrogate pair, which is no text; correct its escapes")
        return text

    def closing_token(self, special_names: Iterable[str]) -> str | None:
        """Returns the first of some special tokens that follows a finished response; None if there is none."""
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


_LOCK = threading.Lock()


@functools.cache
def _worker() -> subprocess.Popen[str]:
    """The process that renders; it ends with this one, when its standard input does."""
    if importlib.util.find_spec("transformers") is None:
        raise UserError(
            "chat templates of pretrained models need the package transformers; pip install 'transformers>=5.17,<6'"
        )
    words = [sys.executable, "-P", str(Path(__file__).with_name("template_worker.py"))]
    worker = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"},
        text=True,
    )
    if not worker.stdout or not worker.stdout.readline():
        worker.communicate()
        raise UserError(f"the process that renders chat templates does not start; {' '.join(words)} says why")
    return worker


def _ask(asked: dict[str, Any]) -> dict[str, str]:
    """The worker's answer; where it ended instead, that as a refusal. The next question starts another one."""
    with _LOCK:
        worker = _worker()
        if worker.poll() is not None:  # it was ended from outside while it had nothing to do
            _worker.cache_clear()
            worker = _worker()
        assert worker.stdin
        assert worker.stdout
        try:
            worker.stdin.write(json.dumps(asked) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = ""
        except BaseException:  # an interrupt: what is answered later is not for the next question
            worker.kill()
            raise
        if line.endswith("\n"):
            return json.loads(line)
        _worker.cache_clear()
        worker.communicate()
        if worker.returncode == -signal.SIGPROF:
            return {"refusal": f"it takes more than {MAX_SECONDS:g} s"}
        if worker.returncode in (-signal.SIGKILL, -signal.SIGTERM):  # not what a template can do to it
            raise UserError("the process that renders chat templates was ended from outside; try again")
        return {"refusal": f"the process that renders it ended with code {worker.returncode}"}
