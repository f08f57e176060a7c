"""Default learning rates, depending on what a run trains."""

from typing import NamedTuple

from agentrl_jax.config.schema import Config
from agentrl_jax.config.stages import DataStage


class Rates(NamedTuple):
    """Learning rates of policy and critic."""

    policy: float
    critic: float


def _defaults(config: Config) -> tuple[Rates, str]:
    """The default learning rates of a run, and what they are for, with their source."""
    factor, found = config.optim.lr_factor, (3e-4, 1e-3)
    what = "a small decoder from scratch (ours)"
    if config.model.lora.rank:
        found, what = (1e-5, 1e-4), "low-rank adapters (RAGEN, base-lora.yaml: ten times those of the whole model)"
    elif config.model.pretrained:
        found, what = (1e-6, 1e-5), "the weights of a pretrained model (RAGEN, base.yaml; verl's examples)"
    if factor != 1:
        what += f", times {factor:g} for {config.optim.kind}"
    return Rates(*(factor * rate for rate in found)), what


def rates(config: Config) -> Rates:
    """The learning rates of a run: those given, else the defaults; 0 for the critic if there is none."""
    default, _ = _defaults(config)
    lr, critic_lr = config.optim.lr, config.optim.critic_lr
    critic = default.critic if critic_lr is None else critic_lr
    return Rates(default.policy if lr is None else lr, critic if config.algo.advantage.has_critic else 0.0)


def with_rates(config: Config) -> Config:
    """The configuration with its learning rates filled in; that of the critic stays None if there is no critic."""
    chosen, critic_lr = rates(config), config.optim.critic_lr
    if config.algo.advantage.has_critic:
        critic_lr = chosen.critic
    factor = config.optim.lr_factor
    usual = factor * (1e-4 if config.model.lora.rank else 1e-5 if config.model.pretrained else 3e-4)
    stages = tuple(
        stage.replace(lr=usual / stage.slower) if isinstance(stage, DataStage) and stage.lr is None else stage
        for stage in config.stages
    )
    imitation, optim = config.imitation, config.optim.replace(lr=chosen.policy, critic_lr=critic_lr)
    if factor != 1 and "lr" not in imitation.model_fields_set:
        imitation = imitation.replace(lr=factor * imitation.lr)
    return config.replace(optim=optim, imitation=imitation, stages=stages)


def note(config: Config) -> str:
    """One line for the start of a run: its learning rates, and whether they are the defaults."""
    chosen, (default, why) = rates(config), _defaults(config)
    keys = ["lr", "critic_lr"] if config.algo.advantage.has_critic else ["lr"]
    parts = [
        f"optim.{key} {value:g} ({'the default' if value == usual else f'given; the default is {usual:g}'})"
        for key, value, usual in zip(keys, chosen, default)
    ]
    return f"{', '.join(parts)} for {why}"
