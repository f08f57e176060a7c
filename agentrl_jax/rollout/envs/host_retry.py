"""What an agent reads where an environment on the host begins again with the same seed."""

import dataclasses

from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.envs.host_environment import HostTask
from agentrl_jax.text.styles import FEEDBACK
from agentrl_jax.text.tokenizer import Tokenizer


def retry_observation(last: str, first: str) -> str:
    """What an agent reads at the beginning of a retry: the last answer, the feedback, and the first observation."""
    between = "\n" if last and not last.endswith("\n") else ""
    return last + between + FEEDBACK + first


def check_same_start(before: str, again: str) -> None:
    """Raises a `ValueError` if an environment that begins again shows something else first than before."""
    if again != before:
        raise BadValue(
            f"the environment began again with {again!r}, not with {before!r} as before; a retry needs the same start: "
            "leave out --attempts",
            key="environment",
            value=again,
        )


def with_room(task: HostTask, tokenizer: Tokenizer) -> HostTask:
    """The task, whose observations may have as many tokens as two of them and the feedback; `tokenizer` is its own."""
    more = len(tokenizer.encode(retry_observation(" ", ""))) + task.observation_tokens
    return dataclasses.replace(
        task,
        observation_tokens=task.observation_tokens + more,
        prompt=task.prompt.replace(max_message_tokens=task.prompt.max_message_tokens + more),
    )
