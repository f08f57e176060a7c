"""Questions over a user's corpus, answered by searching its passages, in one compiled program.

Shapes: `N` passages, `Q` questions, `K` passages of a search, `P` pieces of an observation.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32, Key, UInt32

from envs_jax.environment import NO_PIECE, EnvParams, EnvState, hash_integers
from envs_jax.gymnax_base import spaces
from envs_jax.retrieval import compiled_bm25, compiled_static
from envs_jax.retrieval.characters import read, words_in
from envs_jax.retrieval.corpus import Corpus
from envs_jax.searchqa.dialects import Dialect, control_texts, escaped
from envs_jax.searchqa.exact_match import normalized
from envs_jax.searchqa.judging import is_right
from envs_jax.searchqa.library import Golds, Index, Texts
from envs_jax.searchqa.question_files import Question
from envs_jax.token_environment import Command, TokenEnvironment

SEARCH, ANSWER = 0, 1
_ASKED, _FOUND, _REFUSED, _WRONG = range(4)


@struct.dataclass
class Asked:
    """A question by its number, and the first two passages of its evidence; -1 for none."""

    number: Int32[Array, ""]
    evidence: Int32[Array, "2"]


@struct.dataclass
class CorpusState(EnvState):
    """What has been asked and found."""

    question: Asked
    shown: Int32[Array, ""]
    """What the observation shows: the question, passages, how a response is written, or that an answer is wrong."""
    found: Int32[Array, " K"]
    """Passages of the last search; -1 for none."""
    seen: Bool[Array, "2"]
    """Which of the first two passages of the evidence have been shown."""
    solved: Bool[Array, ""]


@struct.dataclass(kw_only=True)
class CorpusParams(EnvParams):
    """The index of the corpus, what is known of the questions and written by scripts, and how long passages are."""

    index: Index
    golds: Golds
    texts: Texts
    characters: Int32[Array, " N"]
    """Of each passage as it is shown."""


class CorpusQA(TokenEnvironment):
    """Search the passages of a corpus for the answer to a question, in one of the `DIALECTS`.

    * Level: a question, uniform. Questions of one text count as the same, so that evaluation is on questions that no
      run has trained on.
    * Commands: a search shows up to K passages, best first, by the retriever of the index (`library.RETRIEVERS`); an
      answer ends the episode, unless it is wrong and the dialect lets the agent correct it. A response without a
      command counts as an action, and is told how to write one. Of an argument the first `argument_bytes` are searched
      for; a longer answer is wrong.
    * Reward: f32[], 1 for a right answer by the rule of the dialect (`judging`), else 0.
    * Termination: an answer as above. Truncation: `max_steps_in_episode` actions.
    * Observation: i32[P]. Each passage is one piece, and so is each question; control texts in them are written with a
      space (`dialects.escaped`). The right answers are read by no observation.
    * info: `success`, `action_is_effective`, and 0 or 1: `searched`; `evidence_found`, the last search has shown a
      passage of the evidence, which not all questions name; `answered`, and `answered_unseen`, without the first two
      passages of the evidence having been shown.
    """

    instruction = (
        "Answer the question in as few words as can be. Search first, as often as you need; then give the answer alone."
    )

    def __init__(self, corpus: Corpus, questions: Sequence[Question], dialect: Dialect):
        """Writes the pieces; the arrays are in the parameters, see `params_of`."""
        self.actions, self.templates, self.dialect = dialect.actions, dialect.templates, dialect
        self.results = min(dialect.results, len(corpus))
        controls = control_texts(dialect)
        ranks = [f"{line}Doc {rank}" for rank, line in enumerate(["", *["\n"] * (self.results - 1)], start=1)]
        texts = [f'(Title: "{each.title}") {each.text}'[: dialect.characters] for each in corpus.passages]
        fixed = (dialect.opened, dialect.closed, dialect.refused, dialect.wrong or dialect.refused, *ranks)
        self._first = len(fixed), len(fixed) + len(texts)
        self.pieces = (*fixed, *(escaped(text, controls) for text in texts))
        self.pieces += tuple(escaped(question.text, controls) for question in questions)
        self.piece_limits = (1,) * len(self.pieces)
        first, end = self._first
        self.piece_groups = ((first, end, self.results), (end, len(self.pieces), 1))
        self._questions = len(questions)

    def params_of(self, index: Index, golds: Golds, texts: Texts) -> CorpusParams:
        """The parameters with the arrays of the corpus and the questions."""
        first, end = self._first
        sizes = [min(len(piece), self.dialect.characters or len(piece)) for piece in self.pieces[first:end]]
        return CorpusParams(
            max_steps_in_episode=jnp.int32(self.dialect.max_steps),
            index=index,
            golds=golds,
            texts=texts,
            characters=jnp.array(sizes, jnp.int32),
        )

    def reset_env(self, key: Key[Array, ""], params: CorpusParams) -> tuple[Int32[Array, " P"], CorpusState]:
        """Draws a question."""
        state = self.start(jax.random.randint(key, (), 0, self._questions), params)
        return self.describe(state, params), state

    def start(self, question: Int32[Array, ""], params: CorpusParams) -> CorpusState:
        """The first state of an episode on a question by its number."""
        return CorpusState(
            time=jnp.int32(0),
            terminated=jnp.bool_(False),
            question=Asked(number=question, evidence=params.golds.evidence[question, :2]),
            shown=jnp.int32(_ASKED),
            found=jnp.full(self.results, -1, jnp.int32),
            seen=jnp.zeros(2, bool),
            solved=jnp.bool_(False),
        )

    def step_env(self, key: Key[Array, ""], state: CorpusState, command: Command, params: CorpusParams):
        """Searches or answers; a state that is done does not change."""
        active, golds = ~self.is_done(state, params), params.golds
        searches, answers = active & (command.action == SEARCH), active & (command.action == ANSWER)
        argument = read(command.text, command.length)
        if isinstance(params.index, compiled_static.StaticIndex):
            best = compiled_static.search(params.index, command.text.astype(jnp.int32), command.length, self.results)
        else:
            best = compiled_bm25.search(params.index, words_in(argument), self.results)
        found = self._shown(best.ids, params)
        rule = self.dialect.reward, self.dialect.threshold
        right = answers & is_right(*rule, *normalized(argument), *golds.of(state.question.number))
        right &= command.length <= self.argument_bytes
        told = jnp.where(right, state.shown, _WRONG) if self.dialect.wrong else state.shown
        shown = jnp.where(searches, _FOUND, jnp.where(answers, told, _REFUSED))
        after = state.replace(
            time=state.time + active,
            terminated=state.terminated | (right if self.dialect.wrong else answers),
            shown=jnp.where(active, shown, state.shown).astype(jnp.int32),
            found=jnp.where(searches, found, state.found),
            seen=state.seen | (searches & _among(state.question.evidence, found)),
            solved=state.solved | right,
        )
        info = {
            "success": after.solved,
            "action_is_effective": active,
            "searched": searches,
            "evidence_found": searches & jnp.any(_among(golds.evidence[state.question.number], found)),
            "answered": answers,
            "answered_unseen": answers & jnp.any(~after.seen & (state.question.evidence >= 0)),
        }
        return self.describe(after, params), after, right.astype(jnp.float32), after.terminated, info

    def describe(self, state: CorpusState, params: CorpusParams) -> Int32[Array, " P"]:
        """The question; the passages of the last search; how a response is written; or that an answer is wrong."""
        first, end = self._first
        ranks = jnp.arange(first - self.results, first)
        lines = jnp.where(state.found >= 0, jnp.stack([ranks, first + state.found]), NO_PIECE).T.ravel()
        opened, closed, refused, wrong = (jnp.full(1, number) for number in range(4))
        rows = [(end + state.question.number)[None], jnp.concatenate([opened, lines, closed]), refused, wrong]
        wide = [jnp.pad(row, (0, lines.size + 2 - row.size), constant_values=NO_PIECE) for row in rows]
        return jnp.stack(wide)[state.shown].astype(jnp.int32)

    def success(self, state: CorpusState, params: CorpusParams) -> Bool[Array, ""]:
        """An answer was right."""
        return state.solved

    def state_hash(self, state: CorpusState, params: CorpusParams) -> UInt32[Array, "2"]:
        """Of the text of the question, and what is shown."""
        text = params.golds.hashes[state.question.number].astype(jnp.int32)
        return hash_integers(jnp.stack([*text, state.shown, *state.found]))

    def level_hash(self, state: CorpusState, params: CorpusParams) -> UInt32[Array, "2"]:
        """Of the text of the question."""
        return params.golds.hashes[state.question.number]

    def reward_range(self, params: CorpusParams) -> tuple[Float32[Array, ""], Float32[Array, ""]]:
        """0 to 1."""
        return jnp.float32(0), jnp.float32(1)

    def observation_space(self, params: CorpusParams) -> spaces.Box:
        """Piece ids."""
        return spaces.Box(NO_PIECE, len(self.pieces) - 1, (2 * self.results + 2,), jnp.int32)

    def _shown(self, ids: Int32[Array, " K"], params: CorpusParams) -> Int32[Array, " K"]:
        """The passages that fit into the characters of an observation."""
        if self.dialect.characters is None:
            return ids
        used = jnp.cumsum(jnp.where(ids >= 0, params.characters[jnp.maximum(ids, 0)], 0))
        return jnp.where(used <= self.dialect.characters, ids, -1)


def _among(wanted: Int32[Array, " n"], found: Int32[Array, " K"]) -> Bool[Array, " n"]:
    return jnp.any(wanted[:, None] == found, axis=1) & (wanted >= 0)
