"""A model's chat template: a Jinja program that writes a conversation as text. Host only.

It is rendered by `transformers`, so that a model reads the format it was trained on, but with a fixed date instead of
today's, so that prompts are reproducible. The sandbox of `transformers` keeps a template from running code; a separate
process, `template_worker`, limits its time and memory.
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

from agentrl_jax.errors import BadValue, UserError, shortened

Message = tuple[str, str]
"""Role ("system", "user" or "assistant") and content."""

DATE = datetime.date(2024, 7, 26)
"""Today's date for templates; it is the default date of Llama's templates."""

MAX_SOURCE = 1 << 17
"""Maximum characters of a template."""

MAX_SECONDS = 1.0
"""Maximum CPU time of a template, with that of its earlier renderings; published ones take about a millisecond."""

FREE_SECONDS = 0.002
"""CPU time for which a rendering does not count, and again for each thousand characters of its messages."""


_REPLIED = "\ue000replied\ue001"


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A Jinja program, the special tokens that it may use (such as `("bos_token", "<s>")`), and today's date for it."""

    source: str = dataclasses.field(repr=False)
    variables: tuple[tuple[str, str], ...] = ()
    date: datetime.date = DATE

    @property
    def asks_for_thinking(self) -> bool:
        """Whether the template reads `thinking`."""
        return "enable_thinking" in self.source

    def render(self, messages: Sequence[Message], *, generate: bool, thinking: bool | None = None) -> str:
        """Returns a conversation as text, with special tokens by name.

        With `generate`, it ends with the header of the next response. `thinking` is the value of `enable_thinking`,
        None for the template's default.

        Raises:
            ValueError: the template is not valid Jinja, refuses this conversation, or writes too much text.
        """
        if len(self.source) > MAX_SOURCE:
            raise BadValue(
                f"a chat template of {len(self.source)} characters; expected at most {MAX_SOURCE}",
                key="chat template",
                value=len(self.source),
            )
        options = {} if thinking is None else {"enable_thinking": thinking}
        answer = _render_in_budget(
            {
                "source": self.source,
                "messages": [{"role": role, "content": content} for role, content in messages],
                "generate": generate,
                "variables": dict(self.variables) | options,
                "date": self.date.isoformat(),
            }
        )
        if "syntax" in answer:
            raise BadValue(
                f"the chat template is no Jinja template: {shortened(answer['syntax'])}", key="chat template"
            )
        if "refusal" in answer:
            roles = shortened(", ".join(role for role, _ in messages))
            raise BadValue(
                f"the chat template refuses a conversation of {roles}: {shortened(answer['refusal'])}",
                key="chat template",
                value=roles,
            )
        try:
            answer["text"].encode()
        except UnicodeEncodeError:
            raise BadValue(
                "the chat template writes half of a surrogate pair, which is no text; correct its escapes",
                key="chat template",
            ) from None
        return answer["text"]

    def closing_token(self, special_names: Iterable[str]) -> str | None:
        """Returns the first of the given special tokens after a finished response; None if there is none."""
        text = self._try_render([("user", "\ue000asked\ue001"), ("assistant", _REPLIED)], generate=False)
        found = special_pattern(special_names).search(text.partition(_REPLIED)[2])
        return found[0] if found else None

    def frame(self) -> str:
        """Returns what the template writes around the contents of all roles; nothing for those that it refuses."""
        asked, replied = ("user", "\ue000asked\ue001"), ("assistant", _REPLIED)
        conversations = ([asked, replied], [("system", "\ue000told\ue001"), asked, replied])
        texts = [self._try_render(messages, generate=False) for messages in conversations]
        return "\n".join([*texts, self._try_render([asked], generate=True)])

    def _try_render(self, messages: Sequence[Message], *, generate: bool) -> str:
        try:
            return self.render(messages, generate=generate)
        except ValueError:
            return ""


def special_pattern(special_names: Iterable[str]) -> re.Pattern[str]:
    """Returns a pattern that matches the names of special tokens in text, preferring longer ones."""
    longest_first = sorted(special_names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


_LOCK = threading.Lock()


@functools.cache
def _worker() -> subprocess.Popen[str]:
    """Returns the process that renders templates; it exits when its standard input closes, so with this process."""
    if importlib.util.find_spec("transformers") is None:
        raise UserError(
            "chat templates of pretrained models need the package transformers; pip install 'transformers>=5.17,<6'",
            key="transformers",
        )
    command = [sys.executable, "-P", str(Path(__file__).with_name("template_worker.py"))]
    worker = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"},
        text=True,
    )
    if not worker.stdout or not worker.stdout.readline():
        worker.communicate()
        raise UserError(
            f"the process that renders chat templates does not start; run {' '.join(command)} to see why",
            key=" ".join(command),
        )
    return worker


@dataclasses.dataclass
class _Budget:
    """CPU time that the renderings of a template may still take, and why there is none."""

    seconds: float
    refusal: str = ""


@functools.lru_cache(maxsize=1024)
def _budget(source: str) -> _Budget:
    return _Budget(MAX_SECONDS)


def _render_in_budget(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the worker's answer, or a refusal where the template has used up its time or ended the worker."""
    budget = _budget(request["source"])
    if budget.refusal:
        return {"refusal": budget.refusal}
    free = FREE_SECONDS * (1 + sum(len(message["content"]) for message in request["messages"]) / 1000)
    answer = _render_in_worker(request | {"seconds": free + budget.seconds})
    budget.seconds -= max(answer.get("seconds", 0.0) - free, 0.0)
    if budget.seconds <= 0:
        answer = {"ended": f"it takes more than {MAX_SECONDS:g} s"}
    if "ended" in answer:  # another worker costs time too, so it is not tried again
        budget.refusal = answer["ended"]
        return {"refusal": budget.refusal}
    return answer


def _render_in_worker(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the worker's answer, or why it `ended`; the next call then starts another worker."""
    with _LOCK:
        worker = _worker()
        if worker.poll() is not None:  # it was killed while idle
            _worker.cache_clear()
            worker = _worker()
        assert worker.stdin
        assert worker.stdout
        try:
            worker.stdin.write(json.dumps(request) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = ""
        except BaseException:  # after an interrupt, a late answer must not be read as the next one
            worker.kill()
            raise
        if line.endswith("\n"):
            return json.loads(line)
        _worker.cache_clear()
        worker.communicate()
        if worker.returncode == -signal.SIGPROF:
            return {"ended": f"it takes more than {MAX_SECONDS:g} s"}
        if worker.returncode in (-signal.SIGKILL, -signal.SIGTERM):  # a template cannot cause these signals
            raise UserError(
                "the process that renders chat templates was killed by another process; try again", key="template"
            )
        return {"ended": f"the process that renders it ended with code {worker.returncode}"}
