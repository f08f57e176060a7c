"""Plays episodes with an API model, several at a time."""

import concurrent.futures
import dataclasses
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from agentrl_jax.evaluate.api_models.answers import Reply
from agentrl_jax.evaluate.api_models.client import ChatClient, GivenUp, Refused
from agentrl_jax.evaluate.api_models.journal import Journal, Row, digest
from agentrl_jax.evaluate.api_models.tasks import ApiTask, Outcome, TextEpisode
from agentrl_jax.services.client import ServiceError
from agentrl_jax.text.chat_template import Message

Key = tuple[int, int]
"""Item and sample."""

FAILURES_IN_A_ROW = 16
"""Episodes without a reply in a row after which no more are started."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Player:
    """Plays episodes of a task with the replies of a journal, and asks the client for those that it lacks.

    With a `seed`, every request has a seed by item, sample and turn. With `token_ids`, replies are sent back
    with the tokens that the server gave for them. The first sample of an item has up to `attempts` attempts at it.
    """

    task: ApiTask
    client: ChatClient
    journal: Journal
    seed: int | None = None
    token_ids: bool = False
    attempts: int = 1

    def play(self, key: Key) -> Row:
        """Plays an episode and writes its row, which has how it ended as `status`: answered, length or refusal.

        A reply that was cut or withheld ends the episode and is not carried out; its `score` is null, because what the
        environment gave before is not the model's result. The row is that of the first attempt.
        If there may be several, it has all of them as `attempts`; only the first sample of an item has retries.
        A conversation that the server refuses, without a reason that is known, has the status failed; its row has the
        reason as `refused` and is not written, so that it is played again by another call.

        Raises:
            GivenUp: the model has not replied; the journal has the replies before.
            ServiceError: the environment has failed.
            UserError: the server refuses the request for good.
        """
        item, sample = key
        most = self.attempts if sample == 0 else 1
        episode = self.task.open(item, sample)
        attempts: list[Row] = []
        turn = began = 0
        refused = ""
        try:
            added = _as_dicts(episode.start())
            messages = list(added)
            while True:
                try:
                    reply = self._reply(key, turn, messages, added, episode)
                except Refused as error:
                    attempts.append(self._attempt("failed", turn - began, episode.outcome()))
                    refused = str(error)
                    break
                turn += 1
                status = "answered" if reply.finish == "stop" else reply.finish
                if status == "answered":
                    added = _as_dicts(episode.step(reply.text))
                outcome = episode.outcome()
                if status != "answered" or outcome.done or turn - began == self.task.turns:
                    attempts.append(self._attempt(status, turn - began, outcome))
                    if status != "answered" or outcome.solved or len(attempts) == most:
                        break
                    added, began = _as_dicts(episode.again()), turn
                given = {"token_ids": reply.token_ids} if self.token_ids and reply.token_ids else {}
                messages += [{"role": "assistant", "content": reply.text} | given, *added]
        finally:
            episode.close()
        row: Row = {"item": item, "sample": sample} | attempts[0]
        row |= {"category": self.task.category(item)} if self.task.category else {}
        row |= {"attempts": attempts} if most > 1 else {}
        if refused:
            return row | {"refused": refused}
        self.journal.add_episode(row)
        return row

    def _attempt(self, status: str, turns: int, outcome: Outcome) -> Row:
        score = float(outcome.score) if status == "answered" else None
        row: Row = {"status": status, "turns": turns, "solved": bool(outcome.solved), "score": score}
        return row | ({"strict": bool(outcome.strict)} if self.task.strict else {})

    def _reply(
        self,
        key: Key,
        turn: int,
        messages: Sequence[dict[str, Any]],
        added: Sequence[dict[str, Any]],
        episode: TextEpisode,
    ) -> Reply:
        item, sample = key
        if (row := self.journal.reply(item, sample, turn, messages)) is not None:
            return Reply(**row["reply"])
        seed = None if self.seed is None else zlib.crc32(f"{self.seed} {item} {sample} {turn}".encode())
        reply = self.client.ask(messages, seed=seed)
        said = {name: value for name, value in dataclasses.asdict(reply).items() if value not in (None, "")}
        row = {"item": item, "sample": sample, "turn": turn, "asked": digest(messages), "added": list(added)}
        row |= {} if turn else {"level": episode.level()}
        self.journal.add_reply(row | {"reply": {"text": "", **said}})
        return reply


def _as_dicts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [dict(role=role, content=text) for role, text in messages]


class Played(NamedTuple):
    """What did not end well, by item and sample."""

    unfinished: dict[Key, str]
    """Why episodes could not be played to their end."""
    refused: dict[Key, Row]
    """Rows of episodes with a conversation that the server refuses."""


def play_all(
    play: Callable[[Key], Row],
    keys: Sequence[Key],
    concurrency: int,
    done: Callable[[Key, Row | None], None],
    client: ChatClient,
) -> Played:
    """Plays episodes in at most `concurrency` threads, all of which have ended afterwards; then `client` is closed.

    After `FAILURES_IN_A_ROW` unfinished episodes the rest is not played either; refused conversations do not count once
    the model has replied to others, since the server is well. `done` is called in this thread for every episode that
    has ended, with None for one that is unfinished. Any other error ends all.
    """
    found, in_a_row = Played({}, {}), 0
    futures: dict[concurrent.futures.Future[Row], Key] = {}

    def ended(future: concurrent.futures.Future[Row]) -> None:
        nonlocal in_a_row
        key = futures.pop(future)
        try:
            row = future.result()
        except (GivenUp, ServiceError) as error:
            found.unfinished[key], in_a_row = str(error), in_a_row + 1
            done(key, None)
            return
        in_a_row = in_a_row + 1 if "refused" in row and not client.replied else 0
        if "refused" in row:
            found.refused[key] = row
        done(key, row)

    with ThreadPoolExecutor(max(1, min(concurrency, len(keys))), "episode") as threads:
        try:
            futures |= {threads.submit(play, key): key for key in keys}
            for future in concurrent.futures.as_completed(list(futures)):
                ended(future)
                if in_a_row >= FAILURES_IN_A_ROW:
                    break
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            client.close()  # so that those who wait for an answer end now
    why = f"not played, after {FAILURES_IN_A_ROW} episodes in a row without a reply"
    for future, key in list(futures.items()):
        if future.cancelled() or isinstance(future.exception(), GivenUp):
            found.unfinished[key] = why
        else:  # it ended meanwhile
            ended(future)
    return found
