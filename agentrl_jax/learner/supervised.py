"""Learning from rows that were not sampled by the policy: demonstrations, conversations, pairs of answers.

Shapes: `N` rows, or bins of several rows, of `S` tokens with `K` positions that may be trained; `C` steps of a
dispatch.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from agentrl_jax.algos import preferences
from agentrl_jax.algos.optimizers import Optimizer
from agentrl_jax.config.stages import DpoStage
from agentrl_jax.errors import BadValue
from agentrl_jax.learner import bins as binning
from agentrl_jax.learner.gradient import Loss, StepShape, gradient
from agentrl_jax.learner.state import TrainState, apply_gradients
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.packing import Sequences

LEAST_BIN = 512
"""Least tokens of a bin: short rows leave less of a long bin empty."""


class Examples(struct.PyTreeNode):
    """Rows to imitate."""

    tokens: Int[Array, "N S"]
    position: Int[Array, "N K"]
    """Index in `tokens`, at least 1."""
    mask: Bool[Array, "N K"]
    """The token at this position is imitated."""
    segment: Int[Array, "N S"] | None
    """Tokens with different numbers do not see each other; None: a row is one context."""
    reference: Float[Array, " N"] | None = None
    """Log-probability of the trained tokens of the row under the reference policy, see `_pair_loss`."""

    @property
    def temperature(self) -> Float[Array, " N"]:
        """1: demonstrations were not sampled."""
        return jnp.ones(self.tokens.shape[0])

    def counts(self) -> Int[Array, " N"]:
        """Number of tokens to imitate in each row."""
        return jnp.sum(self.mask, axis=1, dtype=jnp.int32)


def prepare_examples(rows: Sequences, batch: int, *, packing: bool = False) -> tuple[Examples, int]:
    """Returns what is imitated, and how many rows of it a step takes: `batch`, or with packing so many in the mean.

    With packing, the rows that have something to imitate are packed into bins (see `learner.bins`), and the number is
    that of bins. Otherwise they stay as they are, each with its padding.

    Raises:
        ValueError: no row has anything to imitate.
    """
    if not np.any(rows.response_mask):
        raise BadValue(
            f"none of {len(rows.length)} rows has a token to imitate; lower imitation.noise, or raise imitation.levels",
            key="imitation.noise",
        )
    if not packing:
        return Examples(rows.tokens, rows.position, rows.response_mask, None), batch
    rows = jax.tree.map(lambda x: x[np.flatnonzero(np.any(rows.response_mask, axis=1))], rows)
    count, longest = len(rows.length), int(np.max(rows.length))
    capacity = max(longest, LEAST_BIN)
    tokens = jnp.pad(rows.tokens[:, :longest], ((0, 0), (0, capacity - longest)))
    bins = binning.assign(rows.length, capacity)
    used = int(jnp.max(bins.bin)) + 1
    filled = binning.fill(bins, tokens, rows.position, rows.response_mask, jnp.ones(count))
    filled = jax.tree.map(lambda x: x[:used], filled)
    found = Examples(filled.tokens, filled.position, filled.mask, filled.segment)
    return found, max(1, round(batch * used / count))


def imitation_steps(
    state: TrainState,
    rows: Examples,
    tokens: Int[Array, " N"],
    key: Key[Array, ""],
    steps: Int[Array, ""],
    lr: Float[Array, ""],
    decay_steps: Float[Array, ""],
    max_grad_norm: Float[Array, ""],
    *,
    batch: int,
    model: ActorCritic,
    tx: Optimizer,
    shards: Shards,
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """Runs gradient steps on the mean cross-entropy of the demonstrated tokens.

    `tokens` is `rows.counts()`. With `shards.count` > 1 it runs inside `jax.shard_map`: each device has a contiguous
    block of the rows, which zeros may follow, and the other arguments are replicated.

    Step i reads `batch` rows sampled with `fold_in(key, i)`, where i counts the steps of the stage, so the result
    does not depend on how steps are grouped into calls. The learning rate falls linearly from `lr` to 0 in
    `decay_steps` steps, which may be infinite. Gradients are clipped to the global norm `max_grad_norm`.

    Metrics: means over the steps of "imitation/loss" (nats per token) and "imitation/grad_norm"; "imitation/skipped",
    the number of skipped steps (see `apply_gradients`), and "imitation/skipped_in_a_row", the largest number of
    consecutive skipped steps.
    """
    # A row of a turn that was not played has no sampled tokens and is never chosen.
    useful = (tokens > 0).astype(jnp.float32)

    def take(_, state):
        chosen = jax.random.choice(
            jax.random.fold_in(key, state.step), useful.shape[0], (batch,), p=useful / jnp.sum(useful)
        )
        return chosen, jnp.sum(tokens[chosen]).astype(jnp.float32), lr * jnp.maximum(1 - state.step / decay_steps, 0)

    state, metrics = _steps(
        state,
        rows,
        steps,
        take,
        _cross_entropy,
        StepShape(),
        max_grad_norm,
        model=model,
        tx=tx,
        shards=shards,
    )
    return state, {f"imitation/{name}": x for name, x in metrics.items()}


def data_steps(
    state: TrainState,
    rows: Examples,
    weights: Float[Array, " C"],
    lr: Float[Array, " C"],
    steps: Int[Array, ""],
    max_grad_norm: Float[Array, ""],
    *,
    batch: int,
    pairs: DpoStage | None,
    model: ActorCritic,
    tx: Optimizer,
    shards: Shards,
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """Runs the first `steps` of C gradient steps; step i learns from the i-th `batch` of the rows, with `lr[i]`.

    `weights` has the number of trained tokens of each step, over which the loss is a mean; with `pairs` a unit is two
    rows, the chosen answer and the rejected one, and `weights` has the number of pairs. Rows of zeros are not learned
    from. Devices and skipped steps are as in `imitation_steps`.

    Metrics: means over the steps of "loss" and "grad_norm", with `pairs` also `preferences.METRICS`; "skipped" and
    "skipped_in_a_row".
    """
    shape = StepShape(unit=1 if pairs is None else 2)

    def take(number, _):
        return number * batch + jnp.arange(batch), weights[number], lr[number]

    def loss_of(weight):
        return _cross_entropy(weight) if pairs is None else _pair_loss(pairs, weight)

    return _steps(state, rows, steps, take, loss_of, shape, max_grad_norm, model=model, tx=tx, shards=shards)


def _cross_entropy(tokens: Float[Array, ""]) -> Loss:
    """Cross-entropy of the trained tokens, nats, over the number of those of the whole step."""

    def loss(scores, rows):
        return -jnp.sum(jnp.where(rows.mask, scores.logprob, 0.0)) / jnp.maximum(tokens, 1.0), ({}, {})

    return loss


def _pair_loss(config: DpoStage, pairs: Float[Array, ""]) -> Loss:
    """The mean of `preferences.loss` over the pairs of the whole step."""

    def loss(scores, rows):
        counts = jnp.maximum(rows.counts(), 1)
        logprob = jnp.sum(jnp.where(rows.mask, scores.logprob, 0.0), axis=1)
        policy, reference = ((x / counts if config.per_token else x).reshape(-1, 2) for x in (logprob, rows.reference))
        real = jnp.any(rows.mask, axis=1).reshape(-1, 2)[:, 0]
        per_pair, metrics = preferences.loss(policy, reference, kind=config.loss, beta=config.beta)
        nll = -(logprob / counts).reshape(-1, 2)[:, 0]
        per_pair += config.nll_coef * nll
        total = jnp.sum(jnp.where(real, per_pair, 0.0)) / jnp.maximum(pairs, 1.0)
        return total, ({name: jnp.sum(jnp.where(real, x, 0.0)) for name, x in metrics.items()}, {})

    return loss


Take = Callable[[Int[Array, ""], TrainState], tuple[Int[Array, " B"], Float[Array, ""], Float[Array, ""]]]
"""(number of the step in this dispatch, state) -> its units, the weight of its loss, its learning rate."""


def _steps(
    state: TrainState,
    rows: Examples,
    steps: Int[Array, ""],
    take: Take,
    loss_of: Callable[[Float[Array, ""]], Loss],
    shape: StepShape,
    max_grad_norm: Float[Array, ""],
    *,
    model: ActorCritic,
    tx: Optimizer,
    shards: Shards,
) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
    """The state after so many steps, and the means of their metrics."""
    units = rows.tokens.shape[0] * shards.count // shape.unit

    def step(number, carry):
        state, sums, skipped, in_a_row = carry
        chosen, weight, lr = take(number, state)
        # No device has a row of this number, so that zeros are fetched: what a step reads is the same on all meshes.
        nowhere = jnp.full(-len(chosen) % shards.count, units, chosen.dtype)
        chosen = jnp.concatenate([chosen, nowhere])
        loss, grads, measured = gradient(
            state,
            rows,
            chosen,
            jnp.ones_like(chosen),
            loss_of(weight),
            shape,
            tokens=weight,
            model=model,
            shards=shards,
        )
        state, norms, good = apply_gradients(
            state,
            tx,
            loss,
            grads,
            tokens=weight,
            lr=lr,
            critic_lr=jnp.float32(0),
            max_grad_norm=max_grad_norm,
            norm=shards.norm,
        )
        state = state.replace(step=state.step + 1)
        sums = jax.tree.map(jnp.add, sums, {"loss": loss, "grad_norm": norms["policy"], **measured})
        return state, sums, skipped + ~good, jnp.maximum(in_a_row, state.bad_updates)

    names = ("loss", "grad_norm", *(preferences.METRICS if shape.unit > 1 else ()))
    zeros = {name: jnp.float32(0) for name in names}
    state, sums, skipped, in_a_row = jax.lax.fori_loop(0, steps, step, (state, zeros, jnp.int32(0), jnp.int32(0)))
    means = jax.tree.map(lambda x: x / jnp.maximum(steps, 1), sums)
    counts = {"skipped": skipped, "skipped_in_a_row": in_a_row}
    return state, means | {name: x.astype(jnp.float32) for name, x in counts.items()}
