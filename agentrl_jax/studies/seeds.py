"""Several seeds of a run in one program: sequentially on one device, or distributed over devices.

`S` seeds are the first axis of everything that differs by seed. Frozen parameters do not, and are stored once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.errors import BadValue
from agentrl_jax.setup.memory import Measured

_AXIS = "seed"


class Seeds:
    """S seeds over some devices: their `numbers`, and their `keys` key[S].

    Under `vmap`, a loop would run until its slowest seed is done and copy the state of the others at every step, so the
    seeds of a device run sequentially with `jax.lax.map`.
    """

    def __init__(self, first: int, count: int, devices: Sequence[jax.Device]):
        """Creates the seeds `first` to `first + count - 1`.

        Raises:
            ValueError: the seeds cannot be divided equally among the devices.
        """
        if count % len(devices):
            raise BadValue(
                f"{count} seeds cannot be shared by {len(devices)} devices; use a multiple, or devices that divide it",
                key="seeds",
                value=count,
            )
        self.numbers = tuple(range(first, first + count))
        self.mesh = Mesh(np.array(devices), (_AXIS,))
        self.keys = jax.vmap(jax.random.key)(np.asarray(self.numbers, np.uint32))

    def each(self, function: Callable[[Any, Any, Any], Any], *, donate: bool = False) -> Callable[[Any, Any, Any], Any]:
        """Maps a program (state, per_seed, shared) -> results over the seeds; `donate` donates the states.

        Leaves of `state`, `per_seed` and the results become [S, ...]; all seeds get the same `shared`.
        """

        def over(state, per_seed, shared):
            return jax.lax.map(lambda of_seed: function(of_seed[0], of_seed[1], shared), (state, per_seed))

        if self.mesh.size > 1:
            specs = Spec(_AXIS), Spec(_AXIS), Spec()
            over = jax.shard_map(over, mesh=self.mesh, in_specs=specs, out_specs=Spec(_AXIS), check_vma=False)
        return Measured("of all seeds", jax.jit(over, donate_argnums=(0,) if donate else ()))

    def rollout(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """`IterationPrograms.rollout` over all seeds: trained parameters, keys, ids and horizons are [S, ...]."""

        def play(policy, per_seed, shared):
            (key, horizon, ids), (frozen_params, settings) = per_seed, shared
            params = rollout_params(policy, frozen_params)
            trajectory, stats = program(params, key, ids, settings.replace(horizon=horizon))
            return trajectory, jax.tree.map(jnp.sum, stats)

        over_seeds = self.each(play)

        def rollout(params, keys, ids, settings):
            shared = params.get("frozen"), settings.replace(horizon=None)
            return over_seeds(params["policy"], (keys, settings.horizon, ids), shared)

        return rollout

    def update(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """`IterationPrograms.update` over all seeds: states, trajectories and keys are [S, ...]."""

        def learn(state, per_seed, shared):
            (trajectory, key, greedy), (frozen_params, temperature, settings) = per_seed, shared
            state = state.replace(frozen_params=frozen_params)
            state, metrics = program(state, trajectory, temperature, key, settings, *greedy)
            return state.replace(frozen_params=None), metrics

        over_seeds = self.each(learn, donate=True)

        def update(states, trajectories, temperature, keys, settings, *greedy):
            shared = states.frozen_params, temperature, settings
            return over_seeds(states.replace(frozen_params=None), (trajectories, keys, greedy), shared)

        return update


def rollout_params(policy: Any, frozen_params: Any) -> dict[str, Any]:
    """The parts of a state that a rollout reads."""
    return {"policy": policy} if frozen_params is None else {"policy": policy, "frozen": frozen_params}
