"""Two-armed bandit whose arms are identified only by their names."""

from collections.abc import Callable
from functools import partial

from envs_jax.bandit.env import Bandit, BanditParams, BanditState

__all__ = ["TAGS", "Bandit", "BanditParams", "BanditState", "make_bandit"]


def make_bandit(low: str = "Engineer", high: str = "Teacher") -> tuple[Bandit, BanditParams]:
    """Makes a bandit with one pair of arms: `low` pays little for sure, `high` pays more on average.

    Raises a `ValueError` if a name is not usable.
    """
    env = Bandit(((low, high),))
    return env, env.default_params


TAGS: dict[str, Callable[..., tuple[Bandit, BanditParams]]] = {
    "Bandit": make_bandit,
    "BanditTest": partial(make_bandit, low="Trader", high="Librarian"),
    "BanditRev": partial(make_bandit, low="Teacher", high="Engineer"),
    "BanditRevTest": partial(make_bandit, low="Librarian", high="Trader"),
    "BanditPhoenix": partial(make_bandit, low="Phoenix", high="Dragon"),
}
"""RAGEN's pairs: professions for training and test, the same with the roles exchanged, and its default names.

"Rev" follows RAGEN's launch script. Its paper (arXiv 2504.20073) gives that label to the pair with Librarian as the
high arm, which is `BanditTest` here.
"""
