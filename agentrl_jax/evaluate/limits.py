"""Other limits than those that a run was trained with."""

import dataclasses

from agentrl_jax.config import Config, TaskConfig
from envs_jax import registry


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of an evaluation; None keeps the run's."""

    turns: int | None = None
    """Turns of an episode."""
    tokens: int | None = None
    """Tokens of a response."""


def with_limits(config: Config, limits: Limits) -> Config:
    """A configuration of one task with other limits.

    With more turns the limit of actions grows in proportion, and the environment's own limit of steps grows to it;
    with fewer turns both stay. The prompt states limits that it would state in training.
    """
    prompt, (task,) = config.prompt, config.tasks
    if limits.tokens is not None:
        prompt = prompt.replace(max_response_tokens=limits.tokens)
    if limits.turns is not None:
        actions = max(prompt.max_actions, -(-prompt.max_actions * limits.turns // prompt.max_turns))
        prompt = prompt.replace(max_turns=limits.turns, max_actions=actions)
        task = config.kinds[0].with_steps(task, min(actions, limits.turns * prompt.max_actions_per_turn))
    return config.replace(prompt=prompt, tasks=(task,))


def with_steps(task: TaskConfig, needed: int) -> TaskConfig:
    """The task of a compiled environment, with at least so many steps unless its episodes are of one action."""
    _, params = registry.make(task.env, **task.options)
    if int(params.max_steps_in_episode) >= needed or registry.spec(task.env).max_actions == 1:
        return task
    return task.replace(options={**task.options, "max_steps_in_episode": needed})
