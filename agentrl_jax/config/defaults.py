"""Values that depend on the rest of a configuration and are filled in where none is given; never on the machine."""

import itertools

from agentrl_jax.config.rates import with_rates
from agentrl_jax.config.schema import Config
from agentrl_jax.config.tasks import TaskConfig

BUCKETS = 4
"""Default number of row lengths where rows differ; measured in docs/results/speed.md."""
LONG_RESPONSE = 128
"""From this number of tokens on, responses end after so different lengths that rows of one turn differ, too."""


def length_buckets(config: Config) -> int:
    """The number of row lengths that the learner is compiled for: that given, else by how much rows can differ.

    1 with one microbatch, which is as long as its longest row, and with packing, whose bins have one length. Otherwise
    rows differ where they hold several turns, of which an episode may play any number, where they hold texts of
    the host, or where responses can be long. Turns of compiled environments with short responses are nearly alike.
    """
    algo, prompt = config.algo, config.prompt
    if algo.length_buckets is not None:
        return algo.length_buckets
    if algo.packing or algo.grad_accum_steps == 1:
        return 1
    several_turns = config.agent.visible(prompt.max_turns) > 1
    return BUCKETS if several_turns or config.on_host or prompt.max_response_tokens >= LONG_RESPONSE else 1


def named(tasks: tuple[TaskConfig, ...]) -> tuple[TaskConfig, ...]:
    """The tasks, with the names NAME-2, NAME-3, ... where further ones of an environment have none."""
    taken, found = {task.name for task in tasks}, []
    for task in tasks:
        if not task.name and task.label in taken:
            names = (f"{task.label}-{n}" for n in itertools.count(2))
            task = task.replace(name=next(name for name in names if name not in taken))
        taken.add(task.label)
        found.append(task)
    return tuple(found)


def validate_every(config: Config) -> int:
    """`train.validate_every`; without levels for validations there are none, unless it is given."""
    given = "validate_every" in config.train.model_fields_set
    possible = any(task.validation or not kind.needs_items for task, kind in zip(config.tasks, config.kinds))
    return config.train.validate_every if given or possible else 0


def iterations(config: Config) -> int:
    """`train.iterations`; a run whose stages leave out rl has none, unless they are given."""
    without = bool(config.stages) and not any(stage.kind == "rl" for stage in config.stages)
    return 0 if without and "iterations" not in config.train.model_fields_set else config.train.iterations


def with_defaults(config: Config) -> Config:
    """The configuration with its learning rates, row lengths, names of tasks, iterations and validations filled in.

    A critic's rate is filled in only if there is one.
    """
    algo = config.algo.replace(length_buckets=length_buckets(config))
    train = config.train.replace(validate_every=validate_every(config), iterations=iterations(config))
    return with_rates(config).replace(algo=algo, tasks=named(config.tasks), train=train)
