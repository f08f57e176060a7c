"""Any text, of a server, a model or a file, in every message at the terminal: nothing in it is obeyed or lost."""

import contextlib
import functools
import io
import re
import types
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
from rich.console import Console
from rich.table import Table

from agentrl_jax.cli import envs, eval, eval_api, leaderboard, main, scaling
from agentrl_jax.errors import MAX_ERROR, UserError, shortened
from agentrl_jax.evaluate import environment_checks, scripted_report
from agentrl_jax.evaluate.leaderboard import Row
from agentrl_jax.io import sentence
from agentrl_jax.runs.live import IterationView, LiveView, final_table
from agentrl_jax.studies.variants import Variants
from agentrl_jax.terminal import Terminal, to_stderr, visible
from envs_jax.checks.report import Report, Result

RATE = {"mean": 0.5, "low": 0.25, "high": 0.75, "n": 8}
SEEN = {"levels": 8, "distinct_levels": 8, "seen_levels": 0}
EPISODES = {"asked": 2, "answered": 1, "length": 0, "refusal": 0, "failed": 0, "unfinished": 1}
TOKENS = dict.fromkeys(("prompt_tokens", "completion_tokens", "reasoning_tokens", "replies"), 0)
TOKENS["replies_without_usage"] = 0


def note(make, text):
    with LiveView(2, title="", console=make()) as view:
        view.note(text)


def live(text):
    with LiveView(2, title=text, console=Terminal(force_terminal=True, width=5000)) as view:
        view.update(IterationView(1, 0.5, 0.0, 0.1, 0.2, 1e-7, 100.0))


def at_the_end(make, text):
    rates = {"random": RATE, "trained": RATE, "imitation": RATE}
    summary = {"success": rates, "held_out": True, "imitated": False, "iterations": 1}
    summary |= {"levels": {text: {"held_out": text, **SEEN}}, "by_category": {text: {"success": rates}}}
    make().print(final_table(summary))


def of_run(text):
    result = {"env": text, "policy": text, "success": RATE, "seen": {"held_out": text, **SEEN}, "gap_closed": 0.5}
    eval._print_result(result | {"categories": {text: {"success": RATE}}, "mean_turns": 2.0})


def of_api_model(text):
    rates = {"success_answered": RATE, "success_all": RATE}
    result = {"model": text, "env": text, "episodes": EPISODES, "tokens": TOKENS, "unfinished": {text: text}, **rates}
    result |= {"categories": {text: rates}, "score_answered": None, "turns_used": None, "cost": None}
    retry = {"tokens": TOKENS, "cost": None, "cut": 0, "note": text, "attempts": {"1": {"success_all": RATE}}}
    eval_api._print_result(result | {"retry": retry})


def of_policy(text):
    rates = {"success": RATE, "score": RATE}
    result = {"policy": text, "env": text, "full_score": 1.0, "plays": 1, "mean_turns": 1.0, "mean_tokens": 1.0}
    result |= {"turns": 3, "categories": {text: rates}, **rates}
    Terminal().print(scripted_report.as_table(result), *scripted_report.lines_of(result))


def by_axis(text):
    found = {"axes": {"attempts": [{"attempts": 1, "success": RATE}]}, "retry": {"note": text}}
    scaling._show(found, Path("out"))


def of_check(text):
    report = Report(text, "service", 1, 1.0, (Result(text, "fail", {}, text, {"found": text}),))
    envs._print_report(Terminal(), report)
    Terminal().print(environment_checks.as_table([report, report]))


def of_leaderboard(text):
    cells = leaderboard._cells(Row(text, "run", RATE, source=text))
    table, lines = leaderboard._fitting(text, [cells], 1000)
    Terminal().print(table, *lines, text)
    leaderboard._print_markdown(text, [cells])


def of_variant(text):
    Variants._note(types.SimpleNamespace(console=Terminal()), text)


def of_error(text):
    with pytest.raises(SystemExit):
        main._fail(sentence(UserError(text), ""))


def as_table(text):
    table = Table(text, title=text, caption=text)
    table.add_row(text)
    Terminal().print(table)


MESSAGES = {
    "note": functools.partial(note, Terminal),
    "note at a console of the caller": functools.partial(note, Console),
    "live": live,
    "end": functools.partial(at_the_end, Terminal),
    "end at a console of the caller": functools.partial(at_the_end, Console),
    "line": to_stderr,
    **{f.__name__: f for f in (of_run, of_api_model, of_policy, by_axis, of_check, of_leaderboard, of_variant)},
    **{f.__name__: f for f in (of_error, as_table)},
}
HOSTILE = (
    "[/step] of [bold]this[/bold] [link=http://a.example]x[/link] :smiley: [lowercase] [1]",
    "\x1b[2J\x1b]0;title\x07\x9b31m\r\b\x00 rm \u202e -rf",
    "a server's " + 40 * "very long " + "answer",
    "half a pair \ud800, a wide 移動, and a family \U0001f468\u200d\U0001f469",
    "[[\\[/]]] \\",
)


@pytest.mark.parametrize("message", MESSAGES)
@hypothesis.settings(max_examples=20)
@hypothesis.given(st.text(st.characters() | st.sampled_from("[]/\\:\x1b\ud800"), max_size=60))
@hypothesis.example(HOSTILE[0])
@hypothesis.example(HOSTILE[1])
@hypothesis.example(HOSTILE[2])
@hypothesis.example(HOSTILE[3])
@hypothesis.example(HOSTILE[4])
def test_every_message_shows_any_text_as_it_is(message, text):
    printed = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        patch.setenv("COLUMNS", "2000")
        MESSAGES[message](text)
    shown = printed.getvalue()
    if message == "live":  # what moves the cursor and colors is rich's own
        shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown).replace("\r", "")
    assert visible(shown) == shown
    shown.encode()
    # An error is one line, in which characters that cannot be shown are spaces.
    for line in (shortened(text, MAX_ERROR) if message == "of_error" else visible(text)).split("\n"):
        assert "".join(line.split()) in "".join(shown.split())


def test_a_long_text_is_one_line_of_a_log(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for message in ("note", "note at a console of the caller", "line", "of_variant", "of_error"):
        MESSAGES[message](HOSTILE[2])
        assert [line for line in "".join(capsys.readouterr()).splitlines() if HOSTILE[2] in line], message
    at_the_end(Terminal, HOSTILE[2])
    assert f"{HOSTILE[2]}: 8 levels" in capsys.readouterr().out
