"""The imitation stage of a run: cross-entropy on demonstrations, chunk by chunk, with checkpoints."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agentrl_jax.config.imitation import IMITATION_CHUNK
from agentrl_jax.errors import refusals
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.learner.imitation import Examples, prepare_examples
from agentrl_jax.learner.state import TrainState
from agentrl_jax.rollout.packing import Sequences
from agentrl_jax.rollout.trajectory import level_ids
from agentrl_jax.setup import run_keys, start
from agentrl_jax.setup.parts import RunParts
from agentrl_jax.setup.programs import host_metrics
from agentrl_jax.stopping import ending_at_once
from agentrl_jax.train import guards
from agentrl_jax.train.dagger import Dagger
from agentrl_jax.train.progress import RunProgress


def imitate(
    state: TrainState,
    parts: RunParts,
    held_out: HeldOut,
    progress: RunProgress,
    between: Callable[[int, TrainState], None],
) -> TrainState:
    """Takes the remaining gradient steps; calls `between` with the step and the state before the search for plans,
    after each chunk but the last, and again in and after a round of DAgger.

    Raises:
        UserError: there are no demonstrations, those of an earlier round are gone, or too many steps in a row were
            skipped.
    """
    config, view = parts.config.imitation, progress.view
    dagger = Dagger(parts, held_out, progress.folder.path, view.note)
    between(int(state.imitation_step) // IMITATION_CHUNK, state)
    with ending_at_once():
        rows = _demonstrations(int(state.imitation_step), parts, progress)
    program, found, counts = None, None, None
    rates, rounds = start.imitation_rates(parts.config), 0
    key = jax.random.fold_in(parts.key, run_keys.IMITATION)
    while (done := int(state.imitation_step)) < config.steps:
        chunk = done // IMITATION_CHUNK
        of_round: dict[str, float] = {}
        while rounds < dagger.due(chunk):
            rounds += 1
            asked = functools.partial(between, chunk, state)
            more, played, measured = dagger.demonstrations(rounds, chunk, state.merged_params(), asked)
            progress.midway.add(played)
            rows, program = jax.tree.map(lambda *x: jnp.concatenate(x), rows, more), None
            if dagger.first_chunk(rounds) == chunk:  # not of a round before the checkpoint that a run goes on from
                progress.folder.log_levels(chunk + 1, "imitation", level_ids(played))
                of_round = measured
                between(chunk, state)  # a round takes minutes, and its file is kept
        if program is None:
            program, found, counts = _prepare(rows, parts, progress)
        began = time.monotonic()
        steps = min(IMITATION_CHUNK, config.steps - done)
        state, metrics = program(state, found, counts, key, jnp.int32(steps), *rates)
        metrics = host_metrics(metrics) | of_round
        step = chunk + 1
        progress.totals.skipped_updates += int(metrics["imitation/skipped"])
        progress.folder.log({"step": step, "stage": "imitation", **metrics, "time/step": time.monotonic() - began})
        view.note(f"imitation {int(state.imitation_step):>5}/{config.steps}  loss {metrics['imitation/loss']:.3f}")
        skipped = int(metrics["imitation/skipped_in_a_row"])
        guards.check_skipped(skipped, parts.config.train.max_bad_updates, "imitation.lr", progress.kept)
        if step % parts.config.train.checkpoint_every == 0 and step < config.chunks and not int(state.bad_updates):
            progress.save(step, state)
        if step < config.chunks:
            between(step, state)
    return state


def _demonstrations(done: int, parts: RunParts, progress: RunProgress) -> Sequences:
    """Returns the rows of the demonstrations from before the first step."""
    config, view = parts.config.imitation, progress.view
    with refusals():
        rows, played = start.demonstration_rows(
            *(parts.config, parts.train_env, parts.train_splits, parts.tokenizer, parts.services, parts.key),
            report=view.note,
        )
    levels = level_ids(played)
    progress.midway.add(played)
    view.note(f"{len(levels)} demonstrations, {config.plans} plans on {len(set(levels))} different levels")
    if not done:
        progress.folder.log_levels_once(0, "imitation", levels)
    return rows


def _prepare(rows: Sequences, parts: RunParts, progress: RunProgress) -> tuple[Any, Examples, jax.Array]:
    """Returns the program of the gradient steps, and the demonstrations, sharded by row, with their token counts."""
    config = parts.config.imitation
    packing = parts.config.algo.packing
    with refusals():
        found, batch = prepare_examples(rows, config.batch, packing=packing)
    if packing:
        size = found.tokens.shape[1]
        progress.view.note(f"{batch} bins of {size} tokens a step, about {config.batch} plans or turns")
    program = parts.programs.imitation(parts.model, parts.tx, batch=batch)
    return program, parts.programs.shard_rows(found), found.counts()
