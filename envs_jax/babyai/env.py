"""BabyAI as AgentGym serves it: missions in rooms, text observations, and actions that walk a whole path."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int, Int8, Int32, Key, UInt32

from envs_jax.babyai import items, levels, macros, mission, text
from envs_jax.babyai.codes import NUM_CELLS
from envs_jax.babyai.state import BabyAIState, Notice
from envs_jax.babyai.view import SIZE, look
from envs_jax.babyai.walk import Plan, walk
from envs_jax.batching import on_rows
from envs_jax.environment import EnvParams, TextEnvironment
from envs_jax.errors import BadValue
from envs_jax.gymnax_base import spaces

MODES = ("intended", "upstream")
GOALS = ("first", "always")

OBJECTS_IN_VIEW = 20
"""Most objects that are described: more are not in one view in levels of at most 20 objects in several rooms."""


_traced_once = functools.partial(jax.jit, static_argnums=0)
"""Traces a method once for each environment and shape. A step is long, and several programs of a run have one."""


@struct.dataclass(kw_only=True)
class BabyAIParams(EnvParams):
    """A reset samples one of `levels` uniformly; if N is 0, it generates one."""

    levels: Int8[Array, "N H W"]


class BabyAI(TextEnvironment):
    """BabyAI's rooms with AgentGym's actions and text (arXiv 2509.08755; MiniGrid 2.3.1).

    * Level: i8[H, W], see `levels`.
    * Observation: i8[7, 7], the view as cell codes.
    * Actions: AgentGym's, by id, see `macros`. An action walks a shortest path and ends early if the view did not
      change. `macros.UNKNOWN` and `macros.NO_ACTION` stand for text that names no action. Actions that are not
      possible are answered with a sentence.
    * Reward: f32[], 1 - 0.9 s / max_steps when the mission is fulfilled after s primitive actions.
    * Termination: the mission is fulfilled or failed. Truncation: `max_steps_in_episode` actions, or the primitive
      actions of MiniGrid's own limit.
    * info: `success`, `action_is_effective` (the action was possible), `strict_success` (fulfilled with a reward above
      0.5), `no_layout` (no valid level was found), all bool[].
    * State: `BabyAIState`. The transition is deterministic: `step_env` ignores its key.

    With `mode="upstream"` the dynamics are AgentGym's own: a reward counts only if it came with the last primitive
    action; the episode ends only with a reward above 0.5; a mission goes on after failure and after a late success; an
    action that is not possible repeats the last reward; there is no limit of primitive actions; to open the first of
    two doors fails a strict mission to open the second. `success` is then its published rule, a sum of rewards above 0.
    """

    lists_actions = False
    test_levels = items.panel_hashes()
    instruction = text.INSTRUCTION
    actions: tuple[str, ...] = macros.action_names()

    def __init__(
        self,
        shape: levels.Shape,
        generate: Callable[[Key[Array, ""]], Int8[Array, "H W"]] | None = None,
        mode: str = "intended",
        objects_shown: int | None = None,
        goal: str = "first",
    ):
        """Fixes the size of levels and the number of objects that an observation shows, by default all.

        Without `generate`, levels come from a pack. The goal is shown in the first observation, as AgentGym does, or
        with `goal="always"` in each. Raises a `ValueError` for options that are not usable.
        """
        if goal not in GOALS:
            raise BadValue(f"goal is {goal!r}; expected one of {', '.join(GOALS)}", "goal", goal)
        if mode not in MODES:
            raise BadValue(f"mode is {mode!r}; expected one of {', '.join(MODES)}", "mode", mode)
        most = min(shape.slots, OBJECTS_IN_VIEW)
        if objects_shown is not None and not 1 <= objects_shown <= most:
            raise BadValue(
                f"objects_shown is {objects_shown}; expected 1 to {most}, or none to show all",
                "objects_shown",
                objects_shown,
            )
        self.shape, self.generate, self.mode, self.goal = shape, generate, mode, goal
        self.objects_shown = objects_shown or most
        self.upstream = mode == "upstream"
        self.pieces = text.PIECES
        self.piece_limits = text.piece_limits(self.objects_shown, shape.clauses)

    def on_items(self, params: BabyAIParams, indices: tuple[int, ...]) -> tuple["BabyAI", BabyAIParams]:
        """Returns this environment on stored items, with AgentGym's own rules and the same text."""
        env = BabyAI(items.SHAPE, None, "upstream", self.objects_shown, self.goal)
        return env, params.replace(levels=jnp.asarray(items.load(indices)))

    @property
    def default_params(self) -> BabyAIParams:
        """Twenty actions, as in AgentGym-RL's evaluation; generated levels."""
        return BabyAIParams(
            max_steps_in_episode=jnp.int32(20), levels=jnp.zeros((0, self.shape.rows, self.shape.width), jnp.int8)
        )

    def observation_space(self, params: Any) -> spaces.Box:
        """Cell codes, i8[7, 7]."""
        return spaces.Box(0, NUM_CELLS - 1, (SIZE, SIZE), jnp.int8)

    def reset_env(self, key: Key[Array, ""], params: BabyAIParams) -> tuple[Int8[Array, "7 7"], BabyAIState]:
        """Starts an episode on the level that `sample_level` returns for this key."""
        return self.reset_to_level(self.sample_level(key, params), params)

    def sample_level(self, key: Key[Array, ""], params: BabyAIParams) -> Int8[Array, "H W"]:
        """Returns the level of a key: a row of `params.levels`, or a generated level."""
        if params.levels.shape[0] > 0:
            return params.levels[jax.random.randint(key, (), 0, params.levels.shape[0])]
        if self.generate is None:
            raise BadValue(
                "BabyAI has neither a generator nor levels; give `generate=` or fill `params.levels`", "levels"
            )
        return self.generate(key)

    @_traced_once
    def reset_to_level(self, level: Int8[Array, "H W"], params: Any) -> tuple[Int8[Array, "7 7"], BabyAIState]:
        """Starts an episode on a level; raises a `ValueError` if it has another shape than the environment's."""
        level = jnp.asarray(level)
        if level.shape != (self.shape.rows, self.shape.width):
            raise BadValue(
                f"a level of shape {level.shape} was given to {self.shape}; expected "
                f"({self.shape.rows}, {self.shape.width}): make the environment of the level's own number",
                "level",
                level.shape,
            )
        start = levels.decode(level, self.shape)
        # AgentGym's first observation is from before MiniGrid puts the object into the agent's hands.
        view = look(start.world_before if self.upstream else start.world)
        state = BabyAIState(
            time=jnp.int32(0),
            terminated=jnp.bool_(False),
            world=start.world,
            mission=start.mission,
            progress=mission.start(start.world_before, start.room_size, start.mission),
            max_steps=start.max_steps,
            view=view,
            seen=macros.survey(view, start.world.heading, self.objects_shown),
            notice=Notice(code=jnp.int32(text.SEEN), action=jnp.int32(macros.NO_ACTION)),
            reward=jnp.float32(0),
            score=jnp.float32(0),
            completed=jnp.bool_(False),
            failed=jnp.bool_(False),
            no_layout=start.number == 0,
        )
        return state.view, state

    @_traced_once
    def step_env(
        self, key: Key[Array, ""], state: BabyAIState, action: Int[Array, ""], params: BabyAIParams
    ) -> tuple[Int8[Array, "7 7"], BabyAIState, Float[Array, ""], Bool[Array, ""], dict[str, jax.Array]]:
        """Takes one action; see the class for the rules."""
        active = ~self.is_done(state, params)
        macro, code = self._resolve(state, action)
        runs = macro.possible & (macro.length > 0) & active
        moved = self._run(state, macro, runs)
        answered = state.replace(
            notice=Notice(code=code.astype(jnp.int32), action=action.astype(jnp.int32)),
            reward=state.reward if self.upstream else jnp.float32(0),
            completed=jnp.bool_(False),
        )
        after = _choose(runs, moved, answered)
        after = after.replace(time=state.time + 1, score=state.score + after.reward)
        after = _choose(active, after, state)
        reward = jnp.where(active, after.reward, 0.0)
        info = {
            "success": self.success(after, params),
            "action_is_effective": active & macro.possible,
            "strict_success": after.terminated & (after.score > 0.5) & ~after.failed,
            "no_layout": after.no_layout,
        }
        return after.view, after, reward, after.terminated, info

    @_traced_once
    def candidates(self, state: BabyAIState) -> Int32[Array, " A"]:
        """Returns the ids of the listed actions but "check available actions", with `macros.UNKNOWN` between them."""
        return macros.listed_ids(macros.listed(state.world, state.seen, upstream=self.upstream), state.seen)

    def _resolve(self, state: BabyAIState, action: Int[Array, ""]) -> tuple[macros.Macro, Int[Array, ""]]:
        """The primitive actions of an action, and the code of the answer if none is taken."""
        macro = macros.resolve(state.world, state.seen, action, upstream=self.upstream)
        code = jnp.where(macro.possible, text.NO_CHANGE, text.refusal(state.world, state.seen, action))
        return macro, jnp.where(action == macros.CHECK, text.CHECKED, code)

    def _run(self, state: BabyAIState, macro: macros.Macro, runs: Bool[Array, ""]) -> BabyAIState:
        """Takes the primitive actions, until the view does not change."""
        plan = Plan(jnp.where(runs, macro.length, 0), macro.actions, state.mission, state.max_steps)
        walk_rows = on_rows(functools.partial(walk, upstream=self.upstream))
        world, progress, view, result = walk_rows(plan, state.world, state.progress, state.view)
        fulfilled, completed = result == mission.SUCCESS, result != mission.CONTINUE
        reward = jnp.where(fulfilled, 1 - 0.9 * (world.steps / state.max_steps), 0.0).astype(jnp.float32)
        return state.replace(
            world=world,
            progress=progress,
            view=view,
            seen=macros.survey(view, world.heading, self.objects_shown),
            terminated=completed & (reward > 0.5) if self.upstream else completed,
            notice=Notice(code=jnp.int32(text.SEEN), action=state.notice.action),
            reward=reward,
            completed=completed,
            failed=result == mission.FAILURE,
        )

    def is_truncated(self, state: BabyAIState, params: BabyAIParams) -> Bool[Array, ""]:
        """Returns whether the actions are used up."""
        out_of_time = state.time >= params.max_steps_in_episode
        return out_of_time if self.upstream else out_of_time | (state.world.steps >= state.max_steps)

    def reward_range(self, params: BabyAIParams) -> tuple[Float32[Array, ""], Float32[Array, ""]]:
        """From 0.1, MiniGrid's reward at its limit, or 0 without success, to 1; "upstream" has no lowest reward."""
        return jnp.float32(-jnp.inf if self.upstream else 0), jnp.float32(1)

    def get_obs(self, state: BabyAIState, params: Any = None, key: Any = None) -> Int8[Array, "7 7"]:
        """Returns the view."""
        return state.view

    @_traced_once
    def describe(self, state: BabyAIState, params: Any) -> Int32[Array, " P"]:
        """Returns the text as piece ids, with `NO_PIECE` between them."""
        shows_goal = (state.time == 0) | (self.goal == "always")
        clauses, in_text = self.shape.clauses, not self.lists_actions
        return text.describe(state, shows_goal, clauses, upstream=self.upstream, lists_actions=in_text)

    def success(self, state: BabyAIState, params: Any) -> Bool[Array, ""]:
        """Returns whether the mission is fulfilled; in the mode "upstream", whether the score is above 0."""
        return state.score > 0 if self.upstream else state.terminated & ~state.failed

    def state_hash(self, state: BabyAIState, params: Any) -> UInt32[Array, "2"]:
        """Returns a hash of the world and of the mission's progress, independent of where the grid has its origin."""
        return levels.hash_state(state)

    def level_hash(self, state: BabyAIState, params: Any) -> UInt32[Array, "2"]:
        """Returns a hash of the level, equal for its rotations and mirror images."""
        return levels.hash_level(state)

    def level_images(self, level: Int8[np.ndarray, "H W"]) -> list[Int8[np.ndarray, "H W"]]:
        """Returns the level and those of its rotations and mirror images that fit the shape."""
        return levels.images(level, self.shape)


def _choose(condition: Bool[Array, ""], new: BabyAIState, old: BabyAIState) -> BabyAIState:
    """Returns the new state if the condition holds, else the old one.

    Where it does not hold, nothing is walked, so that the states agree in all that is large: only the rest is copied.
    """
    names = ("time", "terminated", "notice", "reward", "score", "completed", "failed")
    chosen = {
        name: jax.tree.map(lambda a, b: jnp.where(condition, a, b), getattr(new, name), getattr(old, name))
        for name in names
    }
    return new.replace(**chosen)


class PrimitiveBabyAI(BabyAI):
    """BabyAI with MiniGrid's seven actions, by their ids there, and AgentGym's text without the list of actions.

    An action that does not change anything counts and is answered with the observation. Reward, success and ends are
    those of the mode "intended", which are MiniGrid's own but for two doors in a strict order; by default an episode
    has at most 128 actions.
    """

    lists_actions = True
    instruction = text.PRIMITIVE_INSTRUCTION
    actions = ("turn left", "turn right", "move forward", "pickup", "drop", "toggle", "done")

    def on_items(self, params: BabyAIParams, indices: tuple[int, ...]) -> tuple[BabyAI, BabyAIParams]:
        """Raises a `ValueError`: items are played by AgentGym's rules."""
        raise BadValue(
            "AgentGym's items are played with its actions, but actions is primitive; use macro", "actions", "primitive"
        )

    @property
    def default_params(self) -> BabyAIParams:
        """At most 128 actions; generated levels."""
        return super().default_params.replace(max_steps_in_episode=jnp.int32(128))

    @_traced_once  # as the method that it replaces, since types of methods must agree
    def candidates(self, state: BabyAIState) -> Int32[Array, " A"]:
        """Returns the ids of all actions but "done", which does nothing."""
        return jnp.arange(len(self.actions) - 1, dtype=jnp.int32)

    def _resolve(self, state: BabyAIState, action: Int[Array, ""]) -> tuple[macros.Macro, Int[Array, ""]]:
        known = (action >= 0) & (action < len(self.actions))
        macro = macros.Macro(known, action.astype(jnp.int8)[None], jnp.int32(1))
        return macro, jnp.where(action == macros.NO_ACTION, text.NO_CHANGE, text.NOT_RECOGNIZED)
