"""The compiled programs of a run: a fixed list, each compiled once and counted."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.models.actor_critic import ActorCritic, policy_decoder
from agentrl_jax.offline.imitation import imitation_steps
from agentrl_jax.parallel.shards import AXIS, Shards, on_mesh
from agentrl_jax.rollout.engine import EngineConfig, rollout
from agentrl_jax.rollout.trajectory import EpisodeIds, RolloutSettings, RolloutStats, Trajectory
from agentrl_jax.rollout.world import World
from agentrl_jax.train.learner import update
from agentrl_jax.train.settings import LearnerConfig

RolloutProgram = Callable[[dict[str, Any], jax.Array, EpisodeIds, RolloutSettings], tuple[Trajectory, RolloutStats]]


class Programs:
    """Makes programs and keeps them, so that the number compiled can be told.

    Attributes:
        compiled: programs by name.
    """

    def __init__(self, mesh: Mesh):
        """Starts an empty list of programs for the devices of `mesh`."""
        self.mesh = mesh
        self.shards = Shards(mesh.size)
        self.compiled: dict[str, Any] = {}

    def count(self) -> int:
        """Programs compiled so far; a second shape of the same program counts again."""
        return sum(program._cache_size() for program in self.compiled.values())

    def rollout(self, name: str, model: ActorCritic, world: World, config: EngineConfig) -> RolloutProgram:
        """(params, key, ids, settings) -> (Trajectory, RolloutStats); every device plays its share of the episodes.

        `params` is that of `TrainState.whole`.
        """

        def play(params, key, ids, settings):
            trajectory, stats = rollout(policy_decoder(params, model), model.decoder, world, config, key, ids, settings)
            return trajectory, jax.tree.map(lambda x: x[None], stats)

        settings: Any = {"temperature": Spec(AXIS), "horizon": Spec(), "max_actions": Spec(), "env_params": Spec()}
        specs = (Spec(), Spec(), Spec(AXIS), RolloutSettings(**settings))
        return self._keep(name, on_mesh(play, self.mesh, specs, Spec(AXIS), replicated_results=False))

    def update(
        self,
        model: ActorCritic,
        config: LearnerConfig,
        optimise: optax.GradientTransformation,
        engine: EngineConfig | None = None,
    ):
        """(state, trajectory, temperature, key, settings) -> (state, metrics); donates the state.

        A strict learner replays the rollout and needs its `engine`.
        """
        alone = functools.partial(
            update, model=model, config=config, optimise=optimise, shards=self.shards, engine=engine
        )
        function = on_mesh(alone, self.mesh, Spec(), Spec(), replicated_results=True)
        return self._keep("update", function, donate_argnums=(0,))

    def imitation(self, model: ActorCritic, optimise: optax.GradientTransformation, *, batch: int):
        """(state, rows, key, steps, lr, max_grad_norm) -> (state, metrics); donates the state."""
        alone = functools.partial(imitation_steps, batch=batch, model=model, optimise=optimise, shards=self.shards)
        function = on_mesh(alone, self.mesh, Spec(), Spec(), replicated_results=True)
        return self._keep("imitation", function, donate_argnums=(0,))

    def _keep(self, name: str, function: Callable[..., Any], **options: Any) -> Any:
        self.compiled[name] = jax.jit(function, **options)
        return self.compiled[name]


def total_stats(stats: RolloutStats) -> dict[str, int]:
    """Counters summed over devices, on the host."""
    return {name: int(jnp.sum(value)) for name, value in vars(stats).items()}
