"""`TrainState`: everything that is needed to continue a run."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from agentrl_jax.algos import kl
from agentrl_jax.algos.kl import KLController
from agentrl_jax.models import actor_critic, decoder
from agentrl_jax.models.actor_critic import ActorCritic


class TrainState(struct.PyTreeNode):
    """State of a run between two iterations. Loading a saved state is all that resuming a run needs.

    Attributes:
        params: "policy" and "critic", f32.
        reference: frozen reference policy of the KL divergence; None if nothing reads it.
        opt_state: optimizer state for each entry of `params`, by name.
        iteration: i32[] number of finished RL iterations; with the seed it determines all later random keys.
        imitation_step: i32[] number of finished imitation steps.
        gradient_steps: i32[] number of applied updates.
        bad_updates: i32[] number of consecutive skipped updates, see `apply_gradients`.
        kl: factor of the KL coefficient; 1 unless the controller is adaptive.
        frozen_params: frozen part of the decoder, see `actor_critic.from_decoder`; None if everything is trained. It
            comes with the pretrained model and is not part of a checkpoint.
    """

    params: Any
    reference: Any
    opt_state: Any
    iteration: jax.Array
    imitation_step: jax.Array
    gradient_steps: jax.Array
    bad_updates: jax.Array
    kl: KLController
    frozen_params: Any = None

    def merged_params(self, params: Any = None) -> dict[str, Any]:
        """`params` (default: those of the state), with the frozen parameters under "frozen" if there are any."""
        params = self.params if params is None else params
        return params if self.frozen_params is None else {**params, "frozen": self.frozen_params}


def optimizer(
    b1: float, b2: float, weight_decay: float, decay: Literal["matrices", "all"] = "matrices"
) -> optax.GradientTransformation:
    """AdamW with learning rate 1 (Loshchilov and Hutter 2019); the step multiplies by the traced learning rates.

    Args:
        b1: decay of the first moment.
        b2: decay of the second moment.
        weight_decay: coefficient of the weight decay.
        decay: "matrices": no weight decay for norms and biases; "all": weight decay for all parameters.
    """
    return optax.adamw(1.0, b1=b1, b2=b2, weight_decay=weight_decay, mask=decays if decay == "matrices" else None)


def decays(params: Any) -> Any:
    """Mask of the leaves with weight decay: all but norms and biases, by name, because stacked ones have two axes."""
    return jax.tree.map_with_path(lambda path, _: not str(path[-1].key).endswith(("norm", "bias")), params)


def init_state(
    key: jax.Array,
    model: ActorCritic,
    tx: optax.GradientTransformation,
    reference: bool,
    pretrained: decoder.Params | None = None,
) -> TrainState:
    """State before the first step, from a pretrained decoder or a fresh one; `reference`: keep a copy as reference."""
    if pretrained is None:
        pretrained = decoder.init_params(key, model.decoder)
    params = actor_critic.from_decoder(key, pretrained, model)
    frozen_params = params.pop("frozen", None)
    counts = {name: jnp.int32(0) for name in ("iteration", "imitation_step", "gradient_steps", "bad_updates")}
    state = TrainState(
        params=params,
        reference=None,
        opt_state=init_optimizer(tx, params),
        frozen_params=frozen_params,
        kl=kl.controller(1.0),
        **counts,
    )
    return with_reference(state) if reference else state


def init_optimizer(tx: optax.GradientTransformation, params: dict[str, Any]) -> dict[str, Any]:
    """Initial optimizer state for each entry of the parameters, so that one entry can be held fixed."""
    return {name: tx.init(tree) for name, tree in params.items()}


def with_reference(state: TrainState) -> TrainState:
    """The state with a copy of its current policy as the reference."""
    return state.replace(reference=jax.tree.map(jnp.copy, state.params["policy"]))


def apply_gradients(
    state: TrainState,
    tx: optax.GradientTransformation,
    loss: jax.Array,
    grads: Any,
    *,
    tokens: jax.Array,
    lr: jax.Array,
    critic_lr: jax.Array,
    max_grad_norm: jax.Array,
    hold_policy: jax.Array | bool = False,
    norm: Callable[[Any], jax.Array] = optax.tree.norm,
) -> tuple[TrainState, dict[str, jax.Array], jax.Array]:
    """One optimizer step; skipped entirely if loss, gradient or step is not finite, or if there are no trained tokens.

    Args:
        state: state before the step.
        tx: from `optimizer`.
        loss: f32[].
        grads: gradient with respect to `state.params`, reduced over devices.
        tokens: f32[] number of trained tokens; with none, momentum and decay would still move the parameters.
        lr: f32[] learning rate of the policy.
        critic_lr: f32[] learning rate of the critic.
        max_grad_norm: f32[] the gradients of policy and critic are each clipped to this global norm.
        hold_policy: bool[] the policy and its optimizer state stay unchanged.
        norm: global norm of a tree; `Shards.norm` for sharded parameters.

    Returns:
        The state; the global norms f32[] of both gradients before clipping, by name; and whether the step was applied,
        bool[]. If the critic shares the policy's decoder, the policy's norm includes the gradient of the value loss.
    """
    norms = {name: norm(tree) for name, tree in grads.items()}
    good = jnp.isfinite(loss) & jnp.all(jnp.isfinite(jnp.stack(list(norms.values())))) & (tokens > 0)

    def scaled(tree, size):
        scale = jnp.minimum(1.0, max_grad_norm / (size + 1e-6))
        return jax.tree.map(lambda g: jnp.where(good, g * scale, 0.0), tree)

    scaled_grads = {name: scaled(tree, norms[name]) for name, tree in grads.items()}
    rates = {"policy": lr, "critic": critic_lr}
    updates, moments = {}, {}
    for name, tree in scaled_grads.items():
        update, moments[name] = tx.update(tree, state.opt_state[name], state.params[name])
        updates[name] = jax.tree.map(lambda u, r=rates[name]: r * u, update)
    good &= jnp.isfinite(norm(updates))
    new, old = (optax.apply_updates(state.params, updates), moments), (state.params, state.opt_state)
    params, opt_state = {}, {}
    for name in grads:
        taken = good & ~jnp.asarray(hold_policy) if name == "policy" else good
        params[name], opt_state[name] = jax.tree.map(
            lambda new, old, taken=taken: jnp.where(taken, new, old), *(tuple(x[name] for x in xs) for xs in (new, old))
        )
    state = state.replace(
        params=params,
        opt_state=opt_state,
        gradient_steps=state.gradient_steps + good,
        bad_updates=jnp.where(good, 0, state.bad_updates + 1),
    )
    return state, norms, good
