"""Questions about invented worlds, to be answered by searching."""

from envs_jax.searchqa.env import ANSWER, SEARCH, SearchParams, SearchQA, SearchState

__all__ = ["ANSWER", "SEARCH", "SearchParams", "SearchQA", "SearchState", "make_searchqa"]


def make_searchqa(
    entities: int = 300, results: int = 3, information_pieces: int | None = None
) -> tuple[SearchQA, SearchParams]:
    """Makes the environment with worlds of so many entities, see `SearchQA`; ValueError for a number out of range."""
    env = SearchQA(entities, results, information_pieces=information_pieces)
    return env, env.default_params
