"""Checks of the user's functions of a `Trajectory`, parts of the reward and metrics, on a few episodes.

What an environment tells is known when it is built, so these checks come later than those of `own_checks`.

Shapes: `E` episodes, `T` turns.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.config import Config
from agentrl_jax.config.own import OwnMetric
from agentrl_jax.config.rewards import Info, OwnPart
from agentrl_jax.errors import MAX_FOREIGN, BadValue, shortened
from agentrl_jax.learner import own
from agentrl_jax.rollout.contexts import no_join
from agentrl_jax.rollout.returns import PARTS
from agentrl_jax.rollout.trajectory import TRUNCATIONS, EpisodeIds, Response, Trajectory, unplayed
from agentrl_jax.setup.own_checks import failure, refuse_untraceable

EPISODES, TURNS, SAID, ACTIONS = 8, 3, 4, 2


def check_episode_functions(config: Config, info_keys: Sequence[str]) -> None:
    """Checks the parts of the reward and the metrics of a run whose environments tell numbers of these names.

    Raises:
        ValueError: what one of them does wrong.
    """
    functions: dict[str, tuple[OwnPart | OwnMetric, Any]] = {}
    for name, part in config.algo.rewards.items():
        key = f"algo.rewards.{name}"
        if isinstance(part, Info) and part.key not in info_keys:
            known = ", ".join(info_keys) or "nothing"
            raise BadValue.of(f"{key}.key", part.key, f"but the environments of this run tell {known}")
        if isinstance(part, OwnPart):
            functions[key] = part, PARTS[part.kind]
    for name, metric in config.train.metrics.items():
        functions[f"train.metrics.{name}"] = metric, own.METRICS[metric.kind]
    if functions:  # the episodes take a second to make
        episodes = made_episodes(info_keys)
        for key, (section, function) in functions.items():
            _check(key, section, function, episodes)


def made_episodes(info_keys: Sequence[str]) -> Trajectory:
    """Random episodes of which one failed, one was truncated, and some turns were not played."""
    draw, shape = np.random.default_rng(5), (EPISODES, TURNS)
    num_turns = draw.integers(1, TURNS + 1, EPISODES)
    played, last = np.arange(TURNS) < num_turns[:, None], np.arange(TURNS) == num_turns[:, None] - 1
    number = jnp.arange(EPISODES, dtype=jnp.int32)
    turn = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), unplayed(EPISODES * TURNS, ACTIONS, info_keys))
    length = np.where(played, draw.integers(1, SAID + 1, shape), 0)
    truncation = np.where(number == 1, 1 + TRUNCATIONS.index("turns"), 0)
    return Trajectory(
        prompt=jnp.ones((EPISODES, 2), jnp.int32),
        prompt_length=jnp.full(EPISODES, 2),
        observation=jnp.asarray(draw.integers(0, 9, (*shape, 5)), jnp.int32),
        observation_length=jnp.asarray(np.where(played, draw.integers(1, 6, shape), 0), jnp.int32),
        join=jax.tree.map(lambda x: x.reshape(shape), no_join(EPISODES * TURNS)),
        response=Response(
            tokens=jnp.asarray(draw.integers(0, 9, (*shape, SAID)), jnp.int32),
            length=jnp.asarray(length, jnp.int32),
            logprob=jnp.float32(draw.uniform(-3.0, -0.1, (*shape, SAID))),
            ended=jnp.asarray(length < SAID) & played,
        ),
        turn=turn.replace(
            actions=jnp.asarray(np.where(played[..., None], draw.integers(-1, 4, (*shape, ACTIONS)), -1), jnp.int32),
            reward=jnp.float32(np.where(played, draw.normal(size=shape), 0.0)),
            valid=jnp.asarray(played & (draw.random(shape) < 0.5)),
            format_error=jnp.asarray(played & (draw.random(shape) < 0.5), jnp.int32),
            state_hash=jnp.asarray(draw.integers(0, 3, (*shape, 2)), jnp.uint32),
            terminated=jnp.asarray(last & (truncation == 0)[:, None]),
            success=jnp.asarray(last & (number % 2 == 0)[:, None]),
            failed=jnp.asarray(last & (number == EPISODES - 1)[:, None]),
            info={name: jnp.float32(np.where(played, draw.normal(size=shape), 0.0)) for name in info_keys},
        ),
        num_turns=jnp.asarray(num_turns, jnp.int32),
        ids=EpisodeIds(group=number // 2, member=number % 2, task=0 * number, level=0 * number - 1),
        overflow=jnp.zeros(EPISODES, bool),
        truncation=jnp.asarray(truncation, jnp.int32),
        final_observation=jnp.zeros((EPISODES, 5), jnp.int32),
        final_observation_length=jnp.asarray(2 * (truncation > 0), jnp.int32),
        final_join=no_join(EPISODES),
    )


def _check(key: str, section: OwnPart | OwnMetric, function: Any, episodes: Trajectory) -> None:
    numbers = {name: jnp.float32(value) for name, value in section.numbers.items()}

    def traced(episodes: Trajectory, numbers: Any) -> Any:
        return function(episodes, section, numbers)

    with jax.debug_nans(False):
        refuse_untraceable(key, section, traced, episodes, numbers)
        program = jax.jit(traced)
        found = program(episodes, numbers)
        shapes = jax.tree.map(lambda x: tuple(jnp.shape(x)), found)
        wanted: Any = ((), ()) if isinstance(section, OwnMetric) else (EPISODES, TURNS)
        if shapes != wanted:
            what = "(sum, count), two numbers" if isinstance(section, OwnMetric) else "a number for each turn, [E, T]"
            raise BadValue.of(key, section.kind, f"which returns {_described(shapes)} of shape; expected {what}")
        if not all(np.isfinite(np.asarray(x, np.float64)).all() for x in jax.tree.leaves(found)):
            raise BadValue.of(key, section.kind, "which is not finite")
        if isinstance(section, OwnMetric):
            return
        halves = (jax.tree.map(lambda x, n=n: jnp.split(x, 2)[n], episodes) for n in range(2))
        try:
            apart = np.concatenate([np.asarray(traced(half, numbers)) for half in halves])
        except Exception as error:
            raise BadValue.of(key, section.kind, failure(error)) from error
        if not np.allclose(apart, np.asarray(found), rtol=1e-5, atol=1e-6):
            why = "whose value of an episode depends on other episodes; a part is of each episode for itself"
            raise BadValue.of(key, section.kind, why)


def _described(shapes: Any) -> str:
    return shortened(str(shapes), MAX_FOREIGN)
