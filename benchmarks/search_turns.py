"""Turns per second of searchqa alone, without a model: in the compiled program, on the host, and over HTTP.

    pip install --no-deps 'bm25s>=0.3.16,<0.4'
    python benchmarks/search_turns.py --passages 10000 --episodes 64

Passages and questions are those of invented worlds, written to files that all of them read. Every episode searches
three times (with the question, and with two titles) and then answers. `compiled` plays all episodes in one program;
`host` is the environment of `agentrl serve searchqa` in this process, one search after another, with the package bm25s;
`host, in batches` gives its retriever all queries of a turn at once; `HTTP` is `agentrl serve searchqa` on loopback,
with an instance and a thread for each episode. Rounds of all alternate, and the medians are printed. The texts of all
searches are compared.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.retrieval.corpus import read_corpus
from agentrl_jax.retrieval.registry import make_retriever
from agentrl_jax.services.client import ServiceClient
from agentrl_jax.services.environments.searchqa.env import Game, SearchQa
from agentrl_jax.services.environments.searchqa.questions import read_questions
from agentrl_jax.services.protocol import routes_of
from envs_jax.searchqa import ANSWER, SEARCH, SearchQA, make_searchqa, text
from envs_jax.searchqa.questions import ask, question_pieces
from envs_jax.searchqa.world import MOST, name_pieces, passage

RESULTS, SEARCHES = 3, 3
Commands = list[list[tuple[int, str]]]
"""By turn and episode: the id of the command and its argument."""


def write_files(folder: Path, passages: int, episodes: int) -> tuple[str, str]:
    """A corpus of one or more invented worlds, and a question about the first one for each episode."""
    rows, questions = list[dict[str, str]](), list[dict[str, str]]()
    worlds = -(-passages // MOST)
    for seed in range(worlds):
        env = SearchQA(passages // worlds + (seed < passages % worlds))
        world = jax.jit(env.world)(jnp.uint32(seed))
        both = jax.jit(jax.vmap(lambda entity, world=world: (name_pieces(world, entity), passage(world, entity))))
        for name, words in zip(*map(np.asarray, both(jnp.arange(env.entities)))):
            rows.append({"id": str(len(rows)), "title": spelled(name), "text": spelled(words).strip()})
        if seed == 0:

            def asked(key, world=world, shares=env.default_params.shares):
                question = ask(key, world, shares)
                return question_pieces(world, question), question.gold, question.gold_length

            found = jax.jit(jax.vmap(asked))(jax.random.split(jax.random.key(0), episodes))
            for pieces, gold, length in zip(*map(np.asarray, found)):
                answer = gold[:length].tobytes().decode()
                questions.append({"question": spelled(pieces), "golden_answers": answer})
    return written(folder / "corpus.jsonl", rows), written(folder / "questions.jsonl", questions)


def spelled(pieces: np.ndarray) -> str:
    return "".join(text.PIECES[i] for i in pieces.tolist() if i >= 0)


def written(file: Path, rows: Sequence[dict[str, str]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def scripted(game: Game) -> Commands:
    """The searches and the answer of an episode on each question."""
    titles = np.random.default_rng(0).integers(len(game.corpus), size=(SEARCHES - 1, len(game.questions)))
    turns: Commands = [[(SEARCH, question.text) for question in game.questions]]
    turns += [[(SEARCH, game.corpus.passages[i].title) for i in row] for row in titles]
    return [*turns, [(ANSWER, question.answers[0]) for question in game.questions]]


def compiled(corpus: str, questions: str, commands: Commands) -> tuple[Callable[[], object], list[list[str]]]:
    """Plays all episodes in one program; and the texts of the searches."""
    env, params = make_searchqa(corpus, questions, dialect="agentgym", results=RESULTS)
    stacked = [
        jax.tree.map(lambda *x: np.stack(x), *(env.command(action, each.encode()) for action, each in turn))
        for turn in commands
    ]
    turns = jax.tree.map(lambda *x: jnp.stack(x), *stacked)

    @jax.jit
    def play(params, turns):
        states = jax.vmap(lambda question: env.start(question, params))(jnp.arange(len(commands[0]), dtype=jnp.int32))

        def turn(states, command):
            step = jax.vmap(lambda state, command: env.step_env(jax.random.key(0), state, command, params))
            shown, states, reward, *_ = step(states, command)
            return states, (shown, reward)

        return jax.lax.scan(turn, states, turns)[1]

    pieces, rewards = jax.device_get(play(params, turns))
    assert rewards.sum() == len(commands[0]), "an answer was not right"
    texts = [["".join(env.pieces[i] for i in row if i >= 0) for row in turn] for turn in pieces[:SEARCHES]]
    return lambda: jax.block_until_ready(play(params, turns)), texts


def on_host(game: Game, commands: Commands) -> list[list[str]]:
    """Plays all episodes, one search after another; the texts of the searches."""
    envs = [SearchQa(game) for _ in game.questions]
    for item, env in enumerate(envs):
        env.reset(item)
    found = [[env.step(tagged(*each)).observation for env, each in zip(envs, turn)] for turn in commands]
    return found[:SEARCHES]


def in_batches(game: Game, commands: Commands) -> None:
    """What `on_host` searches for, all queries of a turn at once."""
    for turn in commands[:SEARCHES]:
        game.retriever.search([query for _, query in turn], RESULTS)


def tagged(action: int, argument: str) -> str:
    name = "answer" if action == ANSWER else "search"
    return f"<{name}>{argument}</{name}>"


@contextmanager
def server(corpus: str, questions: str, instances: int) -> Iterator[str]:
    """The address of `agentrl serve searchqa`, which ends with the block."""
    words = [sys.executable, "-m", "agentrl_jax", "serve", "searchqa", "--corpus", corpus, "--questions", questions]
    words += ["--port", "0", "--announce", "--topk", str(RESULTS), "--max_instances", str(instances)]
    log = Path(corpus).with_name("log")
    with (
        open(log, "w", encoding="utf-8") as errors,
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start: {log.read_text(encoding='utf-8')}")
        yield json.loads(line)["url"]
        process.terminate()


def over_http(client: ServiceClient, pool: ThreadPoolExecutor, handles: list[int], commands: Commands) -> float:
    """Plays all episodes, each in a thread; the seconds of their turns, without the resets."""
    list(pool.map(client.reset, handles, range(len(handles))))
    begin = time.perf_counter()

    def episode(number: int) -> None:
        for turn in commands:
            client.step(handles[number], tagged(*turn[number]))

    list(pool.map(episode, range(len(handles))))
    return time.perf_counter() - begin


def seconds(play: Callable[[], object]) -> float:
    begin = time.perf_counter()
    play()
    return time.perf_counter() - begin


def main(words: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--passages", type=int, default=10_000)
    options.add_argument("--episodes", type=int, default=64)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder), given.passages, given.episodes)
        corpus = read_corpus(files[0])
        begin = time.perf_counter()
        game = Game(corpus, make_retriever("bm25", corpus, 0), read_questions(files[1], {}), RESULTS)
        indexed = time.perf_counter() - begin
        commands = scripted(game)
        begin = time.perf_counter()
        in_program, ours = compiled(*files, commands)
        made = time.perf_counter() - begin
        theirs = on_host(game, commands)
        differ = sum(a != b for turn, other in zip(ours, theirs) for a, b in zip(turn, other))
        with server(*files, given.episodes) as url, ThreadPoolExecutor(given.episodes) as pool:
            client = ServiceClient(url, routes_of("searchqa"), connections=given.episodes)
            handles = [client.create() for _ in range(given.episodes)]
            ways: dict[str, Callable[[], float]] = {
                "compiled": lambda: seconds(in_program),
                "host": lambda: seconds(lambda: on_host(game, commands)),
                "host, in batches": lambda: seconds(lambda: in_batches(game, commands)),
                "HTTP": lambda: over_http(client, pool, handles, commands),
            }
            rounds = [{name: play() for name, play in ways.items()} for _ in range(given.rounds)]
            client.close()
    turns = given.episodes * len(commands)
    print(f"{given.passages} passages, {given.episodes} episodes of {len(commands)} turns, {given.rounds} rounds")
    print(f"index of bm25s {indexed:.1f} s; compiled environment {made:.1f} s, with its compilation")
    print("| way | turns/s | lowest, highest | compiled over it |\n| --- | --- | --- | --- |")
    middle = {name: turns / np.median([each[name] for each in rounds]) for name in ways}
    for name, rate in middle.items():
        ends = [turns / pick(each[name] for each in rounds) for pick in (max, min)]
        print(f"| {name} | {rate:,.0f} | {ends[0]:,.0f}, {ends[1]:,.0f} | {middle['compiled'] / rate:.1f} |")
    print(f"searches with other texts in compiled and host: {differ} of {len(commands[0]) * SEARCHES}")


if __name__ == "__main__":
    main()
