"""Exports a run's policy for other programs: a folder in Hugging Face's format, or an adapter for PEFT."""

import json
from collections.abc import Mapping
from pathlib import Path

from agentrl_jax.config import Config, ModelConfig, alone
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.models.actor_critic import plain_decoder
from agentrl_jax.models.io import peft_files, safetensors_files
from agentrl_jax.models.io.hf_config import PretrainedConfig
from agentrl_jax.models.io.hf_config_out import describe
from agentrl_jax.models.io.load import load_pretrained, name_on_hub, save_pretrained
from agentrl_jax.models.io.local_files import parse_json
from agentrl_jax.models.lora import on_all_layers
from agentrl_jax.rollout.engine_config import cache_length
from agentrl_jax.runs.run_folder import is_run, read_config
from agentrl_jax.setup import build_inputs
from agentrl_jax.setup.policy import RunPolicy, load_policy
from agentrl_jax.setup.run_chat import run_chat, run_opening
from agentrl_jax.setup.service_tasks import Services, batched_envs
from agentrl_jax.setup.stored_traits import stored_length
from agentrl_jax.text.chat_template_out import write_template

_GENERATION = "generation_config.json"


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
            files = _plain_generation(found.files)
            save_pretrained(target, found.params, found.config, files=files, dtype=dtype or "float32")
            return f"{folder}: {model}, {dtype or 'float32'}"
        config = read_config(model)
        if adapter and not config.model.lora.rank:
            raise UserError.at(model, "was trained without an adapter (model.lora.rank is 0); leave out --adapter")
        if adapter and dtype not in (None, "float32"):
            raise UserError.of("--dtype", dtype, "but an adapter is written in float32; leave out --dtype")
        policy = load_policy(model, config, checkpoint)
        files = tokenizer_files(config, policy)
        what = f"{folder}: policy of {model} after {policy.iteration} iterations"
        if adapter:
            _save_adapter(target, config.model, policy, files)
            return f"{what}, adapter of {config.model.pretrained}"
        described = policy.pretrained or _described(config, policy, Path(model))
        params = plain_decoder(policy.params, policy.model)
        save_pretrained(target, params, described, files=files, dtype=dtype or "float32")
        return f"{what}, {dtype or 'float32'}"


def _save_adapter(folder: Path, config: ModelConfig, policy: RunPolicy, files: Mapping[str, bytes]) -> None:
    assert policy.model.lora is not None
    base, revision = name_on_hub(config.pretrained, config.revision or None)
    peft_files.save_adapter(
        folder,
        on_all_layers(policy.params["policy"], policy.model.frozen_layers),
        policy.model.lora,
        policy.model.decoder,
        base_model=base,
        revision=revision,
        files=files,
    )


def _described(config: Config, policy: RunPolicy, run: Path) -> PretrainedConfig:
    """Configuration of a decoder trained from random weights, with positions for the run's contexts."""
    longest = 0 if config.tasks else max(stage.max_tokens for stage in config.data_stages)
    for own in (alone(config, index) for index in range(len(config.tasks))):
        engine = build_inputs.engine_config(own, policy.tokenizer, group_size=1, slots=0)
        if own.kinds[0].stored:
            longest = max(longest, stored_length(own, policy.tokenizer, engine, run))
            continue
        services = Services.of(own, Path)  # no service is started
        longest = max(longest, cache_length(batched_envs(own, policy.tokenizer, services)[0], engine))
    return describe(
        policy.model.decoder,
        max_positions=longest,
        eos_token_id=policy.tokenizer.end_of_turn_id,
        pad_token_id=policy.tokenizer.pad_id,
    )


def _plain_generation(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files, with token ids alone in `generation_config.json`.

    Policies are trained and evaluated without the base's penalties and truncations, which transformers and vLLM would
    apply to every request that leaves them out.
    """
    kept = dict(files)
    if _GENERATION in kept:
        values = parse_json(kept[_GENERATION], _GENERATION)
        ids = {key: values[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in values}
        kept[_GENERATION] = json.dumps(ids, indent=2).encode()
    return kept


def tokenizer_files(config: Config, policy: RunPolicy) -> dict[str, bytes]:
    """The files beside a policy's weights, by name: those of its tokenizer, and what they lack for other programs.

    A tokenizer without chat template gets one that writes the run's prompts.
    """
    tokenizer = policy.tokenizer
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokenizer.special_name(tokenizer.end_of_turn_id),
        "pad_token": tokenizer.special_name(tokenizer.pad_id),
    }
    files = {"tokenizer_config.json": json.dumps(settings, indent=2).encode(), **policy.files}
    if tokenizer.template is None:
        chat = run_chat(config, tokenizer)
        template = write_template(chat, opening=run_opening(config, chat), turns=config.agent.limit)
        files["chat_template.jinja"] = template.encode()
    return _plain_generation(files)
