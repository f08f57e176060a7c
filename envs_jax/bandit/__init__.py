"""Two-armed bandit whose arms are identified only by their names."""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp

from envs_jax.bandit.env import Bandit, BanditParams, BanditState
from envs_jax.bandit.text import is_written
from envs_jax.errors import BadValue

__all__ = ["TAGS", "Bandit", "BanditParams", "BanditState", "make_bandit"]


def make_bandit(
    low: str = "Engineer", high: str = "Teacher", low_reward: float = 0.1, high_reward: float = 1.0
) -> tuple[Bandit, BanditParams]:
    """Makes a bandit with one pair of arms: `low` pays little for sure, `high` pays more on average.

    Raises a `ValueError` if a name is not usable, or a reward is not one that the text can show.
    """
    env = Bandit(((low, high),))
    rewards = {"low_reward": low_reward, "high_reward": high_reward}
    for name, value in rewards.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not is_written(value):
            raise BadValue(
                f"{name} of Bandit is {value!r}; expected a finite number that the text can show, with at most two "
                "decimals below 100, or one up to 999.9",
                name,
                value,
            )
    return env, env.default_params.replace(**{name: jnp.float32(value) for name, value in rewards.items()})


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
