"""Scripted play of searchqa: commands by state, and the policies that mark the scale of a score."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, Key

from envs_jax.packs import Levels
from envs_jax.reference import Reference, reference_of_plans
from envs_jax.scripted_commands import Choice
from envs_jax.searchqa import text
from envs_jax.searchqa.env import ANSWER, SEARCH, SearchParams, SearchQA, SearchState
from envs_jax.searchqa.questions import COMPARISON, TWO_HOP, question_pieces
from envs_jax.searchqa.world import name_pieces
from envs_jax.token_environment import Command


def complete(state: SearchState) -> Bool[Array, ""]:
    """Whether all passages that prove the answer have been shown."""
    return jnp.all(state.seen | (state.question.evidence < 0))


def search_question(env: SearchQA, state: SearchState, params: SearchParams) -> Command:
    """Searches with the question itself."""
    return _command(env, SEARCH, question_pieces(env.world(state.seed), state.question))


def search_subject(env: SearchQA, state: SearchState, params: SearchParams) -> Command:
    """Searches with the name of the entity that the question begins with."""
    return _command(env, SEARCH, name_pieces(env.world(state.seed), state.question.evidence[0]))


def search_second(env: SearchQA, state: SearchState, params: SearchParams) -> Command:
    """Searches with the name of the second entity of the evidence, or of the first where there is one."""
    first, second = state.question.evidence
    return _command(env, SEARCH, name_pieces(env.world(state.seed), jnp.where(second >= 0, second, first)))


def answer_seen(env: SearchQA, state: SearchState, params: SearchParams) -> Command:
    """Answers right if all the evidence has been shown, as who reads it could; else `text.UNKNOWN`."""
    unknown, question = env.command(ANSWER, text.UNKNOWN.encode()), state.question
    row = jnp.pad(question.gold, (0, env.argument_bytes - question.gold.shape[0]))
    right = Command(action=jnp.int32(ANSWER), text=row, length=question.gold_length)
    return jax.tree.map(lambda a, b: jnp.where(complete(state), a, b), right, unknown)


def answer_unknown(env: SearchQA, state: SearchState, params: SearchParams) -> Command:
    """Answers `text.UNKNOWN`."""
    return env.command(ANSWER, text.UNKNOWN.encode())


def no_command(env: SearchQA, state: SearchState, params: SearchParams) -> Command:
    """Writes no command."""
    return env.null_action


SCRIPTS = {
    "search question": search_question,
    "search subject": search_subject,
    "search second": search_second,
    "answer seen": answer_seen,
    "answer unknown": answer_unknown,
    "no command": no_command,
}
"""Commands by name, see `ScriptedCommands`."""
_NUMBER = {name: number for number, name in enumerate(SCRIPTS)}


def null(key: Key[Array, ""], state: SearchState) -> Int32[Array, ""]:
    """Never writes a command."""
    return jnp.int32(_NUMBER["no command"])


def random(key: Key[Array, ""], state: SearchState) -> Int32[Array, ""]:
    """Any script."""
    return jax.random.randint(key, (), 0, len(SCRIPTS))


def always_search(key: Key[Array, ""], state: SearchState) -> Int32[Array, ""]:
    """Searches once with the question itself, then answers by what is shown."""
    return jnp.where(state.time == 0, _NUMBER["search question"], _NUMBER["answer seen"]).astype(jnp.int32)


def oracle(key: Key[Array, ""], state: SearchState) -> Int32[Array, ""]:
    """Searches with the names of the evidence that has not been shown, one after another, then answers."""
    first, second = ~state.seen & (state.question.evidence >= 0)
    searches = jnp.where(first, _NUMBER["search subject"], _NUMBER["search second"])
    return jnp.where(first | second, searches, _NUMBER["answer seen"]).astype(jnp.int32)


def search_twice(key: Key[Array, ""], state: SearchState) -> Int32[Array, ""]:
    """Searches with the first and then with the second name of the evidence, also where one is enough, and answers."""
    searches = jnp.where(state.time == 0, _NUMBER["search subject"], _NUMBER["search second"])
    return jnp.where(state.time < 2, searches, _NUMBER["answer seen"]).astype(jnp.int32)


def answer_at_once(key: Key[Array, ""], state: SearchState) -> Int32[Array, ""]:
    """Answers `text.UNKNOWN` without a search, the best constant answer."""
    return jnp.int32(_NUMBER["answer unknown"])


POLICIES: dict[str, Choice] = {
    "null": null,
    "random": random,
    "answer_at_once": answer_at_once,
    "always_search": always_search,
    "search_twice": search_twice,
    "oracle": oracle,
}


def solve(env: Any, params: SearchParams, levels: Levels, starts: Any, limit: int) -> Reference:
    """Plans of the oracle, as ids of scripts; see `reference.Solver`."""
    two = np.isin(np.asarray(starts.question.form), (TWO_HOP, COMPARISON))
    first, second, answer = (_NUMBER[name] for name in ("search subject", "search second", "answer seen"))
    plans: list[np.ndarray | None] = [
        np.array([first, second, answer] if both else [first, answer], np.int32) for both in two
    ]
    return reference_of_plans(plans, np.ones(len(plans), bool))


def _command(env: SearchQA, action: int, pieces: Int32[Array, " n"]) -> Command:
    spelled, length = text.spell(pieces, env.argument_bytes)
    return Command(action=jnp.int32(action), text=spelled, length=length)
