"""Checks of what concerns several sections of a configuration, or several parts of its learning rule, at once."""

import os
from collections.abc import Callable

from agentrl_jax.algos.filters import kept_groups
from agentrl_jax.config.algo import AlgoConfig, NoCorrection
from agentrl_jax.config.schema import Config, ModelConfig
from agentrl_jax.config.sizes import check_sizes
from agentrl_jax.errors import MAX_FOREIGN, UserError, shortened
from agentrl_jax.services.catalogue import TEXT_SERVICES

Need = Callable[[bool, str], None]
"""Takes whether something holds, and what to say if it does not."""

_SHAPE = (
    "tokenizer",
    "layers",
    "width",
    "heads",
    "kv_heads",
    "mlp_width",
    "rope_theta",
    "norm_eps",
    "tied_embeddings",
)
"""Keys of `model` that a pretrained model answers itself."""


def validate(config: Config, *, files: bool = True) -> None:
    """Checks what concerns several fields at once.

    Args:
        config: the run's.
        files: the level files that it names have to be there.

    Raises:
        UserError: names the keys, what they hold and what would fit.
    """
    check_sizes(config)
    model, prompt, rollout, algo = config.model, config.prompt, config.rollout, config.algo
    groups = sum(task.groups for task in config.tasks)
    episodes = groups * rollout.members
    kept = kept_groups(groups, algo.filter.ratio) if algo.filter.kind == "fraction" else groups
    rows = kept * rollout.members * (prompt.max_turns if rollout.context == "single_turn" else 1)
    parts = algo.minibatches * algo.accumulation

    def need(holds: bool, message: str) -> None:
        if not holds:
            raise UserError(shortened(message, MAX_FOREIGN))  # which may quote a text of any length

    labels = [task.label for task in config.tasks]
    for index, task in enumerate(config.tasks):
        need(
            task.label not in labels[:index],
            f"two tasks are called {task.label}, so that their metrics could not be told apart; give one of them "
            f"another name, e.g. tasks.{index}.name {task.label}-2",
        )
        need(
            not files or not task.levels or os.path.isfile(task.levels),
            f"tasks.{index}.levels is {task.levels!r}, but there is no such file; give the path of a level pack (.npy) "
            "or of a text file with levels, relative to the folder in which the command runs",
        )
    _check_services(config, need)
    fresh = ModelConfig()
    for name in _SHAPE:
        need(
            not model.pretrained or getattr(model, name) == getattr(fresh, name),
            f"model.{name} is {getattr(model, name)!r}, but model.pretrained is {model.pretrained!r}, whose own "
            f"files say what it is; leave model.{name} out",
        )
    need(
        not model.online or bool(model.pretrained),
        "model.online is true, but model.pretrained is empty, so that there is nothing to download; name a repository "
        "of the Hugging Face Hub, or leave model.online out",
    )
    need(
        not model.revision or model.online,
        f"model.revision is {model.revision!r}, but model.online is false, so that nothing is downloaded; set "
        "model.online to true, or leave model.revision out",
    )
    need(
        model.lora.rank == 0 or bool(model.pretrained),
        f"model.lora.rank is {model.lora.rank}, which freezes the decoder, but model.pretrained is empty, so that it "
        "is a random one; name a pretrained model, or set model.lora.rank to 0",
    )
    need(
        model.precision != "bfloat16" or bool(model.lora.rank or model.frozen_layers),
        "model.precision is bfloat16, which stores frozen parameters in bfloat16, but nothing is frozen; use mixed, or "
        "set model.lora.rank or model.frozen_layers",
    )
    need(
        model.cache == "activations" or model.precision != "float32",
        "model.cache is float32, but so are the activations (model.precision), so that nothing changes; leave it out",
    )
    need(
        model.width % model.heads == 0 and (model.width // model.heads) % 2 == 0,
        f"model.width is {model.width} and model.heads is {model.heads}; every head needs an even whole number of "
        "entries: make model.width a multiple of 2 x model.heads",
    )
    need(
        model.heads % model.kv_heads == 0,
        f"model.kv_heads is {model.kv_heads}, which does not divide model.heads = {model.heads}; use a divisor",
    )
    need(
        config.served or prompt.max_actions_per_turn <= prompt.max_actions,
        f"prompt.max_actions_per_turn is {prompt.max_actions_per_turn}, more than the trajectory's budget "
        f"prompt.max_actions = {prompt.max_actions}; lower the one or raise the other",
    )
    need(
        rollout.temperature > 0.0,
        "rollout.temperature is 0, which leaves nothing to learn from; use a number above 0, usually 1",
    )
    need(
        rollout.slots <= episodes,
        f"rollout.slots is {rollout.slots}, more than the {episodes} episodes of a batch (groups x members); "
        "use 0 for one slot per episode",
    )
    need(
        rollout.slots % rollout.members == 0,
        f"rollout.slots is {rollout.slots}, which is not a multiple of rollout.members = {rollout.members}; members of "
        "a group start together",
    )
    need(
        config.train.mutual_information_every == 0 or groups > 1,
        f"train.mutual_information_every is {config.train.mutual_information_every}, but the batch has a single group, "
        "so that there is no other prompt to score its replies under; give the tasks more groups, or use 0",
    )
    _check_rule(config, need)
    need(
        kept >= 1,
        f"algo.filter.ratio {getattr(algo.filter, 'ratio', 1):g} of {groups} groups keeps none; raise the ratio to at "
        f"least {1 / groups:g} or give the tasks more groups",
    )
    need(
        rows % parts == 0,
        f"algo.minibatches x algo.accumulation is {parts}, which does not divide the {rows} rows kept for training "
        f"({kept} of {groups} groups x {rollout.members} members"
        f"{' x prompt.max_turns' if rollout.context == 'single_turn' else ''}); use a divisor",
    )
    need(
        config.optim.critic_lr is None or algo.advantage.has_critic,
        f"optim.critic_lr is {config.optim.critic_lr}, but algo.advantage {algo.advantage.kind} has no critic; leave "
        "it out, or use algo.advantage gae",
    )
    need(
        config.optim.decay == "matrices" or config.optim.weight_decay > 0.0,
        f"optim.decay is {config.optim.decay}, but optim.weight_decay is 0, so that nothing decays; leave optim.decay "
        "out, or set optim.weight_decay above 0",
    )
    warmup, iterations = config.train.critic_warmup, config.train.iterations
    need(
        warmup == 0 or algo.advantage.has_critic,
        f"train.critic_warmup is {warmup}, but algo.advantage {algo.advantage.kind} has no critic; use 0, or "
        "algo.advantage gae",
    )
    need(
        warmup == 0 or warmup < iterations,
        f"train.critic_warmup is {warmup} and train.iterations {iterations}, so that the policy would never learn; use "
        "fewer than train.iterations",
    )
    fsdp, tensor = config.mesh.fsdp, config.mesh.tensor
    need(
        config.devices % (fsdp * tensor) == 0,
        f"mesh.fsdp x mesh.tensor is {fsdp} x {tensor}, which does not divide devices {config.devices}; use a divisor",
    )
    need(
        algo.mismatch.kind != "replay" or (tensor == 1 and config.mesh.rollout == "rows"),
        f"algo.mismatch is replay, but mesh.tensor is {tensor} and mesh.rollout {config.mesh.rollout}: learner and "
        "rollout would compute in different shapes; use 1 and rows, or algo.mismatch tis",
    )
    # With 0 devices their number is not known yet; a run checks again when it is.
    learners = max(config.devices // tensor, 1)
    players = max(learners // fsdp, 1) if config.mesh.rollout == "wide" else learners
    need(
        groups % players == 0,
        f"devices is {config.devices}, and their {players} players, each with episodes of its own, do not divide the "
        f"{groups} groups of a batch; change devices, mesh, or the groups of the tasks",
    )
    need(
        rows % (parts * learners) == 0,
        f"devices is {config.devices}, and their {learners} learners do not divide the {rows // parts} rows of a part "
        "of a minibatch; change devices, mesh.tensor, groups or members, algo.minibatches or algo.accumulation",
    )
    need(
        rollout.slots * players <= episodes,
        f"rollout.slots is {rollout.slots} for each of {players} players, more than the {episodes} episodes of a "
        "batch; use fewer, or 0 for one slot per episode",
    )
    need(
        config.imitation.levels == 0 or config.imitation.batch % learners == 0,
        f"devices is {config.devices}, and their {learners} learners do not divide imitation.batch = "
        f"{config.imitation.batch}; use a multiple",
    )
    need(
        (config.imitation.levels > 0) == (config.imitation.steps > 0),
        f"imitation.levels is {config.imitation.levels} and imitation.steps is {config.imitation.steps}; "
        "set both above 0 to imitate, or both to 0",
    )
    need(
        config.imitation.noise == 0 or (config.served and config.imitation.plans == "optimal"),
        f"imitation.noise is {config.imitation.noise:g}, which is for imitation.plans optimal of services; set it to 0",
    )


def _check_services(config: Config, need: Need) -> None:
    words = config.prompt.style in ("chat", "bare")
    need(
        words == config.served,
        f"prompt.style is {config.prompt.style}, but the tasks are {'services' if config.served else 'compiled'}; use "
        f"{'chat or bare' if config.served else 'compact or ragen'}",
    )
    for index, task in enumerate(config.tasks):
        for name in ("items", "held_out"):
            value = getattr(task, name)
            need(
                config.served or not value,
                f"tasks.{index}.{name} is {value!r}, but {task.env} is no service; leave it out",
            )
            need(
                not config.served or bool(value),
                f"tasks.{index}.{name} is empty; name the items of {task.env}, e.g. 0-99, or an item file",
            )
        need(
            config.served or not task.validation,
            f"tasks.{index}.validation is {task.validation!r}, but {task.env} is no service; leave it out",
        )
        if config.served:
            need(
                bool(task.validation) == (config.train.validate_every > 0),
                f"tasks.{index}.validation is {task.validation!r} and train.validate_every is "
                f"{config.train.validate_every}; name items that are neither in items nor in held_out, or set "
                "train.validate_every to 0 and name none",
            )
            need(
                bool(config.env.url) or task.env in TEXT_SERVICES,
                f"tasks.{index}.env is {task.env}, which is compiled, beside services; give a batch either, or env.url",
            )
            need(
                not task.levels and not task.options,
                f"tasks.{index} has levels or options, which services do not know; use items and held_out",
            )
    need(
        not config.env.token_file or config.env.url not in ("", "local"),
        f"env.token_file is {config.env.token_file!r}, which is for a server that is there already; the run draws a "
        "token for a server of its own, so leave it out or give env.url",
    )
    need(
        not config.served or config.prompt.encoder == "pieces",
        "prompt.encoder is canonical, but services write any text, of which the tokenizer is asked by itself; use "
        "pieces",
    )
    need(
        not config.served or not config.prompt.stop_at_answer,
        "prompt.stop_at_answer is true, but replies to services have no answer block; use false",
    )
    need(
        not config.served or config.algo.dynamic_sampling == 1,
        f"algo.dynamic_sampling is {config.algo.dynamic_sampling}, but services play one round of episodes; use 1",
    )


def _check_rule(config: Config, need: Need) -> None:
    algo, members, turns = config.algo, config.rollout.members, config.prompt.max_turns
    advantage, kl, kept, horizon = algo.advantage, algo.kl, algo.filter, algo.horizon
    this = f"algo.advantage is {advantage.kind}"
    need(
        not advantage.per_group or members > 1,
        f"{this}, which compares the members of a group, but rollout.members is 1; use at least 2 members or "
        "algo.advantage gae",
    )
    method = advantage.reward_normalization
    need(
        method == "identity" or getattr(advantage, "reward_grouping", "") != "state" or members > 1,
        f"algo.advantage.reward_normalization is {method}, which compares the members of a group, but rollout.members "
        "is 1; use at least 2 members, or identity",
    )
    need(
        not advantage.spread_weighted or (members > 1 and algo.filter_members != 1),
        "algo.advantage.spread_weighted is true, but groups of one have no spread; use at least 2 rollout.members (and "
        "algo.filter_members), or false",
    )
    need(
        algo.overlong_buffer > 0.0 or algo.overlong_penalty == AlgoConfig().overlong_penalty,
        f"algo.overlong_penalty is {algo.overlong_penalty:g}, which algo.overlong_buffer 0 does not read; leave it out",
    )
    if turns == 1:
        _check_single_turn(config, need)
    need(
        kept.kind == "none" or members > 1 or kept.by not in ("std", "entropy_std"),
        f"algo.filter is {kept.kind} by {getattr(kept, 'by', '')}, which ranks groups by the spread of their members, "
        "but rollout.members is 1; use at least 2 members or algo.filter none",
    )
    need(
        kept.kind in ("none", "fraction") or config.train.max_bad_updates > 1,
        f"algo.filter is {kept.kind}, which may keep nothing, and that counts as a skipped update, but "
        "train.max_bad_updates is 1, so that the run would stop; raise it",
    )
    least = 2 if advantage.per_group else 1
    need(
        algo.filter_members == 0 or least <= algo.filter_members < members,
        f"algo.filter_members is {algo.filter_members}; expected at least {least} and fewer than rollout.members = "
        f"{members}, or 0 for all",
    )
    rounds = f"algo.dynamic_sampling is {algo.dynamic_sampling}"
    need(
        algo.dynamic_sampling == 1 or members > 1,
        f"{rounds}, which resamples groups without a spread of returns, but rollout.members is 1; use at least 2 "
        "members, or 1",
    )
    need(
        algo.dynamic_sampling == 1 or algo.mismatch.kind != "replay",
        f"{rounds}, which puts groups of several rollouts side by side, but algo.mismatch replay replays one; use 1, "
        "or algo.mismatch none",
    )
    need(
        algo.objective.kind != "policy_gradient"
        or algo.mismatch != NoCorrection(ratio_from="rollout")
        or kl.apply_to == "reward",
        "algo.mismatch.ratio_from is rollout, from which ratios start, but algo.objective policy_gradient has none; "
        "use learner",
    )
    if kl.kind != "none":
        need(
            kl.coef > 0.0 or "kl_coef" in algo.schedules,
            f"algo.kl.coef is {kl.coef:g} and stays so, so that it has no effect; set it above 0, or use algo.kl none",
        )
        need(
            kl.apply_to != "reward" or not advantage.per_episode,
            f"algo.kl.apply_to is reward, but algo.advantage {advantage.kind} compares returns and would not see it; "
            "use loss, or algo.advantage gae or reward_to_go",
        )
    if kl.kind == "adaptive":
        episodes = members * sum(task.groups for task in config.tasks)
        need(
            "kl_coef" not in algo.schedules,
            "algo.kl is adaptive, which moves algo.kl.coef, and algo.schedules.kl_coef moves it too; leave one of them "
            "out",
        )
        need(
            episodes < 5 * kl.horizon,
            f"algo.kl.horizon is {kl.horizon:g} for {episodes} episodes an iteration, so that one step could turn the "
            f"coefficient negative; use more than {episodes / 5:g}",
        )
    if horizon.kind != "fixed":
        given = f"algo.horizon.turns is {list(horizon.turns)}"
        need(
            horizon.turns[-1] <= turns,
            f"{given}; expected at most prompt.max_turns = {turns}: raise that, or lower these",
        )
        need(
            horizon.turns != (turns,),
            f"{given}, which is prompt.max_turns from the start, as with algo.horizon fixed; use that, or give a "
            "smaller number of turns",
        )
    _check_schedules(config, need)


def _check_single_turn(config: Config, need: Need) -> None:
    """Refuses what tells the turns of an episode apart where there is one."""
    advantage = config.algo.advantage
    need(
        advantage.reward_placement == "episode",
        "algo.advantage.reward_placement is turn, which prompt.max_turns 1 does not read; leave it at episode",
    )
    need(
        advantage.kind != "bi_level_gae",
        "algo.advantage is bi_level_gae, which is gae where prompt.max_turns is 1; use gae, or more turns",
    )
    for name in ("turn_gamma", "history"):
        value = getattr(advantage, name, None)
        usual = type(advantage).model_fields[name].default if value is not None else None
        need(
            value == usual,
            f"algo.advantage.{name} is {value}, which prompt.max_turns 1 does not read; leave it at {usual}",
        )
    need(
        config.rollout.context == "full",
        f"rollout.context is {config.rollout.context}, but prompt.max_turns is 1, so that nothing is left out of the "
        "context; use full, or more turns",
    )


_RANGES = {"clip_low": (0.0, 1.0), "format_penalty": (float("-inf"), 0.0), "temperature": (1e-6, float("inf"))}
"""Where a value that moves has to end; the others anywhere from 0."""


def _check_schedules(config: Config, need: Need) -> None:
    algo = config.algo
    starts = algo.starts()
    starts |= {"temperature": config.rollout.temperature, "format_penalty": config.prompt.format_penalty}
    for name, schedule in algo.schedules.items():
        given = f"algo.schedules.{name}.end is {schedule.end:g}"
        need(
            name in starts,
            f"{given}, but algo.advantage {algo.advantage.kind}, algo.objective {algo.objective.kind} and algo.kl "
            f"{algo.kl.kind} do not read {name}; leave it out",
        )
        low, high = _RANGES.get(name, (0.0, float("inf")))
        need(
            schedule.end != starts[name],
            f"{given}, where {name} starts from, so that nothing moves; give another end, or leave it out",
        )
        need(low <= schedule.end <= high, f"{given}; expected {low:g} to {high:g}")
