"""Environments by name: `make("FrozenLake") -> (env, params)`."""

import dataclasses
import difflib
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int8, Int32, Key

from envs_jax import bandit, by_path, frozen_lake, sokoban, solvers
from envs_jax.bandit import scene as bandit_scene
from envs_jax.budget import CLOSED_LOOP, EXACT, Baselines, Budget
from envs_jax.environment import TextEnvironment
from envs_jax.errors import BadValue
from envs_jax.frozen_lake import oracle as frozen_lake_oracle
from envs_jax.frozen_lake import scene as frozen_lake_scene
from envs_jax.frozen_lake.open_loop import TooManyBeliefsError, committed_success
from envs_jax.installed import register_installed
from envs_jax.packs import Levels
from envs_jax.reference import FLOORS, Floors, Solver
from envs_jax.scenes import SceneFunction
from envs_jax.scripted_commands import Choice, Script
from envs_jax.sokoban import oracle as sokoban_oracle
from envs_jax.sokoban import scene as sokoban_scene
from envs_jax.splits import Split, split_key

Factory = Callable[..., tuple[Any, Any]]
Oracle = Callable[[Any, Any, Levels, Budget], tuple[np.ndarray, np.ndarray] | Baselines]
Plans = list[Int32[np.ndarray, " L"] | None]
Planner = Callable[[Any, Any, Int8[np.ndarray, "N H W"], int], Plans]
RandomActions = Callable[[Any, Any, Int8[np.ndarray, "N H W"], int, jax.Array], Int32[np.ndarray, "N F"]]
PlanAfter = Callable[[Any, Any, Int8[np.ndarray, "N H W"], int, Int32[np.ndarray, "N F"]], Plans]
Symmetry = Callable[
    [Any, Int8[np.ndarray, "N H W"], list[Int32[np.ndarray, " L"]], jax.Array],
    tuple[Int8[np.ndarray, "N H W"], list[Int32[np.ndarray, " L"]]],
]


@dataclasses.dataclass(frozen=True)
class Spec:
    """An entry of the registry.

    Attributes:
        factory: function from options to (env, params).
        description: one line for users.
        success_rule: when an episode counts as solved, in words: what `success` of the environment says.
        max_actions: actions of an episode, unless the user sets another budget.
        oracle: (env, params, levels, budget) -> success f64[N] of the uniform random and of the optimal policy within
            `budget.reachable` actions, a pair or a `Baselines`. With random transitions the optimum also depends on the
            number of actions per turn.
        plan: (env, params, levels, limit) -> for each level the action ids of a shortest plan, or nearly so on levels
            that are too large for a whole search; None if there is none. Plans of more than `limit` actions may be left
            out.
        plan_after: (env, params, levels, limit, first) -> for each level the action ids of such a plan after the
            actions `first`, padded with -1, as far as both have at most `limit` actions.
        exploring_after: as plan_after, but before the shortest plan come actions that look around, until the agent has
            seen what its task is about. What does not fit into `limit` actions is cut off.
        random_actions: (env, params, levels, most, key) -> for each level R random actions, R uniform in 0 to `most`,
            padded with -1, for plans after them.
        symmetry: (env, levels, plans, key) -> the images of levels under random symmetries of the environment that
            change its text, and their plans carried over; None if it has none.
        scene: (env, state, params) -> what one state looks like, see `envs_jax.scenes`; None if it is only text.
        solve: reference solutions, which `envs_jax.checks` executes.
        floors: highest success of policies that do not solve the task.
        checked_seeds: seeds of a check, unless the user gives another number.
        solved_levels: levels that a check solves; None for all.
        single_start: all episodes start alike, and are meant to.
        scripts: of a `TokenEnvironment`, commands by name. Everything above that has action ids is about them, see
            `envs_jax.scripted_commands`.
        policies: of a `TokenEnvironment`, scripted policies by name: random, null and oracle are the lines of an
            evaluation, and each can be imitated.
    """

    factory: Factory
    description: str = ""
    success_rule: str = ""
    max_actions: int = 10
    oracle: Oracle | None = None
    plan: Planner | None = None
    plan_after: PlanAfter | None = None
    exploring_after: PlanAfter | None = None
    random_actions: RandomActions | None = None
    symmetry: Symmetry | None = None
    scene: SceneFunction | None = None
    solve: Solver | None = None
    floors: Floors = FLOORS
    checked_seeds: int = 10_000
    solved_levels: int | None = None
    single_start: bool = False
    scripts: Mapping[str, Script] = dataclasses.field(default_factory=dict)
    policies: Mapping[str, Choice] = dataclasses.field(default_factory=dict)


class Registry:
    """A table of environments by name."""

    def __init__(self, specs: Mapping[str, Spec | str], *, installed: bool = False):
        """Starts with a table of names, which is copied; a text names the module whose `SPECS` has the entry.

        Such a module is imported when an entry of it is asked for. With `installed`, the environments of other
        installed packages are added when a name is not in the table or all names are asked for
        (`envs_jax.installed`).
        """
        self._specs: dict[str, Spec | str] = dict(specs)
        self._by_path: dict[str, Spec] = {}
        self._asks_installed = installed

    def registered(self) -> tuple[str, ...]:
        """Returns the names, in the order in which they were registered."""
        self._add_installed()
        return tuple(self._specs)

    def knows(self, name: str) -> bool:
        """Whether there is an environment of this name, or it is an import path, which is tried where it is used."""
        return name.startswith(by_path.PREFIX) or name in self.registered()

    def register(self, name: str, factory: Factory, **options: Any) -> None:
        """Registers an environment; options are the fields of `Spec`. Raises a `ValueError` if the name is taken."""
        if name in self._specs:
            raise BadValue(
                f"an environment called {name!r} is registered already; expected a new name", "environment", name
            )
        self._specs[name] = Spec(factory, **options)

    def spec(self, name: str) -> Spec:
        """Returns the entry of an environment; if there is none, a `ValueError` suggests similar names.

        An import path (`by_path`) need not be registered.
        """
        if name.startswith(by_path.PREFIX):
            if name not in self._by_path:
                factory, description = by_path.load(name)
                self._by_path[name] = Spec(factory, description, success_rule="the environment says so (`success`)")
            return self._by_path[name]
        if name not in self._specs and name not in self.registered():
            near = _nearest(name, self.registered())
            raise BadValue(
                f"no environment is called {name!r}; {near or 'known are ' + ', '.join(self._specs)}",
                "environment",
                name,
            )
        found = self._specs[name]
        if isinstance(found, str):
            self._specs.update(importlib.import_module(found).SPECS)
            found = self._specs[name]
            assert isinstance(found, Spec)
        return found

    def _add_installed(self) -> None:
        # The flag falls first, because the functions of the packages may ask for names.
        if self._asks_installed:
            self._asks_installed = False
            register_installed()

    def make(self, name: str, **options: Any) -> tuple[TextEnvironment, Any]:
        """Makes an environment and its parameters.

        Options are arguments of the environment's factory, such as `height=6`, and scalar fields of its parameters,
        such as `max_steps_in_episode=50`. Raises a `ValueError` for an unknown name or option, or an invalid value.
        """
        factory = self.spec(name).factory
        annotated = {key: parameter.annotation for key, parameter in inspect.signature(factory).parameters.items()}
        accepted = tuple(annotated)
        chosen = {option: value for option, value in options.items() if option in accepted}
        for option, value in chosen.items():
            if annotated[option] in (int, int | None) and isinstance(value, float | bool):
                raise BadValue(f"{option} of {name} is {value!r}; expected an integer", option, value)
        try:
            env, params = factory(**chosen)
        except (TypeError, AttributeError, OverflowError) as error:
            given = ", ".join(f"{option}: {value!r}" for option, value in chosen.items())
            raise BadValue(
                f"{name} cannot be made with {given}: {error}; give values of another type", name, options
            ) from error
        fields = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
        # A field may also be a tree of arrays, such as the index of a corpus.
        scalars = {field: value for field, value in fields.items() if isinstance(value, jax.Array) and not value.ndim}
        for option, value in options.items():
            if option in accepted:
                continue
            if option not in scalars:
                known = (*accepted, *scalars)
                near = _nearest(option, known) or f"known are {', '.join(known)}"
                raise BadValue(f"{name} has no option {option!r}; {near}", option)
            params = params.replace(**{option: _scalar(name, option, value, scalars[option].dtype)})
        return env, params

    def baselines(self, name: str, key: Key[Array, ""], n: int, budget: Budget) -> tuple[float, float]:
        """Returns the exact mean success of random and of optimal play on `n` levels; NaN if there is no oracle."""
        if n < 1:
            raise BadValue(f"{n} levels; expected at least 1", "n", n)
        if self.spec(name).oracle is None:
            return float("nan"), float("nan")
        env, params = self.make(name)
        found = self.level_baselines(name, env, params, sample_levels(env, params, jax.random.split(key, n)), budget)
        assert found is not None
        return float(np.mean(found.random)), float(np.mean(found.optimal))

    def level_baselines(
        self, name: str, env: TextEnvironment, params: Any, levels: Levels, budget: Budget
    ) -> Baselines | None:
        """Returns baselines within the budget and `params.max_steps_in_episode` actions; None if there is no oracle."""
        oracle = self.spec(name).oracle
        if oracle is None:
            return None
        actions = min(budget.actions, int(params.max_steps_in_episode))
        return Baselines(*oracle(env, params, levels, dataclasses.replace(budget, actions=actions)))


def _nearest(name: str, known: tuple[str, ...]) -> str:
    lowered = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(lowered[candidate] for candidate in near)}?" if near else ""


def _scalar(name: str, option: str, value: Any, dtype: Any) -> jax.Array:
    """Returns the value as a scalar of the parameter's dtype; refuses values of other types."""
    integer = jnp.issubdtype(dtype, jnp.integer)
    # An integer may be too large for a float.
    usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= float(jnp.finfo("f4").max)
    least, most = (1, jnp.inf) if option == "max_steps_in_episode" else (-jnp.inf, jnp.inf)
    if option.endswith("probability"):
        least, most = 0, 1
    if (
        not usable
        or not least <= value <= most
        or (integer and (value != int(value) or abs(value) > jnp.iinfo(dtype).max))
    ):
        kind = f"an integer of type {dtype}" if integer else "a finite number"
        kind += f" of at least {least}" * (least > -jnp.inf) + f" and at most {most}" * (most < jnp.inf)
        raise BadValue(f"{option} of {name} is {value!r}; expected {kind}", option, value)
    return jnp.asarray(value, dtype)


SAMPLED_AT_ONCE = 4096
"""Levels that one call of the compiled generator makes: XLA folds constants of the size of the batch, for long."""


def sample_levels(env: TextEnvironment, params: Any, keys: Key[Array, " N"], split: Split = Split.ANY) -> Levels:
    """Returns the levels of keys, i8[N, 0, 0] if there are none; a `ValueError` if a key has none of the split."""
    if not env.has_levels:
        return np.zeros((keys.shape[0], 0, 0), np.int8)
    parts = [
        jax.device_get(_sample_levels(env, keys[begin : begin + SAMPLED_AT_ONCE], params, jnp.int32(split)))
        for begin in range(0, max(1, keys.shape[0]), SAMPLED_AT_ONCE)
    ]
    levels, found = (np.concatenate(columns) for columns in zip(*parts))
    if not np.all(found):
        missing = int(np.sum(~found))
        raise BadValue(
            f"{missing} of {keys.shape[0]} keys give no level of the {split.name.lower()} split of {env.name}; "
            "the space of levels is too small to hold levels out",
            "keys",
            keys.shape[0],
        )
    return levels


@functools.partial(jax.jit, static_argnums=0)
def _sample_levels(env: TextEnvironment, keys: jax.Array, params: Any, split: jax.Array) -> tuple[jax.Array, jax.Array]:
    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        key, found = split_key(env, key, params, split)
        return env.sample_level(key, params), found

    return jax.vmap(one)(keys)


def _sokoban_oracle(env: Any, params: Any, levels: np.ndarray, budget: Budget) -> Baselines:
    # Transitions are deterministic, so nothing is lost by choosing many actions at once.
    success = sokoban_oracle.random_success(levels, budget.reachable)
    lengths = sokoban_oracle.plan_lengths(levels, budget.reachable)
    turns = {"random": budget.mean_turns(1.0 - success), "optimal": budget.turns_of(lengths)}
    return Baselines(success[:, -1], (lengths >= 0).astype(np.float64), turns=turns)


def _frozen_lake_oracle(env: Any, params: Any, levels: np.ndarray, budget: Budget) -> Baselines:
    rate, actions = float(params.success_rate), budget.reachable
    random = frozen_lake_oracle.random_success(levels, actions, rate)
    turns = {"random": budget.mean_turns(frozen_lake_oracle.random_unended(levels, actions))}
    if rate == 1:  # with slips, optimal policies differ in their turns
        turns["optimal"] = budget.turns_of(frozen_lake_oracle.plan_lengths(levels, actions))
    try:
        return Baselines(random, committed_success(levels, budget, rate), EXACT, turns=turns)
    except TooManyBeliefsError:
        optimal = frozen_lake_oracle.optimal_success(levels, actions, rate)
        return Baselines(random, optimal, CLOSED_LOOP, turns=turns)


def _bandit_oracle(env: Any, params: Any, levels: np.ndarray, budget: Budget) -> Baselines:
    # Success means pulling the high arm of the two with the only action of an episode.
    one = np.ones(len(levels))
    return Baselines(one / 2, one, turns={"random": one, "optimal": one})


def _one_by_one(solve: Callable[[Int8[np.ndarray, "H W"]], Int32[np.ndarray, " L"] | None]) -> Planner:
    return lambda env, params, levels, limit: [solve(level) for level in levels]


def _sokoban_plan_after(
    env: Any, params: Any, levels: Int8[np.ndarray, "N H W"], limit: int, first: Int32[np.ndarray, "N F"]
) -> Plans:
    return [sokoban_oracle.plan_after(level, taken, limit) for level, taken in zip(levels, first, strict=True)]


_BANDIT_FLOORS = Floors(
    constant=1.0, gap=0.4, why="the better arm has the same name on every level; to find out which is the task"
)
_DESCRIPTIONS = {
    "Bandit": "two arms, Engineer (low) and Teacher (high)",
    "BanditTest": "two arms, Trader (low) and Librarian (high)",
    "BanditRev": "two arms, Teacher (low) and Engineer (high)",
    "BanditRevTest": "two arms, Librarian (low) and Trader (high)",
    "BanditPhoenix": "two arms, Phoenix (low) and Dragon (high)",
    "FrozenLake": "4x4 lake, 80 % frozen, moves go as intended one time in three",
    "FrozenLake-v2": "4x4 lake, 90 % frozen, moves go as intended four times in five",
    "FrozenLake-deterministic": "4x4 lake, 80 % frozen, no slip",
    "CoordFrozenLake": "FrozenLake with coordinates before the grid",
    "SimpleSokoban": "6x6 Sokoban with one box",
    "LargerSokoban": "8x8 Sokoban with two boxes",
    "SokobanDifferentGridVocab": "6x6 Sokoban with one box and other symbols",
    "CoordSokoban": "SimpleSokoban with coordinates before the grid",
}
_bandits = functools.partial(
    Spec,
    success_rule="the high arm of the two was pulled, whatever it paid",
    max_actions=1,
    oracle=_bandit_oracle,
    scene=bandit_scene.scene,
    solve=solvers.solve_bandit,
    floors=_BANDIT_FLOORS,
)
_frozen_lakes = functools.partial(
    Spec,
    success_rule="the player is on the goal",
    oracle=_frozen_lake_oracle,
    plan=_one_by_one(frozen_lake_oracle.plan),
    scene=frozen_lake_scene.scene,
    solve=solvers.solve_frozen_lake,
    floors=Floors(constant=0.3, repeat_last=0.3, random=0.3, gap=0.2),
)
_sokobans = functools.partial(
    Spec,
    success_rule="every target is covered by a box",
    oracle=_sokoban_oracle,
    plan=_one_by_one(sokoban_oracle.solve),
    plan_after=_sokoban_plan_after,
    scene=sokoban_scene.scene,
    solve=solvers.solve_sokoban,
    floors=Floors(constant=0.1, repeat_last=0.1, random=0.25, gap=0.5),
)
_BABYAI_LEVELS = """
    GoToRedBallGrey GoToRedBall GoToRedBallNoDists GoToObjS6 GoToLocalS8N7 GoToObjMazeS7 GoToImpUnlock GoToSeqS5R2
    GoToRedBlueBall GoToDoor GoToObjDoor Open OpenRedDoor OpenDoorLoc OpenRedBlueDoorsDebug OpenDoorsOrderN4Debug
    Pickup UnblockPickup PickupLoc PickupDistDebug PickupAbove PutNextLocalS6N4 PutNextS7N4Carrying Unlock
    UnlockLocalDist KeyInBox UnlockPickupDist BlockedUnlockPickup UnlockToUnlock ActionObjDoor FindObjS7
    KeyCorridorS6R3 OneRoomS20 MoveTwoAcrossS8N9 SynthS5R2 SynthLoc SynthSeq MiniBossLevel BossLevel
    BossLevelNoUnlock
"""
BUILT_IN: dict[str, Spec | str] = {
    **{
        name: entry(factory, _DESCRIPTIONS[name])
        for tags, entry in ((bandit.TAGS, _bandits), (frozen_lake.TAGS, _frozen_lakes), (sokoban.TAGS, _sokobans))
        for name, factory in tags.items()
    },
    "searchqa": "envs_jax.searchqa.specs",
    "BabyAI": "envs_jax.babyai.specs",
    **{f"BabyAI-{level}": "envs_jax.babyai.specs" for level in _BABYAI_LEVELS.split()},
}
"""The environments of this package."""

_default = Registry(BUILT_IN, installed=True)
registered, register, spec, knows = _default.registered, _default.register, _default.spec, _default.knows
make, baselines, level_baselines = _default.make, _default.baselines, _default.level_baselines
