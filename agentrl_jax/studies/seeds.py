"""Several seeds of a run in one program: one after the other on a device, or shared out over devices.

Shapes: `S` seeds, the first axis of everything that belongs to a seed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.setup.memory import Measured

_AXIS = "seed"


class Seeds:
    """S seeds over some devices.

    A loop whose condition has an axis of seeds would run until the last seed is done and copy the state of the others
    at every step, so that seeds of a device are played by `jax.lax.map`.
    """

    def __init__(self, first: int, count: int, devices: Sequence[jax.Device]):
        """Seeds `first` to `first + count - 1`.

        Raises:
            ValueError: the devices cannot have equal numbers of seeds.
        """
        if count % len(devices):
            raise ValueError(
                f"{count} seeds cannot be shared by {len(devices)} devices; use a multiple, or devices that divide it"
            )
        self.numbers = tuple(range(first, first + count))
        self.mesh = Mesh(np.array(devices), (_AXIS,))
        self.keys = jax.vmap(jax.random.key)(np.asarray(self.numbers, np.uint32))
        """key[S], that of every seed."""

    def each(self, function: Callable[[Any, Any, Any], Any], *, donate: bool = False) -> Callable[[Any, Any, Any], Any]:
        """A program (state, mine, shared) -> results: `function` of every seed's state and own arguments.

        Args:
            function: (state, mine, shared) of one seed to its results; on one device, compiled or not.
            donate: the states are given up.

        Returns:
            The same function where leaves of `state`, of `mine` and of the results are [S, ...].
        """

        def over(state, mine, shared):
            return jax.lax.map(lambda of_seed: function(of_seed[0], of_seed[1], shared), (state, mine))

        if self.mesh.size > 1:
            over = jax.shard_map(
                over,
                mesh=self.mesh,
                in_specs=(Spec(_AXIS), Spec(_AXIS), Spec()),
                out_specs=Spec(_AXIS),
                check_vma=False,
            )
        return Measured("of all seeds", jax.jit(over, donate_argnums=(0,) if donate else ()))
