"""Several seeds of a run in one program: sequentially on one device, or distributed over devices.

Shapes: `S` seeds, the first axis of everything that differs by seed.
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

    Under `vmap`, a loop would run until its slowest seed is done and copy the state of the others at every step, so the
    seeds of a device run sequentially with `jax.lax.map`.
    """

    def __init__(self, first: int, count: int, devices: Sequence[jax.Device]):
        """Creates the seeds `first` to `first + count - 1`.

        Raises:
            ValueError: the seeds cannot be divided equally among the devices.
        """
        if count % len(devices):
            raise ValueError(
                f"{count} seeds cannot be shared by {len(devices)} devices; use a multiple, or devices that divide it"
            )
        self.numbers = tuple(range(first, first + count))
        self.mesh = Mesh(np.array(devices), (_AXIS,))
        self.keys = jax.vmap(jax.random.key)(np.asarray(self.numbers, np.uint32))
        """key[S], one per seed."""

    def each(self, function: Callable[[Any, Any, Any], Any], *, donate: bool = False) -> Callable[[Any, Any, Any], Any]:
        """Maps `function` over the seeds: a program (state, mine, shared) -> results.

        Args:
            function: (state, mine, shared) -> results for one seed; runs on one device, compiled or not.
            donate: whether the states are donated.

        Returns:
            The same function with leaves [S, ...] of `state`, `mine` and the results; all seeds get the same `shared`.
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
