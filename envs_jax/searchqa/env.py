"""Questions about an invented world, answered by searching its passages: Search-R1's task in one compiled program.

Shapes: `K` passages of a search, `P` pieces of an observation.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32, Key, UInt32

from envs_jax.environment import NO_PIECE, EnvParams, EnvState, hash_integers
from envs_jax.errors import BadValue
from envs_jax.gymnax_base import spaces
from envs_jax.retrieval import traced_bm25
from envs_jax.retrieval.characters import Words, read, words_in
from envs_jax.searchqa import text
from envs_jax.searchqa.exact_match import equals, normalized
from envs_jax.searchqa.questions import QUESTION, SHARES, Question, ask, question_pieces
from envs_jax.searchqa.world import FEWEST, MOST, World, content_hash, make_world, passage
from envs_jax.token_environment import Command, TokenEnvironment

SEARCH, ANSWER = 0, 1
Search = Callable[[World, Words, int], Int32[Array, " K"]]
"""The passages that are found, from the world, the words of the query and K; -1 for none."""

_ASKED, _FOUND, _REFUSED = range(3)


def bm25(world: World, query: Words, results: int) -> Int32[Array, " K"]:
    """The passages with the highest scores of BM25; those without a word of the query are not found."""
    found = traced_bm25.search(world.words, query, results)
    return jnp.where(found.scores > 0, found.ids, -1)


@struct.dataclass
class SearchState(EnvState):
    """What has been asked and found. The world is made from its seed wherever it is read."""

    seed: UInt32[Array, ""]
    question: Question
    shown: Int32[Array, ""]
    """What the observation shows: the question, passages, or how a response is written."""
    found: Int32[Array, " K"]
    """Passages of the last search; -1 for none."""
    seen: Bool[Array, "2"]
    """Which passages of the evidence have been shown."""
    solved: Bool[Array, ""]


@struct.dataclass(kw_only=True)
class SearchParams(EnvParams):
    """`worlds` is the number of seeds that worlds are drawn from, `shares` are those of the forms of questions."""

    worlds: Int32[Array, ""]
    shares: Float32[Array, "4"]


class SearchQA(TokenEnvironment):
    """Search the passages of a world for the answer to a question (Search-R1, arXiv 2503.09516).

    * Level: the seed of a world (`world.make_world`), uniform, and a question about it (`questions.ask`). Levels of one
      world count as the same, so that evaluation is in worlds that no run has trained on.
    * Commands: `<search>words</search>` shows up to K passages, best first, inside of `<information>`;
      `<answer>words</answer>` ends the episode. A response without a command counts as an action and is told how to
      write one.
    * Reward: f32[], 1 for an answer that matches exactly (`exact_match`), else 0.
    * Termination: an answer. Truncation: `max_steps_in_episode` (4) actions.
    * Observation: i32[P], the pieces of its text.
    * info: `success`, `action_is_effective`, and 0 or 1: `searched`; `gold_found` and `evidence_found`, the last search
      has found the passage of the answer, or one of the evidence; `answered`, and `answered_unseen`, without all the
      evidence having been shown.
    """

    actions = ("search", "answer")
    pieces = text.PIECES
    instruction = (
        "Answer the question with a name or a year. Search the passages first, as often as you need; "
        f"if they do not say it, the answer is {text.UNKNOWN}."
    )

    def __init__(
        self, entities: int = 300, results: int = 3, search: Search = bm25, information_pieces: int | None = None
    ):
        """Fixes N, K, the search, and the most pieces of the passages that are shown; None for all.

        Raises:
            ValueError: a number is out of range.
        """
        for name, value, least, most in (
            ("entities", entities, FEWEST, MOST),
            ("results", results, 1, min(9, entities)),
            ("information_pieces", 1 if information_pieces is None else information_pieces, 1, 10**6),
        ):
            if not least <= value <= most:
                raise BadValue(f"{name} of searchqa is {value}; expected {least} to {most}", name, value)
        self.entities, self.results, self.search = entities, results, search
        self.information_pieces = information_pieces
        many = {*text.SYLLABLES, *"0123456789", " "}
        repeated = {text.DOCUMENT, text.OF_RANK, text.LINE}
        repeated |= {before for sentence in text.SENTENCES for before, _ in sentence}
        self.piece_limits = tuple(
            self._pieces if piece in many else results if piece in repeated else 1 for piece in text.PIECES
        )

    @property
    def default_params(self) -> SearchParams:
        """Four actions, a million worlds."""
        return SearchParams(
            max_steps_in_episode=jnp.int32(4), worlds=jnp.int32(10**6), shares=jnp.array(SHARES, jnp.float32)
        )

    def reset_env(self, key: Key[Array, ""], params: SearchParams) -> tuple[Int32[Array, " P"], SearchState]:
        """Draws a world and a question."""
        world_key, question_key = jax.random.split(key)
        seed = jax.random.randint(world_key, (), 0, params.worlds).astype(jnp.uint32)
        state = SearchState(
            time=jnp.int32(0),
            terminated=jnp.bool_(False),
            seed=seed,
            question=ask(question_key, self.world(seed), params.shares),
            shown=jnp.int32(_ASKED),
            found=jnp.full(self.results, -1, jnp.int32),
            seen=jnp.zeros(2, bool),
            solved=jnp.bool_(False),
        )
        return self.describe(state, params), state

    def step_env(self, key: Key[Array, ""], state: SearchState, command: Command, params: SearchParams):
        """Searches or answers; a state that is done does not change."""
        active, question = ~self.is_done(state, params), state.question
        searches, answers = active & (command.action == SEARCH), active & (command.action == ANSWER)
        argument = read(command.text, command.length)
        found = self.search(self.world(state.seed), words_in(argument), self.results)
        right = equals(*normalized(argument), question.gold, question.gold_length)
        right &= answers & (command.length <= self.argument_bytes)
        shown = jnp.where(searches, _FOUND, jnp.where(answers, state.shown, _REFUSED))
        of_evidence = self._in(question.evidence, found)
        after = state.replace(
            time=state.time + active,
            terminated=state.terminated | answers,
            shown=jnp.where(active, shown, state.shown).astype(jnp.int32),
            found=jnp.where(searches, found, state.found),
            seen=state.seen | (searches & of_evidence),
            solved=state.solved | right,
        )
        complete = jnp.all(state.seen | (question.evidence < 0))
        info = {
            "success": after.solved,
            "action_is_effective": active,
            "searched": searches,
            "gold_found": searches & self._in(question.gold_passage[None], found)[0],
            "evidence_found": searches & jnp.any(of_evidence),
            "answered": answers,
            "answered_unseen": answers & ~complete,
        }
        return self.describe(after, params), after, right.astype(jnp.float32), after.terminated, info

    def describe(self, state: SearchState, params: SearchParams) -> Int32[Array, " P"]:
        """The question; the passages of the last search; or how a response is written."""
        world = self.world(state.seed)
        asked = question_pieces(world, state.question)
        refused = jnp.array([text.piece(text.REFUSED)])
        rows = [self._wide(asked), self._information(world, state.found), self._wide(refused)]
        return jnp.stack(rows)[state.shown].astype(jnp.int32)

    def success(self, state: SearchState, params: SearchParams) -> Bool[Array, ""]:
        """The answer was right."""
        return state.solved

    def state_hash(self, state: SearchState, params: SearchParams) -> UInt32[Array, "2"]:
        """Of the world, the question, and what is shown."""
        question = state.question
        values = (state.seed, question.form, question.relation, question.via, question.subject, question.other)
        return hash_integers(jnp.stack([*map(jnp.int32, values), state.shown, *state.found]))

    def level_hash(self, state: SearchState, params: SearchParams) -> UInt32[Array, "2"]:
        """Of the facts of the world."""
        return content_hash(self.world(state.seed))

    def reward_range(self, params: SearchParams) -> tuple[Float32[Array, ""], Float32[Array, ""]]:
        """0 to 1."""
        return jnp.float32(0), jnp.float32(1)

    def observation_space(self, params: SearchParams) -> spaces.Box:
        """Piece ids."""
        return spaces.Box(NO_PIECE, len(self.pieces) - 1, (self._pieces,), jnp.int32)

    def world(self, seed: UInt32[Array, ""]) -> World:
        """The world of a seed."""
        return make_world(seed, self.entities)

    @functools.cached_property
    def _pieces(self) -> int:
        shape = jax.eval_shape(self._passages, jnp.zeros((), jnp.uint32), jnp.zeros(self.results, jnp.int32)).shape
        return max(QUESTION, shape[0] + 2)

    def _passages(self, seed: UInt32[Array, ""], found: Int32[Array, " K"]) -> Int32[Array, " pieces"]:
        return self._lines(self.world(seed), found)

    def _lines(self, world: World, found: Int32[Array, " K"]) -> Int32[Array, " pieces"]:
        """The passages with their ranks, one after another."""

        def line(rank: jax.Array, entity: jax.Array) -> jax.Array:
            document, of_rank = text.piece(text.DOCUMENT), text.piece(text.OF_RANK)
            before = jnp.stack([jnp.int32(document), text.DIGIT + 1 + rank, jnp.int32(of_rank)])
            row = jnp.concatenate([before, passage(world, jnp.maximum(entity, 0))])
            return jnp.where(entity >= 0, row, -1)

        return jax.vmap(line)(jnp.arange(self.results), found).ravel()

    def _information(self, world: World, found: Int32[Array, " K"]) -> Int32[Array, " P"]:
        """The passages in their tags; what is cut is cut between two pieces, so between characters."""
        lines = self._lines(world, found)
        if self.information_pieces is not None:
            lines = jnp.where(jnp.cumsum(lines >= 0) <= self.information_pieces, lines, -1)
        ends = (jnp.array([text.piece(tag)]) for tag in (text.OPENED, text.CLOSED))
        return self._wide(jnp.concatenate([next(ends), lines, next(ends)]))

    def _wide(self, row: Int32[Array, " pieces"]) -> Int32[Array, " P"]:
        return jnp.pad(row, (0, self._pieces - row.shape[0]), constant_values=NO_PIECE)

    @staticmethod
    def _in(wanted: Int32[Array, " n"], found: Int32[Array, " K"]) -> Bool[Array, " n"]:
        return jnp.any(wanted[:, None] == found, axis=1) & (wanted >= 0)
