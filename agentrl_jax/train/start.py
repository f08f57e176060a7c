"""Between the parts of a run and its first iteration: what is imitated, and what learning begins with."""

import jax
import optax

from agentrl_jax.config import Config
from agentrl_jax.models import actor_critic
from agentrl_jax.offline.demonstrations import demonstrations
from agentrl_jax.rollout.context import Sequences, assemble
from agentrl_jax.rollout.world import CompiledWorld
from agentrl_jax.train import run_keys
from agentrl_jax.train.state import TrainState, with_reference


def demonstration_rows(config: Config, world: CompiledWorld, key: jax.Array) -> Sequences:
    """The rows that a run imitates; `key` is that of its seed.

    Raises:
        ValueError: as `demonstrations`.
    """
    trajectory = demonstrations(
        world,
        jax.random.fold_in(key, run_keys.DEMONSTRATIONS),
        plans=config.imitation.plans,
        levels=config.imitation.levels,
        turns=config.prompt.max_turns,
        reply_tokens=config.prompt.reply_tokens,
        max_actions=config.prompt.max_actions,
        context=config.rollout.context,
    )
    return assemble(trajectory, trajectory.turn.reward, config.rollout.context, "turn")


def begin_learning(state: TrainState, optimise: optax.GradientTransformation, *, reference: bool) -> TrainState:
    """What happens once between imitation and learning: a separate critic and the optimiser start from here."""
    params = actor_critic.critic_from_policy(state.params)
    state = state.replace(params=params, opt_state=optimise.init(params))
    return with_reference(state) if reference else state
