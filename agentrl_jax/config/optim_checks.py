"""Checks of an optimizer with the rest of a configuration."""

from collections.abc import Iterator
from typing import Any

from agentrl_jax.config.optim import OwnOptimizer
from agentrl_jax.config.schema import Config


def check_optimizer(config: Config) -> Iterator[tuple[str, Any, str]]:
    """Yields what an optimizer cannot be used with, as key, value and what to do."""
    optim, mesh = config.optim, config.mesh
    if not isinstance(optim, OwnOptimizer) and optim.decay != "matrices" and optim.weight_decay == 0.0:
        yield "optim.decay", optim.decay, "but optim.weight_decay is 0; set it above 0, or leave optim.decay out"
    if optim.warmup and optim.warmup_share:
        yield "optim.warmup_share", optim.warmup_share, f"but optim.warmup is {optim.warmup}; leave one of them out"
    for index, group in enumerate(optim.groups):
        key = f"optim.groups.{index}"
        if group.lr_factor == 1 and group.weight_decay is None:
            yield f"{key}.match", group.match, "but nothing is different there; give lr_factor or weight_decay"
        if group.weight_decay is not None and (isinstance(optim, OwnOptimizer) or not group.lr_factor):
            why = "which a function of the user does not read" if group.lr_factor else "but the parameters are frozen"
            yield f"{key}.weight_decay", group.weight_decay, f"{why}; leave it out"
    for axis in optim.whole:
        if (size := getattr(mesh, axis)) > 1:
            yield f"mesh.{axis}", size, f"but optim {optim.kind} needs whole matrices; use 1, or optim adamw"
    if optim.average_rate and not config.train.iterations:
        why = "but train.iterations is 0, and other stages average nothing; leave it out"
        yield "optim.average_rate", optim.average_rate, why
