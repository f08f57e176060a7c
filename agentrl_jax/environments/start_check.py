"""What is tried of a Python environment before a run begins: that its episodes can be played, and repeated."""

import random
from collections.abc import Sequence

from agentrl_jax.environments.pool import Opened, Pool
from agentrl_jax.environments.protocol import HostStep
from agentrl_jax.errors import BadValue, shortened


def check_start(pool: Pool, items: Sequence[int], turns: int) -> None:
    """Plays an episode of 0 and of each of `items` to its end, with random actions, in two environments at once.

    One of them plays it again after another reset, if environments are used again. All have to show the same.

    Raises:
        threads.Failed: a method fails, or returns what it must not.
        ValueError: episodes with equal seeds and responses differ, although the class is `deterministic`.
    """
    for item in sorted({0, *items}):
        one, other = pool.open(), pool.open()
        try:
            first = one.reset(item), other.reset(item)
            _compare(pool, "reset", item, *first)
            if not pool.traits.deterministic:
                _play(pool, one, item, turns)
                continue
            played = [_play(pool, one, item, turns), _play(pool, other, item, turns)]
            if pool.traits.reuse:
                _compare(pool, "reset", item, first[0], one.reset(item))
                played.append(_play(pool, one, item, turns))
            for steps in played[1:]:
                for before, after in zip(played[0], steps, strict=False):
                    _compare(pool, "step", item, before, after)
        finally:
            one.close()
            other.close()


def _play(pool: Pool, env: Opened, item: int, turns: int) -> list[HostStep]:
    """Plays random actions, or an empty answer where none are declared, from a reset on."""
    draw, steps = random.Random(item), []
    for _ in range(turns):
        actions = draw.choices(pool.traits.actions, k=1) if pool.traits.actions else []
        steps.append(env.step(f"<answer>{''.join(actions)}</answer>", actions))
        if steps[-1].terminated or steps[-1].truncated:
            break
    return steps


def _compare(pool: Pool, method: str, item: int, before: object, after: object) -> None:
    if before != after:
        hint = "take everything random from the seed" + (
            "" if method == "reset" else ", or set deterministic = False in the class"
        )
        raise BadValue(
            f"{pool.name}.{method} answers differently to equal seeds and responses, first with seed {item}: "
            f"{shortened(before)!r} and {shortened(after)!r}; {hint}",
            key=f"{pool.name}.{method}",
            value=item,
        )
