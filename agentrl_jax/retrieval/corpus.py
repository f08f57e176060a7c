"""Passages that are searched, and the reader of their files, see `envs_jax.retrieval.corpus`."""

import os

from agentrl_jax.errors import refusals
from envs_jax.retrieval import corpus as files
from envs_jax.retrieval.corpus import Corpus as Corpus
from envs_jax.retrieval.corpus import Passage as Passage


def read_corpus(path: str | os.PathLike[str]) -> Corpus:
    """As `files.read_corpus`; raises UserError where that raises BadValue."""
    with refusals():
        return files.read_corpus(path)
