"""The gradient of a loss over rows: the one way in which every stage of a run learns.

Shapes: `N` rows of `S` tokens with `K` positions whose tokens may be trained, in units of `U` contiguous rows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.algos import kl
from agentrl_jax.errors import BadValue
from agentrl_jax.learner import bins as binning
from agentrl_jax.learner.state import TrainState
from agentrl_jax.models import actor_critic
from agentrl_jax.models.actor_critic import ActorCritic, TokenScores
from agentrl_jax.parallel.shards import Shards

Numbers = dict[str, Float[Array, ""]]


class Rows(Protocol):
    """What a gradient needs of rows, a pytree with leaves [N, ...]; a loss may read more."""

    tokens: Int[Array, "N S"]
    position: Int[Array, "N K"]
    """Index in `tokens`, at least 1."""
    mask: Bool[Array, "N K"]
    """The token at this position is trained."""

    @property
    def temperature(self) -> Float[Array, " N"]:
        """By which the logits are divided."""
        ...

    @property
    def segment(self) -> Int[Array, "N S"] | None:
        """Tokens with different numbers do not see each other; None: a row is one context."""
        ...


class TeacherRows(struct.PyTreeNode):
    """What a teacher reads instead of the rows of its student: the same responses after other prompts."""

    tokens: Int[Array, "N S'"]
    """At most S' - S more than in the row of the student."""
    position: Int[Array, "N K"]
    """Index in `tokens` of each response position."""
    mask: Bool[Array, "N K"]
    """The teacher judges the token, if it was sampled."""


@dataclasses.dataclass(frozen=True)
class Teaching:
    """Who scores the tokens as a teacher, see `actor_critic.Teacher`. Its rows are `teacher` of the batch.

    Attributes:
        policy: the student's parameters, their moving average (`TrainState.teacher`), or the reference policy.
        full_divergence: whether the scores have the divergence from the teacher over the whole vocabulary.
        shared_prefix_len: leading tokens that the teacher's rows have in common.
    """

    policy: Literal["current", "ema", "reference"]
    full_divergence: bool
    shared_prefix_len: int


Loss = Callable[[TokenScores, Any], tuple[Float[Array, ""], tuple[Numbers, Numbers]]]
"""(scores of rows, the rows) -> their share of the loss, and for the metrics sums and maxima over their tokens."""


@dataclasses.dataclass(frozen=True)
class StepShape:
    """How a step is computed. It changes rounding alone.

    Attributes:
        microbatches: of a step, one after the other.
        buckets: lengths to which a microbatch may be cut, so many of them and equally far apart.
        packing: a microbatch has bins instead of rows.
        unit: contiguous rows that stay together in every microbatch and on one device; their loss may compare them.
    """

    microbatches: int = 1
    buckets: int = 1
    packing: bool = False
    unit: int = 1

    def __post_init__(self) -> None:
        if self.packing and self.unit > 1:
            raise BadValue.of("algo.packing", True, f"but bins would part units of {self.unit} rows; use false")

    def rows_of(self, units: Int[Array, " n"], shards: Shards) -> Int[Array, " rows"]:
        """The numbers of the rows of units, in an order in which `Shards.fetch_rows` parts no unit."""
        rows = units.reshape(-1, 1, shards.count) * self.unit + jnp.arange(self.unit)[:, None]
        return rows.reshape(-1)


def gradient(
    state: TrainState,
    batch: Any,
    units: Int[Array, " n"],
    lengths: Int[Array, " n"],
    loss: Loss,
    shape: StepShape,
    *,
    tokens: Float[Array, ""],
    model: ActorCritic,
    shards: Shards,
    full_divergence: bool = False,
    teaching: Teaching | None = None,
) -> tuple[Float[Array, ""], Any, Numbers]:
    """Loss, gradient and metrics of a step over the `units` of a batch, which is like `Rows`.

    Each microbatch is fetched from the devices that hold its rows. The denominators in `loss` are those of the whole
    step, so neither microbatches nor devices change the result. A microbatch is cut to the shortest bucket that fits
    its rows on all devices, and skipped if it has no trained tokens. With `shape.packing`, every device gathers the
    rows of the step.

    `lengths` has the longest row of each unit, 0 where none has a token to train. `tokens` is the number of trained
    tokens, by which the sums of the metrics are divided. With `full_divergence` the scores have `distance`, over all
    tokens that might have been sampled, to the reference policy of the state. With `teaching` they have those of a
    teacher, too.
    """
    size = batch.tokens.shape[1]
    rows = packed = None
    number = units
    if shape.packing:
        rows = shards.gather_rows(batch, units)
        bins = binning.assign(lengths, size)
        packed = binning.fill(bins, rows.tokens, rows.position, rows.mask, rows.temperature)
        number, lengths = packed.number, jnp.where(jnp.any(packed.mask, axis=1), size, 0)

    def fetch(part):
        if packed is None:
            return shards.fetch_rows(batch, shape.rows_of(part, shards))
        return shards.shard_rows(jax.tree.map(lambda x: x[part], packed))

    stored = state.params, state.frozen_params, state.reference, state.teacher
    varying, frozen_params, reference, average = shards.varying(stored)
    frozen = state.replace(frozen_params=frozen_params)
    compared = (reference, kl.full) if full_divergence else None

    def teacher_of(part):
        if teaching is None:
            return None
        policy = {"current": None, "ema": average, "reference": reference}[teaching.policy]
        tokens, position = (None, None) if part.teacher is None else (part.teacher.tokens, part.teacher.position)
        measure = kl.full if teaching.full_divergence else None
        return actor_critic.Teacher(policy, tokens, position, teaching.shared_prefix_len, measure)

    def loss_of(params, part):
        arrays = (part.tokens, part.position, part.temperature)
        scores = actor_critic.score_tokens(
            frozen.merged_params(params), model, *arrays, compared, part.mask, part.segment, teacher_of(part)
        )
        if rows is None:
            return loss(scores, part)
        scores = binning.unpack(bins, part, scores, rows.position)
        # The rows are the same on all devices, but the scores are those of each device's bins.
        here = rows.replace(mask=rows.mask & binning.are_in(bins, part)[:, None])
        return loss(scores, here)

    def gradient_of(part):
        (share, (sums, peaks)), grads = jax.value_and_grad(loss_of, has_aux=True)(varying, part)
        return (share, grads, sums), peaks

    def up_to(length):
        def cut(number):
            part = fetch(number)
            if teaching is not None and part.teacher is not None:
                longest = length + part.teacher.tokens.shape[1] - size
                part = part.replace(teacher=part.teacher.replace(tokens=part.teacher.tokens[:, :longest]))
            return gradient_of(part.replace(tokens=part.tokens[:, :length]))

        return cut

    microbatches = number.reshape(shape.microbatches, -1)
    shapes = jax.eval_shape(up_to(size), microbatches[0])
    (share, grads, sums), peaks = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    share, sums, peaks = shards.varying_rows((share, sums, peaks))
    zeros = (share, shards.varying(grads), sums), peaks

    cuts = [max(-(-size * step // shape.buckets), model.shared_prefix_len + 1) for step in range(1, shape.buckets + 1)]
    branches = [lambda _: zeros, *map(up_to, cuts)]

    def accumulate(total, microbatch):
        part, longest = microbatch
        sums, peaks = jax.lax.switch(jnp.sum(longest > jnp.array([0, *cuts[:-1]])), branches, part)
        return (jax.tree.map(jnp.add, total[0], sums), jax.tree.map(jnp.maximum, total[1], peaks)), None

    longest = jnp.max(lengths.reshape(shape.microbatches, -1), axis=1)
    (added, peaks), _ = jax.lax.scan(accumulate, zeros, (microbatches, longest))
    total, grads, sums = added
    total, sums = shards.sum((total, sums))
    grads = shards.sum_of_gradients(grads, state.params)
    metrics = {name: x / jnp.maximum(tokens, 1.0) for name, x in sums.items()} | shards.largest(peaks)
    return total, grads, metrics
