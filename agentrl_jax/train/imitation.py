"""The imitation stage of a run: cross-entropy on demonstrations, chunk by chunk, with checkpoints."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agentrl_jax.errors import refusals
from agentrl_jax.learner.imitation import Examples, examples, packed_examples
from agentrl_jax.learner.state import TrainState
from agentrl_jax.setup import run_keys, start
from agentrl_jax.setup.parts import IMITATION_CHUNK, RunParts
from agentrl_jax.setup.programs import host_metrics
from agentrl_jax.train import guards
from agentrl_jax.train.progress import RunProgress


def imitate(
    state: TrainState, parts: RunParts, progress: RunProgress, between: Callable[[int, TrainState], None]
) -> TrainState:
    """Takes the remaining gradient steps; calls `between` with the step and the state after each chunk but the last.

    Raises:
        UserError: there are no demonstrations, or too many steps in a row were skipped.
    """
    config, view, chunks = parts.config.imitation, progress.view, parts.imitation_chunks
    program, found, counts = _prepare(int(state.imitation_step), parts, progress)
    rates = start.imitation_rates(parts.config)
    key = jax.random.fold_in(parts.key, run_keys.IMITATION)
    while (done := int(state.imitation_step)) < config.steps:
        began = time.monotonic()
        steps = min(IMITATION_CHUNK, config.steps - done)
        state, metrics = program(state, found, counts, key, jnp.int32(steps), *rates)
        metrics = host_metrics(metrics)
        step = done // IMITATION_CHUNK + 1
        progress.totals.skipped_updates += int(metrics["imitation/skipped"])
        progress.folder.log({"step": step, "stage": "imitation", **metrics, "time/step": time.monotonic() - began})
        view.note(f"imitation {int(state.imitation_step):>5}/{config.steps}  loss {metrics['imitation/loss']:.3f}")
        skipped = int(metrics["imitation/skipped_in_a_row"])
        guards.check_skipped(skipped, parts.config.train.max_bad_updates, "imitation.lr", progress.kept)
        if step % parts.config.train.checkpoint_every == 0 and step < chunks and not int(state.bad_updates):
            progress.save(step, state)
        if step < chunks:
            between(step, state)
    return state


def _prepare(done: int, parts: RunParts, progress: RunProgress) -> tuple[Any, Examples, jax.Array]:
    """Returns the program of the gradient steps, and the demonstrations, sharded by row, with their token counts."""
    config, view = parts.config.imitation, progress.view
    with refusals():
        rows, levels = start.demonstration_rows(
            *(parts.config, parts.train_env, parts.train_splits, parts.tokenizer, parts.services, parts.key),
            report=view.note,
        )
    view.note(f"{len(levels)} demonstrations, {config.plans} plans on {len(set(levels))} different levels")
    if not done:
        progress.folder.log_levels(0, "imitation", levels)
    found, batch = examples(rows), config.batch
    if parts.config.algo.packing:
        with refusals():
            found, batch = packed_examples(rows, batch, parts.programs.shards.count)
        view.note(f"{batch} bins of {found.tokens.shape[1]} tokens a step, about {config.batch} plans or turns")
    program = parts.programs.imitation(parts.model, parts.tx, batch=batch)
    return program, parts.programs.shard_rows(found), found.counts()
