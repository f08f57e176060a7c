"""Loads the policy of a run from one of its checkpoints, with everything needed to use it elsewhere."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from agentrl_jax.config import Config
from agentrl_jax.errors import UserError, shortened
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.models.io.hf_config import PretrainedConfig
from agentrl_jax.runs.checkpoint import Checkpoints, incomplete_steps
from agentrl_jax.runs.config_history import ConfigHistory, edited_keys, read_history
from agentrl_jax.runs.records import read_rows
from agentrl_jax.setup import build_model
from agentrl_jax.terminal import to_stderr
from agentrl_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class RunPolicy:
    """The policy of a run, and the iteration of its checkpoint."""

    iteration: int
    step: int
    """Step of the checkpoint, which also counts chunks of imitation."""
    model: ActorCritic
    params: dict[str, Any] = dataclasses.field(repr=False)
    """As `TrainState.merged_params` returns them."""
    tokenizer: Tokenizer
    files: Mapping[str, bytes] = dataclasses.field(repr=False)
    """The files that the tokenizer was loaded from, by name."""
    pretrained: PretrainedConfig | None
    """Configuration of the model that the run started from; None for a freshly initialized one."""


def load_policy(run: str | os.PathLike[str], config: Config, checkpoint: str = "last") -> RunPolicy:
    """Loads a checkpoint from the folder of a run, and the pretrained model that it is based on.

    `checkpoint` is last, best (the highest success in validation) or the step of a checkpoint. With
    `optim.average_rate` the policy is its moving average, from the first iteration on.

    Raises:
        UserError: there is no such checkpoint, it cannot be read, or has parameters that are not finite.
        ValueError: the pretrained model or the tokenizer cannot be used.
        OSError: the tokenizer no longer exists.
    """
    pretrained = build_model.load_model(config.model)
    files = build_model.tokenizer_files(config.model, pretrained)
    tokenizer = build_model.load_tokenizer(config.model, pretrained)
    model = build_model.build_model(config, tokenizer, pretrained)
    folder = Path(run) / "checkpoints"
    if not folder.is_dir():
        raise _without_checkpoint(run)
    start = build_model.initial_state(config, model, pretrained)
    like = jax.eval_shape(start, jax.random.key(0))
    with Checkpoints(folder, keep=None) as checkpoints:
        if not checkpoints.steps():
            raise _without_checkpoint(run)
        step = chosen_step(checkpoints, checkpoint, config.rows_before_rl)
        if step in checkpoints.without_digests:
            to_stderr(f"{run}: checkpoint {step} is of an earlier version, without digests: damage is not noticed")
        elif checkpoint == "last" and (newer := [other for other in incomplete_steps(folder) if other > step]):
            shown = f"checkpoint {newer[-1]} is incomplete: it is being written, or was not copied as a whole"
            to_stderr(f"{run}: {shown}; that of step {step} is used")
        history = ConfigHistory(config, read_history(Path(run)))
        for key, before, now in edited_keys(checkpoints.meta(step).get("config"), history.at(step)):
            to_stderr(f"{run}: config.yaml was edited by hand: {key} is {now}, but {before} in checkpoint {step}")
        # What else a state has is not the policy's, and may be that of an earlier version.
        wanted = {"params": like.params}
        if like.average is not None and step > config.rows_before_rl:  # before, nothing is averaged
            wanted["average"] = like.average
        read = checkpoints.restore_part(step, wanted)
    state = like.replace(average=None).replace(**read)
    if like.frozen_params is not None:
        state = state.replace(frozen_params=start(jax.random.key(0)).frozen_params)
    params = jax.tree.map(jnp.asarray, state.merged_params(state.evaluated))
    started_from = pretrained.config if pretrained else None
    return RunPolicy(max(step - config.rows_before_rl, 0), step, model, params, tokenizer, files, started_from)


def _without_checkpoint(run: str | os.PathLike[str]) -> UserError:
    learned = [row for _, row in read_rows(Path(run) / "metrics.jsonl").rows if row["stage"] == "rl"]
    if not learned:
        return UserError.at(run, "holds no checkpoint yet; let `agentrl train` reach its first one")
    return UserError.at(
        run,
        f"holds {len(learned)} iterations in metrics.jsonl but no complete checkpoint in checkpoints; put the "
        "checkpoints back, or train another run",
        len(learned),
    )


def chosen_step(checkpoints: Checkpoints, name: str, chunks: int) -> int:
    """Step of a checkpoint by its name, see `load_policy`; the first `chunks` steps are imitation."""
    steps = {str(step): step for step in checkpoints.steps()}
    named = {"last": checkpoints.latest_step(), "best": checkpoints.best_step()} | steps
    step = named.get(name)
    if step is None:
        expected = [known for known in ("last", "best") if named[known] is not None]
        expected += [_with_iteration(known, chunks) for known in steps.values()]
        why = ", because no checkpoint was validated (train.validate_every)" if name == "best" else ""
        raise UserError.at(
            checkpoints.path,
            f"there is no checkpoint {shortened(name)}{why}; expected one of {', '.join(expected)}",
            name,
        )
    return step


def _with_iteration(step: int, chunks: int) -> str:
    """A step, with its iteration where the two differ."""
    if not chunks:
        return str(step)
    return f"{step} ({f'iteration {step - chunks}' if step >= chunks else 'imitation'})"
