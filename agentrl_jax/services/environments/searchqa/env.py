"""Search and answer, as AgentGym's SearchQA serves it (arXiv 2509.08755), over a corpus and questions of the user."""

import dataclasses
import os
import random
from collections.abc import Sequence

from agentrl_jax.retrieval.corpus import Corpus, read_corpus
from agentrl_jax.retrieval.registry import make_retriever
from agentrl_jax.retrieval.retriever import Retriever
from agentrl_jax.services.action_parsing import raw
from agentrl_jax.services.environment import ItemError, Service, ServiceEnvironment, StepResult
from agentrl_jax.services.environments.common import PlannedPolicy
from agentrl_jax.services.environments.remote_only import INSTRUCTIONS, TURNS, searchqa_answer
from agentrl_jax.services.environments.searchqa.answers import TAGGED, answer_in, is_right
from agentrl_jax.services.environments.searchqa.questions import Question, read_questions

_TASK = (
    "Answer the question. Think between <think> and </think> first, whenever you learn something new. To look something"
    " up, write a query between <search> and </search>; what is found comes between <information> and </information>,"
    " as often as you like. When nothing is missing, write the answer alone between <answer> and </answer>, such as"
    " <answer> Marie Curie </answer>."
)
_HINT = (
    "That was no valid action. Write a query between <search> and </search> to look something up, or the answer"
    " between <answer> and </answer>."
)
_RIGHT, _WRONG, _AGAIN = "The answer is right.", "The answer is wrong.", "The answer is wrong. Try again."


@dataclasses.dataclass(frozen=True)
class Game:
    """What episodes share: item i is the question with this number; a search gives up to `topk` passages."""

    corpus: Corpus
    retriever: Retriever
    questions: Sequence[Question]
    topk: int = 3


class SearchQa(ServiceEnvironment):
    """One episode: a question, searches, and an answer, which ends it with reward 1 if it is right, else 0.

    The first pair of search or answer tags in an action decides what is done. Of several answers the last one counts.
    With `retries`, as on AgentGym's server, the agent is told that an answer is wrong and may give another one.
    """

    def __init__(self, game: Game, *, retries: bool = False):
        self._game, self._retries = game, retries
        self._question: Question | None = None

    def reset(self, item: int) -> StepResult:
        """Asks the question with this number; raises `ItemError` if there is none."""
        if not 0 <= item < len(self._game.questions):
            raise ItemError(f"question {item} does not exist; expected 0 to {len(self._game.questions) - 1}", item)
        self._question = self._game.questions[item]
        return StepResult(f"{_TASK}\n\n Question: {self._question.text}")

    def step(self, action: str) -> StepResult:
        """Searches or judges an answer; `RetrieverError` if a retriever on a server fails."""
        assert self._question is not None
        tagged = TAGGED.search(action)
        if tagged is None:
            return StepResult(_HINT)
        if tagged[1] == "search":
            return StepResult(f"<information>{self._found(tagged[2].strip())}</information>")
        if is_right(answer_in(action) or "", self._question.answers):
            return StepResult(_RIGHT, reward=1.0, score=1.0, done=True)
        return StepResult(_AGAIN if self._retries else _WRONG, done=not self._retries)

    def _found(self, query: str) -> str:
        game, question = self._game, self._question
        assert question is not None
        found = game.retriever.search([query], game.topk, gold=[question.evidence])
        passages = [game.corpus.passages[id_] for id_ in found.ids[0, : found.found[0]].tolist()]
        return "\n".join(f'Doc {i}(Title: "{each.title}") {each.text}' for i, each in enumerate(passages, 1))


def searchqa_service(
    corpus: str | os.PathLike[str], questions: str | os.PathLike[str], *, retriever: str = "bm25", topk: int = 3
) -> Service:
    """The service over a file of passages and one of questions, see `read_corpus` and `read_questions`.

    Raises:
        UserError: a file cannot be used, there is no such retriever, or its package is missing.
        ValueError: the retriever cannot search this corpus.
    """
    passages = read_corpus(corpus)
    numbers = {passage.name: index for index, passage in enumerate(passages.passages)}
    found = make_retriever(retriever, passages, 0)
    return service_of(Game(passages, found, read_questions(questions, numbers), topk))


def service_of(game: Game) -> Service:
    """The service of a game."""
    questions = game.questions

    def oracle(item: int) -> PlannedPolicy:
        titles = [game.corpus.passages[id_].title for id_ in questions[item].evidence]
        return PlannedPolicy([*map(_search, titles), _answer(questions[item].answers[0])])

    def at_random(item: int, seed: int) -> PlannedPolicy:
        rng = random.Random(f"{seed} {item}")
        title, other = rng.choice(game.corpus.passages).title, rng.choice(questions)
        return PlannedPolicy([_search(title), _answer(other.answers[0])])

    return Service(
        name="searchqa",
        make=lambda upstream: SearchQa(game, retries=upstream),
        items=len(questions),
        instruction=INSTRUCTIONS["searchqa"],
        read=raw,
        marked=False,
        turns=TURNS["searchqa"],
        solved=lambda answer: answer.reward == 1,
        success_rule="the last reward is 1, which is paid for a right answer",
        oracle=oracle,
        random=at_random,
        content=lambda item: questions[item].text,
        category=lambda item: questions[item].source,
        answer=searchqa_answer,
    )


def _search(query: str) -> str:
    return f"<search>{query}</search>"


def _answer(answer: str) -> str:
    return f"<answer>{answer}</answer>"
