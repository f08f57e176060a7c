"""Divides the levels of a Python environment into training, validation and test: by content, else by number."""

import bisect
import collections
import dataclasses
import hashlib
from collections.abc import Callable, Sequence

from agentrl_jax.environments.pool import Opened
from agentrl_jax.environments.protocol import SPLITS, Traits
from agentrl_jax.errors import BadValue

SEEDS = range(2**31)
"""Seeds of an environment without items; `EpisodeIds.level` holds no larger ones."""

BOUNDS = (0.8, 0.9)
"""Up to where the contents, or the items, are of training, and of validation."""

MIN_LEVELS = 8
"""Different levels that each split needs, as in `rollout.envs.level_splits`; with fewer, none is held out."""

STALE = 1024
"""Seeds in a row without a new content, after which there are no more."""

TRIES = 256
"""Seeds that are tried for a training level; the chance that none is one is below 10^-100."""

NEAR, FAR = 16, 0x61C88647
"""So many neighbors are tried first, then seeds so far apart, because neighbors may have one content."""


@dataclasses.dataclass(frozen=True)
class Levels:
    """Which items, or seeds, belong to which split."""

    training: Sequence[int]
    held_out: tuple[int, ...]
    validation: tuple[int, ...]
    bounds: tuple[float, float] | None = None
    """Of seeds that are divided by their contents, see `training_seed`; None for others."""
    undivided: str = ""
    """Why no level is held out; empty if they are divided."""


def divide(traits: Traits, env: Opened, tests: int, validations: int) -> Levels:
    """Divides the levels; of seeds, the first `tests` and `validations` different ones are held out.

    Raises:
        threads.Failed: the environment cannot say a content.
    """
    if traits.splits is not None:
        of = {name: tuple(traits.splits.get(name, ())) for name in SPLITS}
        return Levels(of["train"], of["test"], of["validation"])
    if traits.has_content:
        return _by_content(range(traits.items) if traits.items else SEEDS, env.content, tests, validations)
    if traits.items:
        first, second = (round(traits.items * bound) for bound in BOUNDS)
        parts = tuple(range(first)), tuple(range(second, traits.items)), tuple(range(first, second))
        if min(map(len, parts)) < MIN_LEVELS:
            return _undivided(range(traits.items), f"there are {traits.items} items")
        return Levels(*parts)
    held_out = tests + validations
    return Levels(SEEDS[held_out:], tuple(SEEDS[:tests]), tuple(SEEDS[tests:held_out]))


def training_seed(seed: int, content: Callable[[int], str], bounds: tuple[float, float]) -> int:
    """The first seed from `seed` on whose content is of training: of the next ones, then of others far away."""
    for tried in range(TRIES):
        number = (seed + tried * (1 if tried < NEAR else FAR)) % len(SEEDS)
        if _share(content(number)) < bounds[0]:
            return number
    raise BadValue.of("seed", seed, f"after which none of {TRIES} seeds has a content of training; see `content`")


def _share(content: str) -> float:
    """A number from 0 to 1 by which contents are divided."""
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest(), "big") / 2**64


def _by_content(numbers: range, content: Callable[[int], str], tests: int, validations: int) -> Levels:
    """Divides different contents: those of items, or of seeds as far as there are enough, or none is new."""
    seeds, found, last = numbers is SEEDS, {}, 0
    wanted = {0: MIN_LEVELS, 1: validations, 2: tests}
    counts, finite = collections.Counter[int](), True
    for count, number in enumerate(numbers):
        share = _share(content(number))
        if share not in found:
            found[share] = number
            counts[bisect.bisect(BOUNDS, share)] += 1
            last = count
        if seeds and all(counts[part] >= least for part, least in wanted.items()):
            finite = False
            break
        if seeds and count - last >= STALE:
            break
    bounds, shares = BOUNDS, sorted(found)
    # Where contents are few, the shares are exact: chance might leave a small one below the minimum.
    if finite and len(shares) * (1 - BOUNDS[1]) >= MIN_LEVELS:
        bounds = shares[round(len(shares) * BOUNDS[0])], shares[round(len(shares) * BOUNDS[1])]
    parts: list[list[int]] = [[], [], []]
    for share, number in found.items():
        parts[bisect.bisect(bounds, share)].append(number)
    if finite and min(map(len, parts)) < MIN_LEVELS:
        return _undivided(sorted(found.values()), f"{len(found)} different contents were found")
    held_out, validation = tuple(parts[2]), tuple(parts[1])
    if seeds:
        return Levels(SEEDS, held_out[:tests], validation[:validations], bounds)
    return Levels(tuple(parts[0]), held_out, validation)


def _undivided(items: Sequence[int], why: str) -> Levels:
    every = tuple(items)
    return Levels(every, every, every, undivided=f"{why}; at least {MIN_LEVELS} for each split are needed")
