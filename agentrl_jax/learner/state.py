"""`TrainState`: everything that is needed to continue a run."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from agentrl_jax.algos.kl import KLController
from agentrl_jax.algos.optimizers import Optimizer
from agentrl_jax.models import actor_critic, decoder
from agentrl_jax.models.actor_critic import ActorCritic


class Kept(NamedTuple):
    """What a state keeps besides parameters and optimizer while it learns by reinforcement."""

    reference: bool = False
    """A copy of the policy at the start, as reference."""
    teacher: bool = False
    """A teacher that follows the policy."""
    average: bool = False
    """A moving average of the policy, for evaluations."""
    entropy_coef: float | None = None
    """The weight of the entropy bonus at the start, where it follows a target."""


class TrainState(struct.PyTreeNode):
    """State of a run between two iterations. Loading a saved state is all that resuming a run needs."""

    params: Any
    """"policy" and "critic", f32."""
    reference: Any
    """Reference policy of the KL divergence, without gradient; None if nothing reads it."""
    opt_state: Any
    """Optimizer state for each entry of `params`, by name."""
    stage: Int[Array, ""]
    """Number of stages of the run that have begun, so that of the current one, counted from 1; 0 before the first."""
    step: Int[Array, ""]
    """Finished steps of the current stage; with the seed it determines all later random keys. A step of reinforcement
    learning is an iteration, one of imitation a gradient step."""
    gradient_steps: Int[Array, ""]
    """Number of applied updates."""
    bad_updates: Int[Array, ""]
    """Number of consecutive skipped updates, see `apply_gradients`."""
    kl: KLController
    """Factor of the KL coefficient; 1 unless the controller is adaptive."""
    frozen_params: Any = None
    """Frozen part of the decoder, see `actor_critic.from_decoder`; None if everything is trained. It comes with the
    pretrained model and is not part of a checkpoint."""
    teacher: Any = None
    """Moving average of the policy that teaches it, see `algos.distillation`; None if nothing reads it."""
    entropy_coef: Float[Array, ""] | None = None
    """Weight of the entropy bonus where it follows a target, see `algo.entropy_target`; None where it does not."""
    average: Any = None
    """Moving average of the policy over gradient steps, see `optim.average_rate`; None without one."""
    stage_state: Any = None
    """What the current stage keeps between its steps besides, e.g. the levels that reinforcement learning chooses from;
    None if nothing."""

    def merged_params(self, params: Any = None) -> dict[str, Any]:
        """`params` (default: those of the state), with the frozen parameters under "frozen" if there are any."""
        params = self.params if params is None else params
        return params if self.frozen_params is None else {**params, "frozen": self.frozen_params}

    @property
    def evaluated(self) -> dict[str, Any]:
        """The parameters that evaluations read, with the average of the policy where there is one."""
        return self.params if self.average is None else {**self.params, "policy": self.average}

    def next_stage(self) -> "TrainState":
        """The state before the first step of the next stage."""
        return self.replace(stage=self.stage + 1, step=jnp.zeros_like(self.step), stage_state=None)


def init_state(
    key: Key[Array, ""],
    model: ActorCritic,
    tx: Optimizer,
    kept: Kept | None = None,
    pretrained: decoder.Params | None = None,
) -> TrainState:
    """State before the first step, from a pretrained decoder or a fresh one."""
    if pretrained is None:
        pretrained = decoder.init_params(key, model.decoder)
    params = actor_critic.from_decoder(key, pretrained, model)
    frozen_params = params.pop("frozen", None)
    counts = {name: jnp.int32(0) for name in ("stage", "step", "gradient_steps", "bad_updates")}
    state = TrainState(
        params=params,
        reference=None,
        opt_state=init_optimizer(tx, params),
        frozen_params=frozen_params,
        kl=KLController(coef=jnp.float32(1.0)),
        **counts,
    )
    return with_kept(state, kept or Kept())


def init_optimizer(tx: Optimizer, params: dict[str, Any]) -> dict[str, Any]:
    """Initial optimizer state for each entry of the parameters, so that one entry can be held fixed.

    Raises:
        ValueError: a group of the optimizer matches no parameter.
    """
    tx.check(params.values())
    return {name: tx.init(tree) for name, tree in params.items()}


def with_kept(state: TrainState, kept: Kept) -> TrainState:
    """The state with what is kept; each copy of a policy is that of its current one."""

    def copied(wanted: bool, old: Any) -> Any:
        return jax.tree.map(jnp.copy, state.params["policy"]) if wanted else old

    coef = state.entropy_coef if kept.entropy_coef is None else jnp.float32(kept.entropy_coef)
    return state.replace(
        reference=copied(kept.reference, state.reference),
        teacher=copied(kept.teacher, state.teacher),
        average=copied(kept.average, state.average),
        entropy_coef=coef,
    )


def apply_gradients(
    state: TrainState,
    tx: Optimizer,
    loss: Float[Array, ""],
    grads: Any,
    *,
    tokens: Float[Array, ""],
    lr: Float[Array, ""] | float,
    critic_lr: Float[Array, ""] | float,
    max_grad_norm: Float[Array, ""] | float,
    freeze_policy: Bool[Array, ""] | bool = False,
    norm: Callable[[Any], jax.Array] = optax.tree.norm,
) -> tuple[TrainState, dict[str, Float[Array, ""]], Bool[Array, ""]]:
    """One optimizer step; skipped entirely if loss, gradient or step is not finite, or if there are no trained tokens.

    Optimizer state in the memory of the host is moved to the device for the step, and back.
    Without trained tokens, momentum and decay would still move the parameters. `grads` are reduced over devices; those
    of policy and critic are each clipped to the global norm `max_grad_norm`. `tokens` is the number of trained tokens.
    `freeze_policy` leaves the policy and its optimizer state unchanged. `norm` is `Shards.norm` for sharded parameters.

    Returns the state, both global norms before clipping, by name, and whether the step was applied. If the critic
    shares the policy's decoder, the policy's norm includes the gradient of the value loss.
    """
    grads = {name: tx.trained(grad) for name, grad in grads.items()}
    norms = {name: norm(grad) for name, grad in grads.items()}
    good = jnp.isfinite(loss) & jnp.all(jnp.isfinite(jnp.stack(list(norms.values())))) & (tokens > 0)

    before = jax.tree.map(_on_device, state.opt_state)
    rates = {"policy": lr, "critic": critic_lr}
    updates, moments = {}, {}
    for name, grad in grads.items():
        scale = jnp.minimum(1.0, max_grad_norm / (norms[name] + 1e-6))
        scaled = jax.tree.map(lambda g, scale=scale: jnp.where(good, g * scale, 0.0), grad)
        update, moments[name] = tx.update(scaled, before[name], state.params[name])
        updates[name] = jax.tree.map(lambda u, r=rates[name]: r * u, update)
    good &= jnp.isfinite(norm(updates))
    new, old = (optax.apply_updates(state.params, updates), moments), (state.params, before)
    params, opt_state = {}, {}
    for name in grads:
        taken = good & ~jnp.asarray(freeze_policy) if name == "policy" else good
        params[name], opt_state[name] = jax.tree.map(
            lambda new, old, taken=taken: jnp.where(taken, new, old), *(tuple(x[name] for x in xs) for xs in (new, old))
        )
    state = state.replace(
        params=params,
        opt_state=jax.tree.map(_beside, opt_state, state.opt_state),
        gradient_steps=state.gradient_steps + good,
        bad_updates=jnp.where(good, 0, state.bad_updates + 1),
    )
    return state, norms, good


def _on_device(x: jax.Array) -> jax.Array:
    host = jax.typeof(x).memory_space == jax.memory.Space.Host
    return jax.device_put(x, jax.memory.Space.Device) if host else x


def _beside(x: jax.Array, old: jax.Array) -> jax.Array:
    """`x` in the memory that holds `old`."""
    host = jax.typeof(old).memory_space == jax.memory.Space.Host
    return jax.device_put(x, jax.memory.Space.Host) if host else x
