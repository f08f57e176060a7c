"""The keys of a configuration: their types, a list of all of them, and the key that a wrong one may have meant."""

import difflib
import functools
import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from agentrl_jax.config.fields import OWN, Section
from agentrl_jax.config.presets import NAMES
from agentrl_jax.config.schema import Config
from agentrl_jax.errors import BadValue, shortened

_SYNONYMS = {
    "optim.lr": "learning_rate policy_lr actor_lr",
    "optim.critic_lr": "value_lr critic_learning_rate vf_lr",
    "optim.max_grad_norm": "grad_clip gradient_clip grad_clip_norm clip_grad max_norm",
    "optim.b1": "beta1 adam_beta1",
    "optim.b2": "beta2 adam_beta2",
    "tasks.0.groups": "train_batch_size batch_size num_groups prompts_per_batch",
    "tasks.0.env": "env_name env_id environment environments envs",
    "rollout.group_size": "num_generations n_samples rollout_n samples_per_prompt",
    "algo.preset": "algorithm algo_name adv_estimator rule",
    "algo.objective.clip_low": "clip_range cliprange clip_ratio clip_eps epsilon eps_clip clip_ratio_low",
    "algo.objective.clip_high": "clip_ratio_high epsilon_high",
    "algo.objective.tau_pos": "sapo_temperature_pos",
    "algo.objective.tau_neg": "sapo_temperature_neg",
    "algo.mismatch.high": "cap importance_cap tis_imp_ratio_cap",
    "algo.mismatch.reduction": "level importance_sampling_level",
    "algo.kl.sync_every": "ref_model_sync_steps ref_update_interval",
    "algo.kl.sync_mix": "ref_model_mixup_alpha",
    "optim.kind": "optimizer optimizer_name opt_type",
    "algo.kl.coef": "beta kl_beta init_kl_coef kl_loss_coef kl_penalty",
    "algo.entropy_coef": "ent_coef entropy_coeff entropy_bonus",
    "algo.advantage.lam": "lambda gae_lambda",
    "algo.epochs": "ppo_epochs num_epochs",
    "algo.grad_accum_steps": "gradient_accumulation_steps accumulation",
    "train.iterations": "total_steps max_steps num_steps total_training_steps num_iterations updates",
    "train.checkpoint_every": "save_freq save_steps save_every",
    "train.validate_every": "test_freq eval_steps eval_every",
    "prompt.max_turns": "max_turn rounds",
    "prompt.max_response_tokens": "max_new_tokens max_tokens max_completion_length max_response_length",
    "run_dir": "output_dir log_dir save_dir experiment_name",
    "model.pretrained": "model_name model_path model_name_or_path pretrained_model base_model",
    "model.embed_dim": "hidden_size d_model width",
    "model.layers": "num_layers n_layers num_hidden_layers",
    "model.heads": "num_heads n_heads num_attention_heads",
}
"""What other libraries call a key."""
_MEANT = {name: key for key, names in _SYNONYMS.items() for name in names.split()}
_FOR_VALUE = {
    "algo": "algo.preset",
    "env": "tasks.0.env",
    "model": "model.pretrained",
    "start": "start.run",
    "evaluation": "evaluation.episodes",
}
"""The key that was meant where a section is given a plain value."""


def for_value(key: str) -> str:
    """What to write where a plain value stands in place of the section at a key; empty if it is not known."""
    if key == "tasks" or key.startswith("tasks."):
        return "; write tasks: [{env: NAME}]"
    return f"; did you mean {_FOR_VALUE[key]}?" if key in _FOR_VALUE else ""


def sections_of(kind: Any) -> list[type[Section]]:
    """The section classes of a type: itself, or the members of a union."""
    kind = _plain(kind)
    parts = map(_plain, get_args(kind) or (kind,))
    return [part for part in parts if isinstance(part, type) and issubclass(part, Section)]


def _plain(kind: Any) -> Any:
    """A type without what it is annotated with."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def kind_of(part: type[Section]) -> str:
    """The kind of a section class of a union, or `fields.OWN`."""
    kind = part.model_fields["kind"].default
    return kind if isinstance(kind, str) else OWN


def takes_own(kind: Any) -> bool:
    """Whether a section may be a function of the user, whose parameters are keys too."""
    return any("kind" in part.model_fields and kind_of(part) == OWN for part in sections_of(kind))


def child_type(kind: Any, key: str) -> Any:
    """The type of the value at a key of a section, list or mapping; None if there is no such key."""
    if get_origin(kind) in (tuple, dict):
        return get_args(kind)[0 if get_origin(kind) is tuple else 1]
    found = [part.model_fields[key].annotation for part in sections_of(kind) if key in part.model_fields]
    if len(found) > 1 and all(get_origin(each) is Literal for each in found):
        return Literal[tuple(name for each in found for name in get_args(each))]
    return found[0] if found else None


def every_key(kind: Any = Config, prefix: str = "") -> Iterator[str]:
    """Dotted keys of all sections and values, for all kinds, but not inside lists and mappings."""
    for name in dict.fromkeys(name for part in sections_of(kind) for name in part.model_fields):
        yield prefix + name
        below = child_type(kind, name)
        if get_origin(below) not in (tuple, dict):
            yield from every_key(below, f"{prefix}{name}.")


def unknown_key(path: Sequence[Any], value: Any = None, kind: Any = None) -> BadValue:
    """The refusal of an unknown key, with the key that may have been meant: a sibling, or one elsewhere.

    `value` is the value at the key, and `kind` the kind of its section, if sections there have kinds.
    """
    *above, key = map(str, path)
    prefix, parts = ".".join(above), sections_of(functools.reduce(child_type, above, Config))
    if kind and len(parts) > 1:
        kinds = {kind_of(part): part for part in parts}
        others = [name for name, part in kinds.items() if key in part.model_fields]
        if others:
            why = f"which {prefix}.kind {kind} does not have; leave it out, or use kind {' or '.join(others)}"
            return BadValue.of(f"{prefix}.{key}", value, why)
        parts = [kinds[kind]]
    siblings = list(dict.fromkeys(name for part in parts for name in part.model_fields))
    by_name = {each.rpartition(".")[2]: each for each in every_key()}
    meant = [each for each in every_key() if key in (each.rpartition(".")[2], "_".join(each.split(".")[-2:]))]
    synonym = key.lower().replace("-", "_")
    meant = meant or ([_MEANT[synonym]] if synonym in _MEANT else [])
    meant = meant or [".".join((*above, name)) for name in difflib.get_close_matches(key, siblings, n=1)]
    if siblings and not meant:
        meant = [by_name[name] for name in difflib.get_close_matches(key, by_name, n=1)]
    hint = f"known keys here: {', '.join(siblings)}" if siblings else "there are no keys below this one"
    if meant:
        hint = f"did you mean {' or '.join(meant)}?"
    name = shortened(".".join(map(str, path)))
    return BadValue(f"unknown key {name}; {hint}", key=name)


def listing(config: Config) -> str:
    """Every key with its value and help text; of a section with kinds, those of the other kinds follow."""
    return "\n".join(_lines(config, ""))


def _lines(section: Section, prefix: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        if name in FILLED and "kind" in type(section).model_fields:
            continue
        value, key = getattr(section, name), prefix + name
        text = " ".join((field.description or type(value).__doc__ or "").split())
        if isinstance(value, Section):
            yield f"\n{key}: {text}"
            kinds = sections_of(field.annotation)
            if len(kinds) > 1:
                meanings = (f"{kind_of(each)}: {(each.__doc__ or '').strip()}" for each in kinds)
                yield from _entry(f"{key}.kind", value.kind, " ".join(meanings))  # type: ignore[attr-defined]
            yield from _lines(value, f"{key}.")
            for other in (each for each in kinds if not isinstance(value, each)):
                own = ", ".join(f"{n} {_shown(f.default)}" for n, f in other.model_fields.items() if n not in FILLED)
                if own:
                    yield from _wrapped(f"(kind {kind_of(other)} has {own})", 2)
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            yield f"\n{key}: {text}"
            for index, each in enumerate(value):
                yield from _lines(each, f"{key}.{index}.")
        else:
            choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            choices = NAMES if key == "algo.preset" else choices
            yield from _entry(key, value, f"{text} ({', '.join(choices)})" if choices else text)


FILLED = ("kind", "needs", "numbers", "static", "source", "unit")
"""Keys of an own kind that are filled in, and the kind itself."""


def _entry(key: str, value: Any, text: str) -> Iterator[str]:
    yield f"  --{key} {_shown(value)}"
    yield from _wrapped(text, 6)


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=" " * indent, subsequent_indent=" " * indent)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value or "''"
    return "none" if value is None else json.dumps(value, default=Section.model_dump)
