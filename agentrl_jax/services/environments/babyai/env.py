"""BabyAI as AgentGym serves it (arXiv 2406.04151): one compiled environment, shared by all instances."""

import base64
import dataclasses
import difflib
import functools
import io
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int8

from agentrl_jax.errors import BadValue
from agentrl_jax.services.environment import (
    ItemError,
    Outcomes,
    Panel,
    ScriptedPolicy,
    Service,
    ServiceEnvironment,
    StepResult,
)
from agentrl_jax.services.environments.babyai.protocol import READ
from agentrl_jax.services.environments.common import ListedPolicy, PlannedPolicy
from envs_jax.babyai import items, macros, plans, text
from envs_jax.babyai.env import BabyAI, BabyAIParams
from envs_jax.babyai.generator import make_generator
from envs_jax.babyai.render import picture

ITEMS = 2**31
"""Number of items."""

TURNS = 20
"""Rounds of AgentGym-RL's evaluation."""

RANDOM_PLAYS = 56
"""Episodes of random play on each item, which give its success on the panel with a standard error of 0.6 %."""

_ROWS = 1024
"""Episodes that are played at a time."""

_ACTIONS = {name: number for number, name in enumerate(macros.action_names())}

Level = Int8[np.ndarray, "H W"]


class Programs(NamedTuple):
    """The environment of a mode, and its functions compiled, not batched.

    Both return a state and what is shown of it: text pieces, the reward of the last action, whether it was carried out,
    whether the episode is over, and the primitive actions so far and at most.
    """

    env: BabyAI
    params: BabyAIParams
    reset: Callable[[Level], tuple[Any, Any]]
    step: Callable[[Any, Any], tuple[Any, Any]]


_compiling = threading.Lock()


def programs(upstream: bool) -> Programs:
    """The compiled functions; compiled by the first call, whichever thread makes it."""
    with _compiling:
        return _compile(upstream)


@functools.cache
def _compile(upstream: bool) -> Programs:
    env = BabyAI(items.SHAPE, mode="upstream" if upstream else "intended")
    params = env.default_params.replace(max_steps_in_episode=jnp.int32(2**31 - 1))  # clients count the rounds

    def shown(state: Any) -> Any:
        carried_out = state.notice.code == text.SEEN
        pieces = env.describe(state, params)
        return pieces, state.reward, carried_out, env.is_done(state, params), state.world.steps, state.max_steps

    def reset(level: jax.Array) -> tuple[Any, Any]:
        _, state = env.reset_to_level(level, params)
        return state, shown(state)

    def step(state: Any, action: jax.Array) -> tuple[Any, Any]:
        _, state, *_ = env.step_env(jax.random.key(0), state, action, params)
        return state, shown(state)

    compiled = Programs(env, params, jax.jit(reset), jax.jit(step))
    state, _ = compiled.reset(items.load(items.stored_indices()[:1])[0])
    compiled.step(state, np.int32(macros.CHECK))
    return compiled


def level_of(item: int, *, upstream: bool) -> Level:
    """The level of an item, of `items.SHAPE`: AgentGym's own if it is stored, otherwise one of the same distribution.

    Without `upstream` a stored one that nobody can solve is generated too. Raises `ItemError` if there is no such item.
    """
    if not 0 <= item < ITEMS:
        raise ItemError(f"The data_idx {item} is not valid: expected 0 to {ITEMS - 1}.", item)
    if item in _stored_items(upstream):
        return items.load((item,))[0]
    level = np.asarray(_generator(items.number_of(item), upstream)(jax.random.key(item)))
    if not level[items.SHAPE.height, 0]:
        raise ItemError(f"The data_idx {item} has no level: none was found in all tries.", item)
    return level


@functools.cache
def _stored_items(upstream: bool) -> frozenset[int]:
    """The stored items that are played as they are."""
    return frozenset(items.stored_indices()) - (frozenset() if upstream else frozenset(items.UNSOLVABLE))


def _generator(number: int, upstream: bool) -> Callable[[Any], Any]:
    with _compiling:  # the episodes of a group begin at once, on the same item
        return _compile_generator(number, upstream)


@functools.cache
def _compile_generator(number: int, upstream: bool) -> Callable[[Any], Any]:
    generate = jax.jit(make_generator((number,), items.SHAPE, upstream=upstream))
    return generate.lower(jax.random.key(0)).compile()


def action_id(action: str, *, upstream: bool) -> int:
    """The action that a text names, whatever its case; any text with `check` asks for the list of actions.

    AgentGym's client tells its model of `pick up`, which AgentGym's server does not know.
    """
    name = action.lower().strip()
    if not upstream and name.startswith("pick up "):
        name = f"pickup {name.removeprefix('pick up ').strip()}"
    if "check" in name:
        return macros.CHECK
    return _ACTIONS.get(name, macros.UNKNOWN) if name else macros.NO_ACTION


class BabyAIInstance(ServiceEnvironment):
    """One episode.

    Item i is level i mod 40 + 1 with seed i div 40, as in AgentGym: the stored items are the levels that its server
    makes, but for `items.UNSOLVABLE`. Any other item below 2**31, and these four, is a level of the same kind and
    distribution, but not the same one.

    Answers are the original's, text by text, with these differences:

    * A mission that is fulfilled or failed ends the episode at once, in the middle of an action too, as does MiniGrid's
      limit of primitive actions. There, only the last primitive action counts, so `toggle and go through` loses the
      success of a mission to open this door; and an episode continues after failure, after a success with a reward of
      0.5 or less (which can be repeated), and beyond the limit, where rewards are negative.
    * An action that is not possible has reward 0. There, it repeats the last reward, which is added to the score again.
    * Where two texts print a Python dict in place of a number, there is the number.
    * Every level can be solved. There, a key can be behind its own door, the goal fenced in, and the action that opens
      the first of two doors fails a strict mission to open the second.
    * `pick up` means `pickup`.

    With `upstream`, all of these are as there. In both, the tenth object of a name cannot be named in an action, and
    /observation and /render also answer after the end of an episode.
    """

    def __init__(self, *, upstream: bool = False):
        self._upstream, self._programs = upstream, programs(upstream)
        self._state: Any = None
        self._goal = ""
        self._last: StepResult | None = None

    def reset(self, item: int) -> StepResult:
        """Starts an episode on the level of an item."""
        self._state, shown = self._programs.reset(level_of(item, upstream=self._upstream))
        self._last = None
        answer = self._answer(shown)
        self._goal = answer.observation.partition("\n")[0]
        return answer

    def step(self, action: str) -> StepResult:
        """Takes the named action."""
        assert self._last is not None
        if self._last.done:
            return dataclasses.replace(self._last, reward=0.0)
        self._state, shown = self._programs.step(self._state, np.int32(action_id(action, upstream=self._upstream)))
        return self._answer(shown)

    def observation(self) -> dict[str, Any]:
        """The goal with the last observation, and the other fields of the answer to a reset."""
        last = self._last or StepResult("Environment not initialized")
        goal = f"{self._goal}\n" if self._goal and not last.observation.startswith(self._goal) else ""
        return {
            "observation": goal + last.observation,
            "reward": last.reward,
            "score": last.score,
            "done": last.done,
            "deleted": False,
        }

    def render(self) -> str:
        """A picture of the whole level as a data URL, what the agent sees made lighter."""
        file = io.BytesIO()
        picture(self._state).save(file, "PNG")
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"

    def _answer(self, shown: Any) -> StepResult:
        pieces, earned, carried_out, done, steps, limit = jax.device_get(shown)
        before = self._last
        if carried_out:  # in double precision, as MiniGrid computes it
            reward = 1 - 0.9 * (int(steps) / int(limit)) if earned else 0.0
        else:
            reward = before.reward if before is not None and self._upstream else 0.0
        score = reward + (before.score if before is not None else 0.0)
        known = self._programs.env.pieces
        observation = "".join(known[piece] for piece in pieces.tolist() if piece >= 0)
        self._last = StepResult(observation, reward, score, bool(done))
        return self._last


def is_strict_success(answer: StepResult) -> bool:
    """Whether the episode is over with a reward above 0.5, which is when AgentGym's server ends one."""
    return answer.done and answer.reward > 0.5


@functools.cache
def _plan(item: int, upstream: bool) -> plans.Plan | None:
    """A plan for the level of a mode, by AgentGym's rules; one that is not stored is searched for, in seconds.

    In the default mode it is one by the intended rules where there is none by AgentGym's that keeps them too.
    """
    if item in plans.stored() and item in _stored_items(upstream):
        return plans.stored()[item]
    level = level_of(item, upstream=upstream)[None]
    (plan,) = plans.find(*programs(True)[:2], level)
    if not upstream and not _solves(plan or (), level[0]):
        (plan,) = plans.find(*programs(False)[:2], level)
    return plan


def _solves(plan: plans.Plan, level: Level) -> bool:
    """Whether a plan reaches the goal by the intended rules."""
    env, params, reset, step = programs(False)
    state, _ = reset(level)
    for action in plan:
        state, _ = step(state, np.int32(action))
    return bool(env.success(state, params))


def oracle(item: int, *, upstream: bool = False) -> ScriptedPolicy:
    """Follows the plan for an item, on a server with or without `--compat upstream`."""
    return PlannedPolicy([macros.action_names()[number] for number in _plan(item, upstream) or ()], then="turn left")


def play_many(policy: str, action: str, chosen: Sequence[int], turns: int, plays: int, seed: int) -> Outcomes:
    """Plays episodes by AgentGym's rules, as on a server with `--compat upstream`, but compiled, many at a time.

    Raises:
        ValueError: the constant action does not exist.
    """
    env, params = programs(True)[:2]
    levels = np.stack([level_of(item, upstream=True) for item in chosen])
    if policy == "oracle":
        actions = plans.scripts([_plan(item, True) for item in chosen], turns)
    else:
        same = {"random": plans.RANDOM, "null": macros.UNKNOWN}.get(policy)
        actions = np.full((len(chosen), turns), _action_id(action) if same is None else same, np.int32)
    rows = np.repeat(np.arange(len(chosen)), plays)
    keys = jax.random.split(jax.random.key(seed), len(rows))
    found = []
    for begin in range(0, len(rows), _ROWS):
        part = np.arange(begin, begin + _ROWS) % len(rows)  # filled up, so that one program is enough
        batch = jnp.asarray(levels[rows[part]]), keys[part], jnp.asarray(actions[rows[part]])
        found.append(jax.device_get(plans.replay(env, params, *batch)))
    solved, strict, score, taken = (
        np.concatenate(parts)[: len(rows)].reshape(len(chosen), plays) for parts in zip(*found, strict=True)
    )
    return Outcomes(solved, score, strict, taken)


def _action_id(name: str) -> int:
    names = macros.action_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3) or macros.SIMPLE_NAMES[:3]
        raise BadValue(
            f"there is no action {name!r} in babyai; expected one such as {', '.join(near)}", key="action", value=name
        )
    return names.index(name)


def panel() -> Panel:
    """AgentGym-RL's test items, and the digest of their levels; a `ValueError` if the stored levels have another."""
    found = items.digest(items.load(items.panel()))
    if found != items.PANEL_DIGEST:
        raise BadValue.at(
            items.FILE, f"the panel has digest {found}; expected {items.PANEL_DIGEST}: install it again", found
        )
    return Panel(items.panel(), found)


INSTRUCTION = """You explore rooms to fulfil a goal. Every observation tells what you see in front of you and lists \
the actions that you can take; choose one of them, word for word:
turn left, turn right, move forward
go to OBJECT NUMBER: you walk up to it and face it
pickup OBJECT NUMBER: you walk up to it and take it; you can carry one thing at a time
drop: you put down what you carry
go through DOOR NUMBER: an open door
toggle and go through DOOR NUMBER: a closed door, or a locked one if you carry the key of its color
toggle: you open the door right in front of you
check available actions: lists them again
NUMBER tells objects of one name apart, as in go to red ball 1. What is behind walls and closed doors cannot be seen: \
turn around, and go through doors, to explore.

Write your thoughts after Thought: and then a single action after Action:."""


def _content(item: int) -> str:
    """A digest of the level, equal for items with equal levels."""
    return items.digest(level_of(item, upstream=False))


SERVICE = Service(
    name="babyai",
    make=lambda upstream: BabyAIInstance(upstream=upstream),
    items=ITEMS,
    instruction=INSTRUCTION,
    read=READ,
    turns=TURNS,
    solved=lambda answer: answer.score > 0,
    success_rule="the score, which is the sum of the rewards, is above 0",
    strict=is_strict_success,
    strict_rule="the episode is over and the last reward is above 0.5",
    oracle=oracle,
    upstream_oracle=functools.partial(oracle, upstream=True),
    random=lambda item, seed: ListedPolicy(f"player {seed} of {item}"),
    category=lambda item: items.family_of(items.number_of(item)),
    content=_content,
    views=("observation",),
    panel=panel,
    play_many=play_many,
    random_plays=RANDOM_PLAYS,
    floor=0.65,
)
