"""Host environments in which a failed episode begins again with the same seed, with feedback."""

import dataclasses
import threading
from collections.abc import Callable, Sequence

from agentrl_jax.environments import HostEnvironment, HostStep
from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.envs.host_environment import HostTask
from agentrl_jax.rollout.envs.retry import ATTEMPT
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


class RetriedEnvironment:
    """Up to `attempts` episodes with one seed, as one `HostEnvironment`, which is over after the first that is solved.

    Each attempt is played in a new environment and may have `turns` turns. Limits of actions are those of the
    whole. Random transitions follow from the seed, so they are the same in every attempt. An episode whose last attempt
    plays all its turns after shorter attempts is truncated.
    """

    def __init__(self, make: Callable[[], HostEnvironment], turns: int, attempts: int):
        """Makes the first environment, without starting it."""
        self._make, self._turns, self._attempts = make, turns, attempts
        self._env = make()
        self._seed, self._first = 0, ""
        self._turn = self._attempt = self._played = 0
        self._solved = False
        self._lock, self._closed = threading.Lock(), False

    def reset(self, seed: int) -> str:
        """See `HostEnvironment`."""
        self._seed, self._first = seed, self._env.reset(seed)
        return self._first

    def step(self, response: str, actions: Sequence[str]) -> HostStep:
        """See `HostEnvironment`; raises a `ValueError` if the next attempt does not begin as the first one did."""
        step = self._env.step(response, actions)
        self._turn, self._played = self._turn + 1, self._played + 1
        self._solved = self._solved or step.success
        step = dataclasses.replace(step, info={**step.info, ATTEMPT: float(self._attempt)})
        over = step.terminated or step.truncated or self._turn >= self._turns
        if over and not self._solved and self._attempt + 1 < self._attempts:
            observation = retry_observation(step.observation, self._begin_again())
            return dataclasses.replace(step, observation=observation, terminated=False, truncated=False)
        # The engine itself ends an episode at its horizon.
        ended = over and not step.terminated and self._played < self._turns * self._attempts
        return dataclasses.replace(step, truncated=step.truncated or ended)

    def content(self, seed: int) -> str:
        """See `HostTask.has_content`."""
        content: str = self._env.content(seed)  # type: ignore[attr-defined]
        return content

    def close(self) -> None:
        """See `HostEnvironment`."""
        with self._lock:
            self._closed, env = True, self._env
        env.close()

    def _begin_again(self) -> str:
        env = self._make()
        with self._lock:
            closed, before = self._closed, self._env
            self._env = before if closed else env
        (env if closed else before).close()
        if closed:
            raise TimeoutError("nobody waits for this environment any more")
        check_same_start(self._first, env.reset(self._seed))
        self._turn, self._attempt = 0, self._attempt + 1
        return self._first


def with_retries(task: HostTask, tokenizer: Tokenizer, *, turns: int, attempts: int) -> HostTask:
    """The task with up to `attempts` attempts of `turns` turns each, numbered from 0 by the information `ATTEMPT`.

    `tokenizer` is that of the task. An observation may have as many tokens as two of the task and the feedback. With
    one attempt, episodes are those of the task.
    """
    more = 0
    if attempts > 1:
        more = len(tokenizer.encode(retry_observation(" ", ""))) + task.observation_tokens
    return dataclasses.replace(
        task,
        make=lambda: RetriedEnvironment(task.make, turns, attempts),
        observation_tokens=task.observation_tokens + more,
        prompt=task.prompt.replace(max_message_tokens=task.prompt.max_message_tokens + more),
        info_keys=(*task.info_keys, ATTEMPT),
    )
