"""State of an episode, and what a mission consists of.

Shapes: `H`, `W` rows and columns of the grid, `S` object slots, `C` = `codes.CLAUSES` clauses, `M` objects in view, in
the order of their distance.
"""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int8, Int16, Int32, UInt32

from envs_jax.environment import EnvState

NOTHING = -1
"""No slot, and no place on the grid."""


class Mission(struct.PyTreeNode):
    """Up to two parts of up to two clauses; clauses 0 and 1 are the first part.

    `verb` is `codes.NO_VERB` where there is no clause. `described` has (type, color, place) of the first object of a
    clause and of the second one, which only `codes.PUT_NEXT` has; `codes.ANY` where not given. A `strict` clause fails
    on the wrong object. `order` joins the parts.
    """

    verb: Int8[Array, " C"]
    strict: Bool[Array, " C"]
    described: Int8[Array, "C 2 3"]
    order: Int8[Array, ""]

    @classmethod
    def empty(cls) -> "Mission":
        """Returns a mission without clauses."""
        clauses = 4
        return cls(
            verb=jnp.zeros(clauses, jnp.int8),
            strict=jnp.zeros(clauses, bool),
            described=jnp.full((clauses, 2, 3), -1, jnp.int8),
            order=jnp.int8(0),
        )


class Progress(struct.PyTreeNode):
    """How far a mission is, as MiniGrid's verifier keeps it.

    Attributes:
        tracked: slots that a description named at the start, as 64 bits.
        several: whether a description named more than one thing at the start.
        done: clauses of a pair that have been fulfilled.
        first_done: the part that comes first has been fulfilled.
        carried_before: slot that was carried when a clause was last checked.
    """

    tracked: UInt32[Array, "C 2 2"]
    several: Bool[Array, "C 2"]
    done: Bool[Array, " C"]
    first_done: Bool[Array, ""]
    carried_before: Int32[Array, " C"]


class World(struct.PyTreeNode):
    """The grid, the objects and the agent.

    A place is `row * W + column`, or `NOTHING` for what is carried, hidden or gone.

    Attributes:
        cells: cell codes; wall outside of a level that is smaller than the grid.
        slot_cells: cell code of each object, now; 0 for an unused slot.
        places: where each object is.
        known_places: where each was when an object was last dropped, or at the start; missions compare with these.
        hidden: slot of the object inside a box.
        heading: 0 right, 1 down, 2 left, 3 up.
        carrying: slot.
        steps: primitive actions so far.
    """

    cells: Int8[Array, "H W"]
    slot_cells: Int8[Array, " S"]
    places: Int16[Array, " S"]
    known_places: Int16[Array, " S"]
    hidden: Int8[Array, " S"]
    x: Int32[Array, ""]
    y: Int32[Array, ""]
    heading: Int32[Array, ""]
    carrying: Int32[Array, ""]
    steps: Int32[Array, ""]


class Notice(struct.PyTreeNode):
    """What the last action was answered with: a code of `text`, where 0 is an observation, and the action's id."""

    code: Int32[Array, ""]
    action: Int32[Array, ""]


class Surroundings(struct.PyTreeNode):
    """What is in view, and what can be done about it.

    Attributes:
        name: object by `codes.NAMES`, -1 for none.
        front, side: steps ahead, and to the right.
        number: how many objects of this name there are up to this one.
        faced: a path leads to where the agent faces it.
        entered: a path leads onto it.
        faced_number: how many of this name can be faced up to this one.
        anything: something is in view, if only a wall.
        barrier: steps to the next wall or box straight ahead; 0 if none is in view.
        barrier_is_box: it is a box.
        blocked: something is straight ahead where nothing can be dropped.
        free: the cells that paths may enter.
    """

    name: Int32[Array, " M"]
    front: Int32[Array, " M"]
    side: Int32[Array, " M"]
    number: Int32[Array, " M"]
    faced: Bool[Array, " M"]
    entered: Bool[Array, " M"]
    faced_number: Int32[Array, " M"]
    anything: Bool[Array, ""]
    barrier: Int32[Array, ""]
    barrier_is_box: Bool[Array, ""]
    blocked: Bool[Array, ""]
    free: UInt32[Array, "2"]


@struct.dataclass
class BabyAIState(EnvState):
    """An episode; `time` counts the agent's actions.

    Attributes:
        max_steps: primitive actions after which MiniGrid pays nothing.
        view: cell codes of the 7x7 cells ahead, the far row first, the agent in the middle of the last row.
        seen: what is in the view, see `macros.survey`; text and actions both need it.
        reward: of the last action.
        score: sum of the rewards.
        completed: MiniGrid ended the mission in the last action, by success or failure.
        failed: the mission can no longer be fulfilled.
        no_layout: the generator found no valid level in its tries.
    """

    world: World
    mission: Mission
    progress: Progress
    max_steps: Int32[Array, ""]
    view: Int8[Array, "7 7"]
    seen: Surroundings
    notice: Notice
    reward: Float32[Array, ""]
    score: Float32[Array, ""]
    completed: Bool[Array, ""]
    failed: Bool[Array, ""]
    no_layout: Bool[Array, ""]
