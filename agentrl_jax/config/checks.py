"""Checks across several sections of a configuration, or several options of its learning rule.

What a section can check by itself is checked in its class. Each check below yields its error messages.
"""

import os
from collections.abc import Iterator

from agentrl_jax.config.algo import AlgoConfig, NoCorrection
from agentrl_jax.config.schema import Config, ModelConfig
from agentrl_jax.config.sizes import check_sizes
from agentrl_jax.errors import MAX_FOREIGN, UserError, shortened
from agentrl_jax.service_names import TEXT_SERVICES

_SHAPE = (
    "layers",
    "embed_dim",
    "heads",
    "kv_heads",
    "mlp_width",
    "rope_theta",
    "norm_eps",
    "tied_embeddings",
    "tokenizer",
)
"""Keys of `model` that a pretrained model determines."""

_RANGES = {"clip_low": (0.0, 1.0), "format_penalty": (float("-inf"), 0.0), "temperature": (1e-6, float("inf"))}
"""Allowed range of a schedule's final value; for other values it is at least 0."""


def validate(config: Config, *, files: bool = True) -> None:
    """Checks combinations of fields.

    Args:
        config: configuration of the run.
        files: whether to check that its level files exist.

    Raises:
        UserError: names the keys, their values and what is allowed.
    """
    check_sizes(config)
    for check in (_tasks, _services, _model, _rollout, _rule, _schedules, _batch, _devices, _imitation):
        for refusal in check(config):
            raise UserError(shortened(refusal, MAX_FOREIGN))  # may quote a text of any length
    for index, task in enumerate(config.tasks if files else ()):
        if task.levels and not os.path.isfile(task.levels):
            raise UserError(
                f"tasks.{index}.levels is {shortened(repr(task.levels))}, but there is no such file; give the path of "
                "a level pack (.npy) or of a text file with levels, relative to the folder in which the command runs"
            )


def _groups(config: Config) -> int:
    return sum(task.groups for task in config.tasks)


def _tasks(config: Config) -> Iterator[str]:
    labels = [task.label for task in config.tasks]
    for index, label in enumerate(labels):
        if label in labels[:index]:
            yield (
                f"two tasks are called {label}, so that their metrics could not be told apart; give one of them "
                f"another name, e.g. tasks.{index}.name {label}-2"
            )
    prompt = config.prompt
    if not config.served and prompt.max_actions_per_turn > prompt.max_actions:
        yield (
            f"prompt.max_actions_per_turn is {prompt.max_actions_per_turn}, more than the trajectory's budget "
            f"prompt.max_actions = {prompt.max_actions}; lower the one or raise the other"
        )


def _services(config: Config) -> Iterator[str]:
    served, prompt = config.served, config.prompt
    if (prompt.style in ("chat", "bare")) != served:
        kind, styles = ("services", "chat or bare") if served else ("compiled", "compact or ragen")
        yield f"prompt.style is {prompt.style}, but the tasks are {kind}; use {styles}"
    for index, task in enumerate(config.tasks):
        key = f"tasks.{index}"
        for name in ("items", "held_out", "validation"):
            value = getattr(task, name)
            if value and not served:
                yield f"{key}.{name} is {value!r}, but {task.env} is no service; leave it out"
            if served and not value and name != "validation":
                yield f"{key}.{name} is empty; name the items of {task.env}, e.g. 0-99, or an item file"
        if not served:
            continue
        if bool(task.validation) != (config.train.validate_every > 0):
            yield (
                f"{key}.validation is {task.validation!r} and train.validate_every is {config.train.validate_every}; "
                "name items that are neither in items nor in held_out, or set train.validate_every to 0 and name none"
            )
        if not config.env.url and task.env not in TEXT_SERVICES:
            yield f"{key}.env is {task.env}, which is compiled, beside services; give a batch either, or env.url"
        if task.levels or task.options:
            yield f"{key} has levels or options, which services do not know; use items and held_out"
    if config.env.token_file and config.env.url in ("", "local"):
        yield (
            f"env.token_file is {config.env.token_file!r}, which is for a server that is there already; the run draws "
            "a token for a server of its own, so leave it out or give env.url"
        )
    if served and prompt.encoder != "pieces":
        yield "prompt.encoder is canonical, but a text of services has the tokens of the whole text; use pieces"
    if served and prompt.stop_at_answer:
        yield "prompt.stop_at_answer is true, but responses to services have no answer block; use false"
    if served and config.algo.dynamic_sampling > 1:
        rounds = config.algo.dynamic_sampling
        yield f"algo.dynamic_sampling is {rounds}, but services play one round of episodes; use 1"


def _model(config: Config) -> Iterator[str]:
    model, usual = config.model, ModelConfig()
    for name in _SHAPE:
        value = getattr(model, name)
        if model.pretrained and value != getattr(usual, name):
            yield (
                f"model.{name} is {value!r}, but model.pretrained is {model.pretrained!r}, whose own files say what it "
                f"is; leave model.{name} out"
            )
    if model.online and not model.pretrained:
        yield (
            "model.online is true, but model.pretrained is empty, so that there is nothing to download; name a "
            "repository of the Hugging Face Hub, or leave model.online out"
        )
    if model.revision and not model.online:
        yield (
            f"model.revision is {model.revision!r}, but model.online is false, so that nothing is downloaded; set "
            "model.online to true, or leave model.revision out"
        )
    if model.lora.rank and not model.pretrained:
        yield (
            f"model.lora.rank is {model.lora.rank}, which freezes the decoder, but model.pretrained is empty, so that "
            "it is a random one; name a pretrained model, or set model.lora.rank to 0"
        )
    if model.precision == "bfloat16" and not (model.lora.rank or model.frozen_layers):
        yield (
            "model.precision is bfloat16, which stores frozen parameters in bfloat16, but nothing is frozen; use "
            "mixed, or set model.lora.rank or model.frozen_layers"
        )
    if model.cache != "activations" and model.precision == "float32":
        yield "model.cache is float32, but so are the activations (model.precision), so nothing changes; leave it out"
    if model.embed_dim % (2 * model.heads):
        yield (
            f"model.embed_dim is {model.embed_dim} and model.heads is {model.heads}; every head needs an even whole "
            "number of entries: make model.embed_dim a multiple of 2 x model.heads"
        )
    if model.heads % model.kv_heads:
        yield f"model.kv_heads is {model.kv_heads}, which does not divide model.heads = {model.heads}; use a divisor"


def _rollout(config: Config) -> Iterator[str]:
    rollout, episodes = config.rollout, _groups(config) * config.rollout.group_size
    if rollout.temperature == 0.0:
        yield "rollout.temperature is 0, which leaves nothing to learn from; use a number above 0, usually 1"
    if rollout.slots > episodes:
        yield (
            f"rollout.slots is {rollout.slots}, more than the {episodes} episodes of a batch (groups x members); use 0 "
            "for one slot per episode"
        )
    if rollout.slots % rollout.group_size:
        yield (
            f"rollout.slots is {rollout.slots}, which is not a multiple of rollout.group_size = {rollout.group_size}; "
            "members of a group start together"
        )
    if config.train.mutual_information_every and _groups(config) == 1:
        yield (
            f"train.mutual_information_every is {config.train.mutual_information_every}, but the batch has a single "
            "group, so that there is no other prompt to score its responses under; give the tasks more groups, or use 0"
        )
    if rollout.context != "full" and config.prompt.max_turns == 1:
        yield (
            f"rollout.context is {rollout.context}, but prompt.max_turns is 1, so that nothing is left out of the "
            "context; use full, or more turns"
        )


def _rule(config: Config) -> Iterator[str]:
    algo, group_size, turns = config.algo, config.rollout.group_size, config.prompt.max_turns
    advantage, kl, kept, horizon = algo.advantage, algo.kl, algo.filter, algo.horizon
    this = f"algo.advantage is {advantage.kind}"
    if advantage.per_group and group_size == 1:
        yield (
            f"{this}, which compares the members of a group, but rollout.group_size is 1; use at least 2 members or "
            "algo.advantage gae"
        )
    method = advantage.reward_normalization
    if method != "identity" and advantage.reward_grouping == "state" and group_size == 1:
        yield (
            f"algo.advantage.reward_normalization is {method}, which compares the members of a group, but "
            "rollout.group_size is 1; use at least 2 members, or identity"
        )
    if advantage.spread_weighted and (group_size == 1 or algo.filter_group_size == 1):
        yield (
            "algo.advantage.spread_weighted is true, but groups of one have no spread; use at least 2 "
            "rollout.group_size (and algo.filter_group_size), or false"
        )
    if algo.overlong_buffer == 0.0 and algo.overlong_penalty != AlgoConfig().overlong_penalty:
        yield (
            f"algo.overlong_penalty is {algo.overlong_penalty:g}, which algo.overlong_buffer 0 does not read; leave it "
            "out"
        )
    if turns == 1 and advantage.kind == "bi_level_gae":
        yield f"{this}, which is gae where prompt.max_turns is 1; use gae, or more turns"
    for name in ("reward_placement", "turn_gamma", "history") if turns == 1 else ():
        field, value = type(advantage).model_fields.get(name), getattr(advantage, name, None)
        if field and value != field.default:
            yield (
                f"algo.advantage.{name} is {value}, which prompt.max_turns 1 does not read; leave it at {field.default}"
            )
    if kept.kind != "none" and group_size == 1 and kept.by in ("std", "entropy_std"):
        yield (
            f"algo.filter is {kept.kind} by {kept.by}, which ranks groups by the spread of their members, but "
            "rollout.group_size is 1; use at least 2 members or algo.filter none"
        )
    if kept.kind not in ("none", "fraction") and config.train.max_bad_updates == 1:
        yield (
            f"algo.filter is {kept.kind}, which may keep nothing, and that counts as a skipped update, but "
            "train.max_bad_updates is 1, so that the run would stop; raise it"
        )
    least = 2 if advantage.per_group else 1
    if algo.filter_group_size and not least <= algo.filter_group_size < group_size:
        yield (
            f"algo.filter_group_size is {algo.filter_group_size}; expected at least {least} and fewer than "
            f"rollout.group_size = {group_size}, or 0 for all"
        )
    rounds = f"algo.dynamic_sampling is {algo.dynamic_sampling}"
    if algo.dynamic_sampling > 1 and group_size == 1:
        yield (
            f"{rounds}, which resamples groups without a spread of returns, but rollout.group_size is 1; use at least "
            "2 members, or 1"
        )
    if algo.dynamic_sampling > 1 and algo.mismatch.kind == "replay":
        yield (
            f"{rounds}, which puts groups of several rollouts side by side, but algo.mismatch replay replays one; use "
            "1, or algo.mismatch none"
        )
    from_rollout = algo.mismatch == NoCorrection(ratio_from="rollout")
    if algo.objective.kind == "policy_gradient" and from_rollout and kl.apply_to != "reward":
        yield (
            "algo.mismatch.ratio_from is rollout, from which ratios start, but algo.objective policy_gradient has "
            "none; use learner"
        )
    if kl.kind != "none" and kl.coef == 0.0 and "kl_coef" not in algo.schedules:
        yield "algo.kl.coef is 0 and stays so, so that it has no effect; set it above 0, or use algo.kl none"
    if kl.apply_to == "reward" and advantage.per_episode:
        yield (
            f"algo.kl.apply_to is reward, but algo.advantage {advantage.kind} compares returns and would not see it; "
            "use loss, or algo.advantage gae or reward_to_go"
        )
    if kl.kind == "adaptive" and "kl_coef" in algo.schedules:
        yield (
            "algo.kl is adaptive, which moves algo.kl.coef, and algo.schedules.kl_coef moves it too; leave one of them "
            "out"
        )
    episodes = _groups(config) * group_size
    if kl.kind == "adaptive" and episodes >= 5 * kl.horizon:
        yield (
            f"algo.kl.horizon is {kl.horizon:g} for {episodes} episodes an iteration, so that one step could turn the "
            f"coefficient negative; use more than {episodes / 5:g}"
        )
    if horizon.kind != "fixed":
        given = f"algo.horizon.turns is {list(horizon.turns)}"
        if horizon.turns[-1] > turns:
            yield f"{given}; expected at most prompt.max_turns = {turns}: raise that, or lower these"
        if horizon.turns == (turns,):
            yield f"{given}, which is prompt.max_turns from the start, as with algo.horizon fixed; use that"


def _schedules(config: Config) -> Iterator[str]:
    algo = config.algo
    starts = algo.starts()
    starts |= {"temperature": config.rollout.temperature, "format_penalty": config.prompt.format_penalty}
    for name, schedule in algo.schedules.items():
        given = f"algo.schedules.{name}.end is {schedule.end:g}"
        if name not in starts:
            yield (
                f"{given}, but algo.advantage {algo.advantage.kind}, algo.objective {algo.objective.kind} and algo.kl "
                f"{algo.kl.kind} do not read {name}; leave it out"
            )
        if schedule.end == starts[name]:
            yield f"{given}, where {name} starts from, so that nothing moves; give another end, or leave it out"
        low, high = _RANGES.get(name, (0.0, float("inf")))
        if not low <= schedule.end <= high:
            yield f"{given}; expected {low:g} to {high:g}"


def _kept(config: Config) -> tuple[int, int]:
    """Groups and rows that are trained on, as far as their numbers are known in advance."""
    kept, groups = config.algo.filter, _groups(config)
    number = kept.kept(groups) if kept.kind == "fraction" else groups
    turns = config.prompt.max_turns if config.rollout.context == "single_turn" else 1
    return number, number * config.rollout.group_size * turns


def _batch(config: Config) -> Iterator[str]:
    algo, groups, (kept, rows) = config.algo, _groups(config), _kept(config)
    if algo.filter.kind == "fraction" and not kept:
        yield (
            f"algo.filter.ratio {algo.filter.ratio:g} of {groups} groups keeps none; raise the ratio to at least "
            f"{1 / groups:g} or give the tasks more groups"
        )
    microbatches = algo.minibatches * algo.grad_accum_steps
    if rows % microbatches:
        turns = " x prompt.max_turns" if config.rollout.context == "single_turn" else ""
        yield (
            f"algo.minibatches x algo.grad_accum_steps is {microbatches}, which does not divide the {rows} rows kept "
            f"for training ({kept} of {groups} groups x {config.rollout.group_size} members{turns}); use a divisor"
        )
    none = f"but algo.advantage {algo.advantage.kind} has no critic"
    if config.optim.critic_lr is not None and not algo.advantage.has_critic:
        yield f"optim.critic_lr is {config.optim.critic_lr}, {none}; leave it out, or use algo.advantage gae"
    if config.optim.decay != "matrices" and config.optim.weight_decay == 0.0:
        yield (
            f"optim.decay is {config.optim.decay}, but optim.weight_decay is 0, so that nothing decays; leave "
            "optim.decay out, or set optim.weight_decay above 0"
        )
    warmup = config.train.critic_warmup
    if warmup and not algo.advantage.has_critic:
        yield f"train.critic_warmup is {warmup}, {none}; use 0, or algo.advantage gae"
    if warmup and warmup >= config.train.iterations:
        yield (
            f"train.critic_warmup is {warmup} and train.iterations {config.train.iterations}, so that the policy would "
            "never learn; use fewer than train.iterations"
        )


def _devices(config: Config) -> Iterator[str]:
    algo, mesh, groups, (_, rows) = config.algo, config.mesh, _groups(config), _kept(config)
    if config.devices % (mesh.fsdp * mesh.tensor):
        yield (
            f"mesh.fsdp x mesh.tensor is {mesh.fsdp} x {mesh.tensor}, which does not divide devices {config.devices}; "
            "use a divisor"
        )
    if algo.mismatch.kind == "replay" and (mesh.tensor > 1 or mesh.rollout != "rows"):
        yield (
            f"algo.mismatch is replay, but mesh.tensor is {mesh.tensor} and mesh.rollout {mesh.rollout}: learner and "
            "rollout would compute in different shapes; use 1 and rows, or algo.mismatch tis"
        )
    # With `devices: 0` the number of devices is not known yet; a run checks again when it is.
    learners = max(config.devices // mesh.tensor, 1)
    replicas = max(learners // mesh.fsdp, 1) if mesh.rollout == "wide" else learners
    this, slots, episodes = f"devices is {config.devices}", config.rollout.slots, groups * config.rollout.group_size
    if groups % replicas:
        yield (
            f"{this}, and their {replicas} replicas, each with episodes of its own, do not divide the {groups} groups "
            "of a batch; change devices, mesh, or the groups of the tasks"
        )
    microbatches = algo.minibatches * algo.grad_accum_steps
    if rows % (microbatches * learners):
        yield (
            f"{this}, and their {learners} learners do not divide the {rows // microbatches} rows of a part of a "
            "minibatch; change devices, mesh.tensor, groups or members, algo.minibatches or algo.grad_accum_steps"
        )
    if slots * replicas > episodes:
        yield (
            f"rollout.slots is {slots} for each of {replicas} replicas, more than the {episodes} episodes of a batch; "
            "use fewer, or 0 for one slot per episode"
        )
    if config.imitation.levels and config.imitation.batch % learners:
        yield (
            f"{this}, and their {learners} learners do not divide imitation.batch = {config.imitation.batch}; use a "
            "multiple"
        )


def _imitation(config: Config) -> Iterator[str]:
    imitation = config.imitation
    if (imitation.levels > 0) != (imitation.steps > 0):
        yield (
            f"imitation.levels is {imitation.levels} and imitation.steps is {imitation.steps}; set both above 0 to "
            "imitate, or both to 0"
        )
    if imitation.noise and not (config.served and imitation.plans == "optimal"):
        yield f"imitation.noise is {imitation.noise:g}, which is for imitation.plans optimal of services; set it to 0"
