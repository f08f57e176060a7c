"""Commands of `agentrl` that tests of evaluations give."""

import contextlib
import io
import json

import refusing
import tiny_run

from agentrl_jax.cli import main
from agentrl_jax.errors import UserError


def result_of(*words) -> dict:
    return json.loads(tiny_run.done(*map(str, words), "--json"))


def refusal(*words) -> UserError:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        error = refusing.refusal(main._run, list(map(str, words)))
    assert out.getvalue() == ""
    return error
