"""Checks across several sections of a configuration; what a section can check alone is checked in its class.

Each private check yields the key and the value of what it refuses, and why.
"""

import os
from collections.abc import Iterator
from typing import Any

from agentrl_jax.config.algo import AlgoConfig
from agentrl_jax.config.distillation_checks import check_hints, check_teacher
from agentrl_jax.config.fields import is_own
from agentrl_jax.config.filters import FractionFilter, TopKFilter
from agentrl_jax.config.imitation import IMITATION_CHUNK
from agentrl_jax.config.objective_checks import check_objective
from agentrl_jax.config.optim_checks import check_optimizer
from agentrl_jax.config.reward_checks import check_normalized, check_rewards
from agentrl_jax.config.schedule_checks import check_schedules
from agentrl_jax.config.schema import Config, ModelConfig, PromptConfig, ServiceConfig, StartConfig
from agentrl_jax.config.stage_checks import check_stages, check_without_tasks
from agentrl_jax.config.task_checks import check_tasks
from agentrl_jax.environments.kinds import titles
from agentrl_jax.errors import MAX_FOREIGN, UserError, shortened, shown

_SHAPE = ("layers", "embed_dim", "heads", "kv_heads", "mlp_width", "rope_theta", "norm_eps", "tied_embeddings")
"""Keys of `model` that a pretrained model determines, with the tokenizer."""

Refused = tuple[str, Any, str]

MAX_CONTEXT = 1 << 20  # sampled tokens of one episode
MAX_EPISODES = 1 << 18  # played or imitated at once; each takes a row of the cache, even with short responses
MAX_TOKENS = 1 << 28  # sampled tokens of a batch; DAPO's (512 groups of 16 responses of 20,480 tokens) have 0.63 of it
MAX_PARAMETERS = 1 << 40  # of a new decoder; the largest published ones have fewer
MAX_CACHED = 1 << 43  # numbers in the KV cache of a rollout of a new decoder
MAX_RANK = 1 << 14  # of an adapter


def validate(config: Config, *, files: bool = True) -> None:
    """Checks combinations of fields; with `files` also that the level files exist.

    Raises:
        UserError: names the keys, their values and what is allowed.
    """
    check_sizes(config)
    if config.has_new_kinds:  # what they need is known when they are imported, see `setup.own_rules`
        return
    rules = check_teacher, check_hints, _rule, check_objective, check_rewards, check_normalized, check_schedules
    everywhere = check_stages, check_optimizer
    played = check_tasks, _environments, _model, _start, _rollout, *rules, *everywhere, _training
    unplayed = check_without_tasks, _model, _start, *everywhere
    for check in (*(played if config.tasks else unplayed), _devices, _hosts):
        for key, value, why in check(config):
            raise UserError.of(key, value, shortened(why, MAX_FOREIGN))  # may quote a text of any length
    for index, task in enumerate(config.tasks if files else ()):
        if task.levels and not os.path.isfile(task.levels):
            why = (
                "but there is no such file; give a level pack (.npy) or a text file, relative to the working directory"
            )
            raise UserError.of(f"tasks.{index}.levels", task.levels, why)


def check_sizes(config: Config) -> None:
    """Refuses sizes whose arrays would overflow 32-bit indices or any machine's memory.

    Raises:
        UserError: names the keys, their product and the limit.
    """
    prompt, rollout, model = config.prompt, config.rollout, config.model
    episodes, context = config.groups * rollout.group_size, prompt.max_turns * prompt.max_response_tokens
    of_context = "prompt.max_turns x prompt.max_response_tokens"
    batches = {
        "groups x rollout.group_size": episodes,
        "train.validation_episodes": config.train.validation_episodes,
        "imitation.batch": config.imitation.batch,
    }
    sizes = [(context, MAX_CONTEXT, of_context, "tokens")]
    sizes += [(number, MAX_EPISODES, keys, "episodes") for keys, number in batches.items()]
    batches["evaluation.episodes"] = config.evaluation.episodes  # played in several batches
    sizes += [(number * context, MAX_TOKENS, f"{keys} x {of_context}", "tokens") for keys, number in batches.items()]
    sizes.append((model.lora.rank, MAX_RANK, "model.lora.rank", "columns"))
    if not model.pretrained:
        layer = model.embed_dim * (2 * model.embed_dim + 3 * model.mlp_width)
        keys = "model.layers x model.embed_dim x (2 x model.embed_dim + 3 x model.mlp_width)"
        sizes.append((model.layers * layer, MAX_PARAMETERS, keys, "parameters"))
        response = prompt.max_response_tokens * config.agent.visible(prompt.max_turns)
        cached = (rollout.slots or episodes) * (rollout.context_tokens or response) * model.layers * 2
        cached *= model.kv_heads * (model.embed_dim // model.heads)
        keys = "rows x tokens x model.layers x 2 x model.kv_heads x (model.embed_dim / model.heads)"
        sizes.append((cached, MAX_CACHED, keys, "cached numbers"))
    for number, limit, keys, unit in sizes:
        if number > limit:
            raise UserError.of(keys, number, f"expected at most {limit} {unit}; lower one of these keys")


def _environments(config: Config) -> Iterator[Refused]:
    kinds, prompt, env, every = config.kinds, config.prompt, config.env, config.train.validate_every
    found = f"the tasks are {titles(kinds)}"
    tasks_are, unread_why = f"but {found}", f"which nothing reads, because {found}; leave it out"
    compiled, answers = not all(kind.on_host for kind in kinds), any(kind.has_answer_block for kind in kinds)
    if prompt.has_answer_block != answers:
        yield "prompt.style", prompt.style, f"{tasks_are}; use {'compact or ragen' if answers else 'chat or bare'}"
    for index, (task, kind) in enumerate(zip(config.tasks, kinds)):
        key = f"tasks.{index}"
        for name in ("items", "held_out", "validation", "levels", "options"):
            value = getattr(task, name)
            if value and name not in kind.takes:
                instead = "use items and held_out" if "items" in kind.takes else "leave it out"
                yield f"{key}.{name}", value, f"which {kind.title} do not have; {instead}"
            if kind.needs_items and not value and name in ("items", "held_out"):
                yield f"{key}.{name}", value, f"expected items of {task.env}, e.g. 0-99, or an item file"
        listed = bool(task.items)
        if listed != bool(task.held_out):
            yield f"{key}.held_out", task.held_out, f"but {key}.items is {shown(task.items)}; set both or neither"
        if (listed or task.validation) and bool(task.validation) != (every > 0):
            yield f"{key}.validation", task.validation, f"but train.validate_every is {every}; set both or neither"
    unread = [name for name in ServiceConfig.model_fields if not any(name in kind.reads for kind in kinds)]
    for name in unread:
        if (value := getattr(env, name)) != getattr(ServiceConfig(), name):
            yield f"env.{name}", value, unread_why
    if env.token_file and env.url in ("", "local"):
        yield "env.token_file", env.token_file, f"but env.url is {env.url!r}; give the address of its server"
    if not compiled and prompt.observation_tokens:
        why = f"{tasks_are}, which read env.observation_tokens; leave it out"
        yield "prompt.observation_tokens", prompt.observation_tokens, why
    if not compiled and prompt.encoder != "pieces":
        yield "prompt.encoder", prompt.encoder, f"{tasks_are}, whose texts are tokenized as one text; use pieces"
    if not prompt.has_answer_block and prompt.separator != PromptConfig().separator:
        yield "prompt.separator", prompt.separator, unread_why
    if not compiled and config.rollout.shared_noise:
        yield "rollout.shared_noise", True, f"which is for compiled environments, {tasks_are}; use false"
    if not prompt.has_answer_block and prompt.stop_at_answer:
        yield "prompt.stop_at_answer", True, "but responses have no answer block; use false"
    if config.on_host and config.algo.dynamic_sampling > 1:
        yield "algo.dynamic_sampling", config.algo.dynamic_sampling, f"{tasks_are}: the host resamples no groups; use 1"
    if len({kind.batch for kind in kinds}) > 1 and config.imitation.steps:
        why = f"{tasks_are}; imitate in a run on one kind, and start from it with --from"
        yield "imitation.steps", config.imitation.steps, why


def _model(config: Config) -> Iterator[Refused]:
    model, usual = config.model, ModelConfig()
    for name in (*_SHAPE, "tokenizer") if model.pretrained else ():
        value = getattr(model, name)
        if value != getattr(usual, name):
            yield f"model.{name}", value, f"but model.pretrained {model.pretrained!r} determines it; leave it out"
    if model.online and not model.pretrained:
        yield "model.online", True, "but model.pretrained is empty; name a model on the Hub, or use false"
    if model.revision and not model.online:
        yield "model.revision", model.revision, "but model.online is false; set it to true, or leave revision out"
    if model.lora.rank and not model.pretrained:
        yield "model.lora.rank", model.lora.rank, "but model.pretrained is empty; name a model, or use rank 0"
    if model.precision == "bfloat16" and not (model.lora.rank or model.frozen_layers):
        why = "but no parameters are frozen; use mixed, model.lora or model.frozen_layers"
        yield "model.precision", "bfloat16", why
    if model.cache != "activations" and model.precision == "float32":
        yield "model.cache", model.cache, "but model.precision is float32, so activations are too; leave it out"
    if model.embed_dim % (2 * model.heads):
        yield "model.embed_dim", model.embed_dim, f"expected a multiple of 2 x model.heads = {2 * model.heads}"
    if model.heads % model.kv_heads:
        yield "model.kv_heads", model.kv_heads, f"which does not divide model.heads = {model.heads}; use a divisor"


def _start(config: Config) -> Iterator[Refused]:
    start = config.start
    for key, value in (("checkpoint", start.checkpoint), ("optimizer", start.optimizer)):
        if not start.run and value != StartConfig.model_fields[key].default:
            yield f"start.{key}", value, "but start.run is empty; name the run with --from, or leave it out"
    if start.optimizer and config.imitation.steps:
        yield "start.optimizer", True, "but imitation begins with a new optimizer; set imitation.steps to 0"


def _rollout(config: Config) -> Iterator[Refused]:
    rollout, slots, every = config.rollout, config.rollout.slots, config.train.mutual_information_every
    episodes = config.groups * rollout.group_size
    if rollout.temperature == 0.0:
        yield "rollout.temperature", 0, "which leaves nothing to learn from; use a number above 0, usually 1"
    if slots > episodes:
        yield "rollout.slots", slots, f"more than the {episodes} episodes of a batch; use 0 for one slot per episode"
    if slots % rollout.group_size:
        yield "rollout.slots", slots, f"expected a multiple of rollout.group_size = {rollout.group_size}, or 0"
    if every and config.groups == 1:
        yield "train.mutual_information_every", every, "which compares groups, but there is one; use more, or 0"
    if rollout.quantization != "none" and config.algo.mismatch.kind == "replay":
        why = "whose policy is not the learner's, as algo.mismatch replay takes it to be; use algo.mismatch tis"
        yield "rollout.quantization", rollout.quantization, why
    if rollout.quantization == "weights_and_cache" and config.model.cache != "activations":
        yield "model.cache", config.model.cache, "but rollout.quantization stores integers; leave model.cache out"
    agent, turns = config.agent, config.prompt.max_turns
    if agent.kind != "full" and agent.visible(turns) >= turns:
        key, value = ("agent.turns", agent.limit) if agent.kind == "window" else ("agent", agent.kind)
        yield key, value, f"but prompt.max_turns is {turns}, so nothing changes; use agent full"
    if agent.kind == "window" and config.prompt.encoder == "canonical":
        why = "whose tokens reach from a response into the next message; with agent window use pieces"
        yield "prompt.encoder", config.prompt.encoder, why


def _rule(config: Config) -> Iterator[Refused]:
    algo, group_size, turns = config.algo, config.rollout.group_size, config.prompt.max_turns
    advantage, kl, kept, horizon = algo.advantage, algo.kl, algo.filter, algo.horizon
    method, by, rounds = advantage.reward_normalization, getattr(kept, "by", ""), algo.dynamic_sampling
    within_groups = advantage.per_group or (method != "identity" and advantage.reward_grouping == "state")
    compared = (
        ("algo.advantage", advantage.kind, advantage.per_group),
        ("algo.advantage.reward_normalization", method, within_groups and not advantage.per_group),
        ("algo.advantage.spread_weighted", True, advantage.spread_weighted),
        ("algo.filter.by", by, by in ("std", "entropy_std")),
        ("algo.dynamic_sampling", rounds, rounds > 1),
    )
    for key, value, compares in compared:
        if compares and group_size == 1:
            yield key, value, "which compares members of a group, but rollout.group_size is 1; use at least 2 members"
    if advantage.spread_weighted and algo.filter_group_size == 1:
        yield "algo.advantage.spread_weighted", True, "but algo.filter_group_size is 1; use at least 2, or 0 for all"
    if algo.overlong_buffer == 0.0 and algo.overlong_penalty != AlgoConfig().overlong_penalty:
        yield "algo.overlong_penalty", algo.overlong_penalty, "but algo.overlong_buffer is 0; leave it out"
    for index, rule in enumerate(advantage.rules):
        key = "algo.advantage" + (f".{index}" if rule is not advantage else "")
        if is_own(rule.kind) and not rule.has_critic:
            for name in ("value_coef", "value_clip", "bootstrap_truncated"):
                if (value := getattr(rule, name)) != type(rule).model_fields[name].default:
                    yield f"{key}.{name}", value, f"but {rule.kind} does not say that it needs a critic; leave it out"
        if turns == 1 and rule.kind == "bi_level_gae":
            yield key, rule.kind, "which is gae where prompt.max_turns is 1; use gae, or more turns"
        for name in ("reward_placement", "turn_gamma", "history") if turns == 1 else ():
            field, value = type(rule).model_fields.get(name), getattr(rule, name, None)
            if field and value != field.default:
                yield f"{key}.{name}", value, f"which prompt.max_turns 1 does not read; leave it at {field.default}"
    if isinstance(kept, TopKFilter) and kept.k >= config.groups and kept.include_zero:
        yield "algo.filter.k", kept.k, f"but a batch has {config.groups} groups, so that all are kept; use fewer"
    if kept.kind not in ("none", "fraction") and config.train.max_bad_updates == 1:
        yield "algo.filter", kept.kind, "which may skip updates, but train.max_bad_updates is 1; use at least 2"
    least, number = 2 if within_groups else 1, algo.filter_group_size
    if number and not least <= number < group_size:
        limits = f"at least {least} and fewer than rollout.group_size = {group_size}"
        yield "algo.filter_group_size", number, f"expected {limits}, or 0 for all"
    if algo.kl.kind != "none" and algo.kl.sync_mix != 1.0 and not algo.kl.sync_every:
        yield "algo.kl.sync_mix", algo.kl.sync_mix, "but algo.kl.sync_every is 0; set it above 0"
    if rounds > 1 and algo.mismatch.kind == "replay":
        yield "algo.dynamic_sampling", rounds, "but algo.mismatch replay replays one rollout; use 1, or mismatch none"
    if kl.kind != "none" and kl.coef == 0.0 and "kl.coef" not in algo.schedules:
        yield "algo.kl.coef", 0.0, "and stays so, so that it has no effect; set it above 0, or use algo.kl none"
    if kl.apply_to == "reward" and advantage.per_episode:
        yield "algo.kl.apply_to", "reward", f"but algo.advantage {advantage.kind} compares returns without it; use loss"
    if kl.kind == "adaptive" and "kl.coef" in algo.schedules:
        yield "algo.kl", "adaptive", "which moves algo.kl.coef, and algo.schedules.kl.coef moves it too; leave one out"
    episodes = config.groups * group_size
    if kl.kind == "adaptive" and episodes >= 5 * kl.horizon:
        reason = f"with which one step of {episodes} episodes could make the coefficient negative"
        yield "algo.kl.horizon", kl.horizon, f"{reason}; use more than {episodes / 5:g}"
    if horizon.kind != "fixed":
        key, value = "algo.horizon.turns", horizon.turns
        if value[-1] > turns:
            yield key, value, f"expected at most prompt.max_turns = {turns}: raise that, or lower these"
        if horizon.kind == "adaptive" and len(value) == 1:
            yield key, value, "which leaves algo.horizon adaptive nothing to decide; give several, or use stepwise"
        if value == (turns,):
            yield key, value, "which is prompt.max_turns from the start; use algo.horizon fixed"


def _kept(config: Config) -> tuple[int, int]:
    """Groups and rows that are trained on, as far as their numbers are known in advance."""
    kept, groups = config.algo.filter, config.groups
    number = kept.kept(groups)
    turns = config.prompt.max_turns
    return number, number * config.rollout.group_size * (turns - config.agent.visible(turns) + 1)


def _training(config: Config) -> Iterator[Refused]:
    algo, optim, train, groups, (kept, rows) = config.algo, config.optim, config.train, config.groups, _kept(config)
    if isinstance(algo.filter, FractionFilter) and not kept:
        why = f"which keeps none of {groups} groups; use at least {1 / max(groups, 1):g}"
        yield "algo.filter.ratio", algo.filter.ratio, why
    microbatches = algo.minibatches * algo.grad_accum_steps
    if rows % microbatches:
        contexts = {
            "full": "",
            "single_turn": " x prompt.max_turns",
            "window": " x (prompt.max_turns - agent.turns + 1)",
        }
        members = f"{kept} of {groups} groups x {config.rollout.group_size} members{contexts[config.agent.kind]}"
        reason = f"which does not divide the {rows} rows kept for training ({members}); use a divisor"
        yield "algo.minibatches x algo.grad_accum_steps", microbatches, reason
    if algo.packing and algo.length_buckets is not None and algo.length_buckets > 1:
        yield "algo.length_buckets", algo.length_buckets, "but with algo.packing bins have one length; use 1"
    no_critic = f"but algo.advantage {algo.advantage.kind} has no critic; leave it out, or use algo.advantage gae"
    if optim.critic_lr is not None and not algo.advantage.has_critic:
        yield "optim.critic_lr", optim.critic_lr, no_critic
    if train.critic_warmup and not algo.advantage.has_critic:
        yield "train.critic_warmup", train.critic_warmup, no_critic
    if not train.validate_every and train.best != type(train.best)():
        key, value = ("evaluate", True) if train.best.evaluate else ("metric", train.best.metric)
        yield f"train.best.{key}", value, "which is for runs with validations, but train.validate_every is 0"
    if not train.validate_every and (train.stop.at is not None or train.stop.patience):
        key = "patience" if train.stop.at is None else "at"
        yield f"train.stop.{key}", getattr(train.stop, key), "but train.validate_every is 0; set it above 0"
    if train.keep_every % train.checkpoint_every:
        why = f"expected 0 or a multiple of train.checkpoint_every = {train.checkpoint_every}"
        yield "train.keep_every", train.keep_every, why
    if train.critic_warmup and train.critic_warmup >= train.iterations:
        yield "train.critic_warmup", train.critic_warmup, f"expected less than train.iterations {train.iterations}"
    imitation, levels, steps = config.imitation, config.imitation.levels, config.imitation.steps
    base_only = bool(levels) and any(stage.kind == "evolve" for stage in config.stages)
    if (levels > 0) != (steps > 0) and not base_only:
        yield "imitation.levels", levels, f"but imitation.steps is {steps}; set both above 0, or both to 0"
    if imitation.schedule != "constant" and not steps:
        yield "imitation.schedule", imitation.schedule, "but imitation.steps is 0; leave it out"
    if imitation.noise and not (config.on_host and imitation.plans == "optimal"):
        why = "which is for imitation.plans optimal of environments on the host; set it to 0"
        yield "imitation.noise", imitation.noise, why
    rounds, per_round = imitation.dagger_rounds, imitation.dagger_levels
    if (rounds > 0) != (per_round > 0):
        yield "imitation.dagger_rounds", rounds, f"but imitation.dagger_levels is {per_round}; set both above 0, or 0"
    if rounds and steps and rounds >= imitation.chunks:
        parts = f"{imitation.chunks} parts of {IMITATION_CHUNK} steps"
        why = f"but imitation.steps {steps} has {parts}, and rounds are between them; use fewer rounds or more steps"
        yield "imitation.dagger_rounds", rounds, why
    if imitation.plans not in ("optimal", "exploring", "random") and (config.on_host or not levels):
        why = "the name of a scripted policy, which compiled environments of commands have; expected optimal or random"
        yield "imitation.plans", imitation.plans, why
    if imitation.plans == "exploring" and (config.on_host or not levels):
        yield "imitation.plans", "exploring", "which is for compiled environments with imitation.levels; leave it out"
    for name in ("random_start", "images", "dagger_rounds"):
        value = getattr(imitation, name)
        if value and (config.on_host or imitation.plans == "random" or not levels):
            why = "which is for imitation.plans optimal and exploring of compiled environments; set it to 0"
            yield f"imitation.{name}", value, why


def _devices(config: Config) -> Iterator[Refused]:
    algo, mesh, slots, (_, rows) = config.algo, config.mesh, config.rollout.slots, _kept(config)
    this = "devices", config.device_count
    if config.device_count % (mesh.fsdp * mesh.sequence * mesh.tensor):
        given = f"but mesh.fsdp x mesh.sequence x mesh.tensor is {mesh.fsdp} x {mesh.sequence} x {mesh.tensor}"
        yield *this, f"{given}, which does not divide it; use a divisor"
    if mesh.rollout == "wide" and mesh.fsdp == 1:
        yield "mesh.rollout", "wide", "but mesh.fsdp is 1, so that no devices share a matrix; use rows, or more fsdp"
    if algo.mismatch.kind == "replay" and (mesh.sequence > 1 or mesh.tensor > 1 or mesh.rollout != "rows"):
        given = f"mesh.sequence is {mesh.sequence}, mesh.tensor {mesh.tensor} and mesh.rollout {mesh.rollout}"
        yield "algo.mismatch", "replay", f"but {given}; use 1, 1 and rows, so that shapes are equal, or tis"
    # With `devices` 0 or auto the number of devices is not known yet; a run checks again when it is.
    learners = max(config.device_count // (mesh.sequence * mesh.tensor), 1)
    replicas = max(config.device_count // (mesh.tensor * (mesh.fsdp if mesh.rollout == "wide" else 1)), 1)
    if config.groups % replicas:
        yield *this, f"with {replicas} replicas, but a batch has {config.groups} groups; make these a multiple"
    elif config.groups % learners:
        yield *this, f"with {learners} learners, but a batch has {config.groups} groups; make these a multiple"
    microbatches = algo.minibatches * algo.grad_accum_steps
    if rows % (microbatches * learners):
        keys = (
            "devices, mesh.sequence, mesh.tensor, groups, rollout.group_size, algo.minibatches or algo.grad_accum_steps"
        )
        yield *this, f"with {learners} learners, but a microbatch has {rows // microbatches} rows; change {keys}"
    episodes = config.groups * config.rollout.group_size
    if slots * replicas > episodes:
        yield "rollout.slots", slots, f"for {replicas} replicas, but a batch has {episodes} episodes; use fewer or 0"
    at_once, playing = config.rollout.prefill_rows, slots or episodes // replicas
    if at_once >= playing > 0:
        yield "rollout.prefill_rows", at_once, f"but {playing} episodes run at once; use fewer, or 0 to read all rows"


def _hosts(config: Config) -> Iterator[Refused]:
    hosts = config.hosts
    given = f"and hosts.index {shown(hosts.index)}"
    if hosts.coordinator in ("", "auto"):
        if hosts.count or hosts.index is not None:
            address = hosts.coordinator or "empty"
            why = f"{given}, but hosts.coordinator is {address}; give the address of process 0, or leave them out"
            yield "hosts.count", hosts.count, why
        return
    host, colon, port = hosts.coordinator.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
        example = "expected HOST:PORT of process 0, or auto; e.g. 10.0.0.1:8476"
        yield "hosts.coordinator", hosts.coordinator, example
    if hosts.index is None or hosts.index >= hosts.count:
        why = f"{given}, expected the number of processes and that of this one, from 0 to count - 1; give both"
        yield "hosts.count", hosts.count, why
