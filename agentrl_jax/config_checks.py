"""Checks of a configuration that concern several fields at once."""

import os
from collections.abc import Callable

from agentrl_jax.algos.filters import kept_groups
from agentrl_jax.config_tree import Config, ModelConfig
from agentrl_jax.errors import MAX_FOREIGN, UserError, shortened
from agentrl_jax.rates import has_critic
from agentrl_jax.rule_checks import check_rule
from agentrl_jax.services.catalogue import TEXT_SERVICES
from agentrl_jax.size_checks import check_sizes

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
    kept = kept_groups(groups, algo.filter_ratio) if algo.filter_rule == "fraction" else groups
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
    check_rule(config, need)
    need(
        kept >= 1,
        f"algo.filter_ratio {algo.filter_ratio:g} of {groups} groups keeps none; raise the ratio to at least "
        f"{1 / groups:g} or give the tasks more groups",
    )
    need(
        rows % parts == 0,
        f"algo.minibatches x algo.accumulation is {parts}, which does not divide the {rows} rows kept for training "
        f"({kept} of {groups} groups x {rollout.members} members"
        f"{' x prompt.max_turns' if rollout.context == 'single_turn' else ''}); use a divisor",
    )
    need(
        config.optim.critic_lr is None or has_critic(config),
        f"optim.critic_lr is {config.optim.critic_lr}, but algo.advantage {algo.advantage} has no critic; leave it "
        "out, or use algo.advantage gae",
    )
    need(
        config.optim.decay == "matrices" or config.optim.weight_decay > 0.0,
        f"optim.decay is {config.optim.decay}, but optim.weight_decay is 0, so that nothing decays; leave optim.decay "
        "out, or set optim.weight_decay above 0",
    )
    warmup, iterations = config.train.critic_warmup, config.train.iterations
    need(
        warmup == 0 or has_critic(config),
        f"train.critic_warmup is {warmup}, but algo.advantage {algo.advantage} has no critic; use 0, or algo.advantage "
        "gae",
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
        algo.logprobs != "strict" or (tensor == 1 and config.mesh.rollout == "rows"),
        f"algo.logprobs is strict, but mesh.tensor is {tensor} and mesh.rollout {config.mesh.rollout}: learner and "
        "rollout would compute in different shapes; use 1 and rows, or algo.logprobs truncated",
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


def _check_services(config: Config, need: Callable[[bool, str], None]) -> None:
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
        "prompt.encoder is canonical, but services write any text, of which the tokeniser is asked by itself; use "
        "pieces",
    )
    need(
        not config.served or not config.prompt.stop_at_answer,
        "prompt.stop_at_answer is true, but replies to services have no answer block; use false",
    )
    need(
        not config.served or config.algo.max_rollouts == 1,
        f"algo.max_rollouts is {config.algo.max_rollouts}, but services play one round of episodes; use 1",
    )
