"""Commands by state for searchqa over a corpus: what the scripts of `policies` write there, by the same names."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt8

from envs_jax.scripted_commands import Script
from envs_jax.searchqa import text
from envs_jax.searchqa.corpus_env import ANSWER, SEARCH, CorpusParams, CorpusQA, CorpusState
from envs_jax.token_environment import Command


def search_question(env: CorpusQA, state: CorpusState, params: CorpusParams) -> Command:
    """Searches with the question itself."""
    return _command(SEARCH, params.texts.questions[state.question.number])


def search_subject(env: CorpusQA, state: CorpusState, params: CorpusParams) -> Command:
    """Searches with the title of the first passage of the evidence; with the question, if it names none."""
    first = state.question.evidence[0]
    return _command(SEARCH, jnp.where(first >= 0, params.texts.titles[first], _question(state, params)))


def search_second(env: CorpusQA, state: CorpusState, params: CorpusParams) -> Command:
    """Searches with the title of the second passage of the evidence, or as `search_subject` where there is none."""
    second = state.question.evidence[1]
    other = search_subject(env, state, params).text
    return _command(SEARCH, jnp.where(second >= 0, params.texts.titles[second], other))


def answer_seen(env: CorpusQA, state: CorpusState, params: CorpusParams) -> Command:
    """Gives the first right answer if all the evidence has been shown, as who reads it could; else "unknown"."""
    right = _command(ANSWER, params.texts.answers[state.question.number])
    complete = jnp.all(state.seen | (state.question.evidence < 0))
    return jax.tree.map(lambda a, b: jnp.where(complete, a, b), right, answer_unknown(env, state, params))


def answer_unknown(env: CorpusQA, state: CorpusState, params: CorpusParams) -> Command:
    """Answers "unknown"."""
    return env.command(ANSWER, text.UNKNOWN.encode())


def no_command(env: CorpusQA, state: CorpusState, params: CorpusParams) -> Command:
    """Writes no command."""
    return env.null_action


SCRIPTS: dict[str, Script] = {
    "search question": search_question,
    "search subject": search_subject,
    "search second": search_second,
    "answer seen": answer_seen,
    "answer unknown": answer_unknown,
    "no command": no_command,
}


def either(of_worlds: Mapping[str, Script]) -> dict[str, Script]:
    """Scripts of invented worlds, and of a corpus where the environment is one."""

    def script(name: str, env: Any, state: Any, params: Any) -> Command:
        return (SCRIPTS if isinstance(env, CorpusQA) else of_worlds)[name](env, state, params)

    return {name: functools.partial(script, name) for name in of_worlds}


def _question(state: CorpusState, params: CorpusParams) -> UInt8[Array, " L"]:
    return params.texts.questions[state.question.number]


def _command(action: int, data: UInt8[Array, " L"]) -> Command:
    return Command(action=jnp.int32(action), text=data, length=jnp.sum(data > 0, dtype=jnp.int32))
