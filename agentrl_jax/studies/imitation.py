"""Imitation of all seeds of a comparison, in one program where they take equally many rows a step.

Dimensions: `S` seeds, the first axis of everything that differs by seed.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from agentrl_jax.algos.optimizers import Optimizer
from agentrl_jax.config import Config
from agentrl_jax.config.imitation import IMITATION_CHUNK
from agentrl_jax.errors import refusals
from agentrl_jax.learner.state import TrainState
from agentrl_jax.learner.supervised import Examples, prepare_examples
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.level_splits import LevelSplits
from agentrl_jax.rollout.trajectory import level_ids
from agentrl_jax.setup import run_keys, start
from agentrl_jax.setup.programs import Programs
from agentrl_jax.studies.seeds import Seeds
from agentrl_jax.text.tokenizer import Tokenizer


class SeedImitation:
    """What the seeds imitate, as `agentrl train` makes it for each, and the gradient steps.

    Attributes:
        levels: hashes of the demonstrated levels, by seed.
    """

    def __init__(
        self,
        config: Config,
        seeds: Seeds,
        batched_env: CompiledEnv,
        splits: LevelSplits,
        tokenizer: Tokenizer,
        note: Callable[[str], None],
    ):
        """Makes the demonstrations.

        Raises:
            UserError: there is nothing to imitate.
        """
        self.config, self.seeds, self.note = config, seeds, note
        note(f"imitation of {len(seeds.numbers)} seeds")
        inputs = config, batched_env, splits, tokenizer, None
        with refusals():
            found = [start.demonstration_rows(*inputs, jax.random.key(seed), report=note) for seed in seeds.numbers]
            prepared = [
                prepare_examples(rows, config.imitation.batch, packing=config.algo.packing) for rows, _ in found
            ]
        self.levels = [set(level_ids(demonstrations)) for _, demonstrations in found]
        self.rows = _stack([examples for examples, _ in prepared])
        self.batches = np.array([batch for _, batch in prepared])

    def run(
        self,
        states: TrainState,
        frozen_params: Any,
        programs: Programs,
        model: ActorCritic,
        tx: Optimizer,
    ) -> TrainState:
        """Returns the states [S, ...] after all steps."""
        # With packing, seeds can differ in the bins of a step, which are a constant of the program.
        for batch in np.unique(self.batches):
            program = programs.imitation(model, tx, batch=int(batch))
            states = self._steps(self.batches == batch, states, frozen_params, program)
        return states

    def _steps(
        self, mine: Bool[np.ndarray, " S"], states: TrainState, frozen_params: Any, program: Callable[..., Any]
    ) -> TrainState:
        """The states after all steps of the seeds in `mine`."""
        config, rates = self.config.imitation, start.imitation_rates(self.config)

        def imitate(state, per_seed, frozen_params):
            key, rows, steps = per_seed
            order = jax.random.fold_in(key, run_keys.IMITATION)
            state, metrics = program(
                state.replace(frozen_params=frozen_params), rows, rows.counts(), order, steps, *rates
            )
            return state.replace(frozen_params=None), metrics["imitation/loss"]

        imitate_all = self.seeds.each(imitate, donate=True)
        numbers = ", ".join(str(number) for number in np.array(self.seeds.numbers)[mine])
        for done in range(0, config.steps, IMITATION_CHUNK):
            steps = min(IMITATION_CHUNK, config.steps - done)
            per_seed = self.seeds.keys, self.rows, np.where(mine, steps, 0).astype(np.int32)
            states, loss = imitate_all(states, per_seed, frozen_params)
            shown = " ".join(f"{value:.3f}" for value in np.asarray(loss)[mine])
            self.note(f"imitation {done + steps:>5}/{config.steps}  loss of the seeds {numbers}: {shown}")
        return states


def _stack(parts: list[Examples]) -> Examples:
    """Stacks the seeds' rows; to shorter ones come zeros, which are never imitated."""

    def stacked(*x: Array) -> Array:
        shape = np.max([each.shape for each in x], axis=0)
        return jnp.stack([jnp.pad(each, [(0, to - size) for size, to in zip(each.shape, shape)]) for each in x])

    return jax.tree.map(stacked, *parts)
