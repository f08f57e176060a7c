"""Supervised learning on the response tokens of demonstrations."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key

from agentrl_jax.learner.state import TrainState, apply_gradients
from agentrl_jax.models import actor_critic
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.packing import Sequences


def imitation_steps(
    state: TrainState,
    rows: Sequences,
    key: Key[Array, ""],
    steps: Int[Array, ""],
    lr: Float[Array, ""],
    max_grad_norm: Float[Array, ""],
    *,
    batch: int,
    model: ActorCritic,
    tx: optax.GradientTransformation,
    shards: Shards,
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """Runs gradient steps on the mean cross-entropy of the demonstrated tokens.

    Step i reads `batch` rows sampled with `fold_in(key, i)`, where i counts the steps of the whole run, so the result
    does not depend on how steps are grouped into calls. Gradients are clipped to the global norm `max_grad_norm`.

    Metrics: means over the steps of "imitation/loss" (nats per token) and "imitation/grad_norm"; "imitation/skipped",
    the number of skipped steps (see `apply_gradients`), and "imitation/skipped_in_a_row", the largest number of
    consecutive skipped steps.
    """
    # A row of a turn that was not played has no sampled tokens and is never chosen.
    useful = jnp.any(rows.response_mask, axis=1).astype(jnp.float32)

    def step(_, carry):
        state, sums, skipped, in_a_row = carry
        chosen = jax.random.choice(
            jax.random.fold_in(key, state.imitation_step), useful.shape[0], (batch,), p=useful / jnp.sum(useful)
        )
        part = jax.tree.map(lambda x: x[chosen], rows)
        count = jnp.sum(part.response_mask, dtype=jnp.float32)
        local = shards.shard_rows(part)
        params, frozen_params = shards.varying((state.params, state.frozen_params))
        frozen = state.replace(frozen_params=frozen_params)

        def loss_of(params):
            scores = actor_critic.score_tokens(
                frozen.merged_params(params),
                model,
                local.tokens,
                local.position,
                jnp.ones(local.tokens.shape[0]),
                mask=local.response_mask,
            )
            return -jnp.sum(jnp.where(local.response_mask, scores.logprob, 0.0)) / jnp.maximum(count, 1.0)

        loss, grads = jax.value_and_grad(loss_of)(params)
        grads = shards.sum_of_gradients(grads, state.params)
        loss = shards.sum(shards.after(grads, loss))
        state, norms, good = apply_gradients(
            state,
            tx,
            loss,
            grads,
            tokens=count,
            lr=lr,
            critic_lr=jnp.float32(0),
            max_grad_norm=max_grad_norm,
            norm=shards.norm,
        )
        state = state.replace(imitation_step=state.imitation_step + 1)
        sums = jax.tree.map(jnp.add, sums, {"imitation/loss": loss, "imitation/grad_norm": norms["policy"]})
        return state, sums, skipped + ~good, jnp.maximum(in_a_row, state.bad_updates)

    zeros = {"imitation/loss": jnp.float32(0), "imitation/grad_norm": jnp.float32(0)}
    state, sums, skipped, in_a_row = jax.lax.fori_loop(0, steps, step, (state, zeros, jnp.int32(0), jnp.int32(0)))
    means = jax.tree.map(lambda x: x / jnp.maximum(steps, 1), sums)
    counts = {"imitation/skipped": skipped, "imitation/skipped_in_a_row": in_a_row}
    return state, means | {name: x.astype(jnp.float32) for name, x in counts.items()}
