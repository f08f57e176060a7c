"""Questions to be answered by searching: about invented worlds, or over a corpus of the user."""

from envs_jax.searchqa.env import ANSWER, SEARCH, SearchParams, SearchQA, SearchState
from envs_jax.searchqa.make import make_searchqa

__all__ = ["ANSWER", "SEARCH", "SearchParams", "SearchQA", "SearchState", "make_searchqa"]
