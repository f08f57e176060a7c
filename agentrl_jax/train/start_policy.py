"""Starts a run from a checkpoint of another run."""

import hashlib
from pathlib import Path
from typing import Any

import jax

from agentrl_jax.config import Config
from agentrl_jax.errors import UserError
from agentrl_jax.learner.state import TrainState
from agentrl_jax.parallel import hosts
from agentrl_jax.runs import digests
from agentrl_jax.runs.checkpoint import CheckpointError, Checkpoints
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.setup import build_model
from agentrl_jax.setup.policy import chosen_step


def start_from(config: Config, state: TrainState) -> tuple[TrainState, dict[str, Any], dict[str, Any]]:
    """Puts the policy of `config.start` into a fresh state; with `optimizer` also critic, optimizer and KL coefficient.

    Returns the state, a record of the checkpoint (`run`, `step`, and `digest`, the SHA-256 of its list of digests), and
    what it stores besides, see `Checkpoints.meta`.

    Raises:
        UserError: there is no such run or checkpoint, or its parameters are of another model.
    """
    start, run = config.start, Path(config.start.run)
    source = read_config(run)
    _check_base(config, source)
    wanted: dict[str, Any] = {"params": {"policy": state.params["policy"]}}
    if start.optimizer:
        wanted = {"params": state.params, "opt_state": state.opt_state, "kl": state.kl}
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), wanted)
    with Checkpoints(run / "checkpoints", keep=None) as checkpoints:
        step = chosen_step(checkpoints, start.checkpoint, source.rows_before_rl)
        try:
            read = checkpoints.restore_part(step, like)
            meta = hosts.from_writer(lambda: checkpoints.meta(step))
        except CheckpointError as error:
            raise UserError.of(
                "start.run",
                start.run,
                f"whose checkpoint {step} this run cannot start from ({error}); start from a run with the same model"
                f"{', critic, optimizer and learning rule' if start.optimizer else ''}, or export it (agentrl export) "
                "and name the folder as model.pretrained",
            ) from error
    file = run / "checkpoints" / str(step) / digests.FILE
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None
    state = state.replace(**{**read, "params": {**state.params, **read["params"]}})
    return state, {"run": str(run), "step": step, "digest": digest}, meta


def _check_base(config: Config, source: Config) -> None:
    """Refuses parameters that mean something else here: those of other tokens, or adapters of another model."""
    here, there = config.model, source.model
    for name in ("pretrained", "revision", "frozen_layers", "lora"):
        ours, theirs = getattr(here, name), getattr(there, name)
        if ours != theirs and (name in ("lora", "frozen_layers") or here.lora.rank or here.frozen_layers):
            why = (
                f"but that of {config.start.run} is {theirs}: only trained parameters are in a checkpoint; use the same"
            )
            raise UserError.of(f"model.{name}", ours, why)
    if here.pretrained or there.pretrained:
        same = here.pretrained == there.pretrained
    else:
        same = build_model.tokenizer_files(here) == build_model.tokenizer_files(there)
    if not same:
        why = f"whose tokenizer may be another than this run's ({there.pretrained or there.tokenizer or 'the default'})"
        raise UserError.of("start.run", config.start.run, f"{why}; use the same model.pretrained and model.tokenizer")
