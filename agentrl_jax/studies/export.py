"""Exports a run's policy for other programs: a folder in Hugging Face's format, or an adapter for PEFT."""

import json
from collections.abc import Mapping
from pathlib import Path

from agentrl_jax.config import Config, ModelConfig
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.models.actor_critic import plain_decoder
from agentrl_jax.models.io import peft_files, safetensors_files
from agentrl_jax.models.io.hf_config import PretrainedConfig
from agentrl_jax.models.io.hf_config_out import describe
from agentrl_jax.models.io.load import load_pretrained, save_pretrained
from agentrl_jax.models.lora import on_all_layers
from agentrl_jax.rollout.engine_config import cache_length
from agentrl_jax.runs.run_folder import is_run, read_config
from agentrl_jax.setup import build
from agentrl_jax.setup.policy import RunPolicy, load_policy
from agentrl_jax.setup.service_tasks import Services, batched_envs


def export(
    model: str | Path,
    folder: str | Path,
    *,
    checkpoint: str = "last",
    adapter: bool = False,
    dtype: str | None = None,
    online: bool = False,
    revision: str | None = None,
) -> str:
    """Writes the policy of a run's checkpoint, or a pretrained model, with its tokenizer and chat template.

    `model` is the folder of a run, or a pretrained model that `load_pretrained` takes with `online` and `revision`,
    which for a run come from its configuration. The folder is written atomically. With `adapter`, only the adapter of a
    run is written, in float32; otherwise it is merged into the weights, in float32, and stored as `dtype`: float32
    (also for None), bfloat16 or float16. Returns a description of what was written.

    Raises:
        UserError: the folder is not empty, or there is nothing of this kind to write.
    """
    target = Path(folder)
    with refusals():
        safetensors_files.refuse_nonempty(target)
        if not is_run(model):
            if adapter or checkpoint != "last":
                missing = "adapter" if adapter else "checkpoint"
                raise UserError.at(model, f"is no run, so that it has no {missing}; give the folder of a run", missing)
            found = load_pretrained(model, online=online, revision=revision)
            save_pretrained(target, found.params, found.config, files=found.files, dtype=dtype or "float32")
            return f"{folder}: {model}, {dtype or 'float32'}"
        config = read_config(model)
        if adapter and not config.model.lora.rank:
            raise UserError.at(model, "was trained without an adapter (model.lora.rank is 0); leave out --adapter")
        if adapter and dtype not in (None, "float32"):
            raise UserError.of("--dtype", dtype, "but an adapter is written in float32; leave out --dtype")
        policy = load_policy(model, config, checkpoint)
        files = _tokenizer_files(policy)
        what = f"{folder}: policy of {model} after {policy.iteration} iterations"
        if adapter:
            _save_adapter(target, config.model, policy, files)
            return f"{what}, adapter of {config.model.pretrained}"
        described = policy.pretrained or _described(config, policy)
        params = plain_decoder(policy.params, policy.model)
        save_pretrained(target, params, described, files=files, dtype=dtype or "float32")
        return f"{what}, {dtype or 'float32'}"


def _save_adapter(folder: Path, config: ModelConfig, policy: RunPolicy, files: Mapping[str, bytes]) -> None:
    assert policy.model.lora is not None
    base = config.pretrained
    peft_files.save_adapter(
        folder,
        on_all_layers(policy.params["policy"], policy.model.frozen_layers),
        policy.model.lora,
        policy.model.decoder,
        base_model=str(Path(base).absolute()) if Path(base).exists() else base,
        revision=config.revision or None,
        files=files,
    )


def _described(config: Config, policy: RunPolicy) -> PretrainedConfig:
    """Configuration of a decoder trained from random weights, with positions for the run's contexts."""
    services = Services(config, Path) if config.served else None  # no service is started
    batched_env = batched_envs(config, policy.tokenizer, services)[0]
    longest = cache_length(batched_env, build.engine_config(config, policy.tokenizer, group_size=1, slots=0))
    return describe(
        policy.model.decoder,
        max_positions=longest,
        eos_token_id=policy.tokenizer.end_of_turn_id,
        pad_token_id=policy.tokenizer.pad_id,
    )


def _tokenizer_files(policy: RunPolicy) -> dict[str, bytes]:
    """The tokenizer's files, and the one that transformers needs if there is only a `tokenizer.json`."""
    tokenizer = policy.tokenizer
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokenizer.special_name(tokenizer.end_of_turn_id),
        "pad_token": tokenizer.special_name(tokenizer.pad_id),
    }
    return {"tokenizer_config.json": json.dumps(settings, indent=2).encode(), **policy.files}
