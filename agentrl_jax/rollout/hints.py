"""Privileged prompts: a hint for every episode, such as a plan, that a teacher reads behind the task's prefix.

Shapes: `E` episodes, `B` rows, `P` tokens of the longest prefix, `X` tokens of the longest hint, `O` tokens of a
message.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key

from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.envs.batched_env import Message
from agentrl_jax.rollout.recall import compact
from agentrl_jax.rollout.trajectory import EpisodeIds, Hints, Response, RolloutSettings, Trajectory, TurnResult
from agentrl_jax.text.grammar import GrammarTable, ParsedResponse


def with_hints(trajectory: Trajectory, hints: Hints) -> Trajectory:
    """The episodes with their hints in their prompts, which are X tokens wider; all else is the same."""
    prompt, length = trajectory.prompt, trajectory.prompt_length
    column, own = jnp.arange(prompt.shape[1]), jnp.arange(hints.tokens.shape[1])
    before, inside = column < hints.at[:, None], column < length[:, None]
    real = [before & inside, own < hints.length[:, None], ~before & inside]
    tokens = jnp.concatenate([prompt, hints.tokens, prompt], axis=1)
    width = prompt.shape[1] + hints.tokens.shape[1]
    wider = compact(tokens, jnp.concatenate(real, axis=1), width)
    return trajectory.replace(prompt=wider, prompt_length=length + hints.length)


@dataclasses.dataclass(frozen=True, eq=False)
class HintedEnv:
    """A `BatchedEnv` that shows the hints. The first message of an episode begins with its hint and the rest of the
    prefix, so that the policy reads the tokens of `with_hints`.

    For contexts that never restart, with a row for each of the E episodes.
    """

    env: Any
    """A `PromptedEnv`."""
    hints: Hints

    @property
    def _before(self) -> np.ndarray:
        """i32[K] tokens of each task's prefix before a hint, which all of its episodes share."""
        return self.env.hint_at

    @property
    def prefix(self) -> np.ndarray:
        """See `BatchedEnv.prefix`: what is before the hint."""
        longest = int(self._before.max())
        return np.where(np.arange(longest) < self._before[:, None], self.env.prefix[:, :longest], 0)

    @property
    def prefix_length(self) -> np.ndarray:
        """See `BatchedEnv.prefix_length`."""
        return self._before

    @property
    def grammars(self) -> tuple[GrammarTable, ...]:
        """See `BatchedEnv.grammars`."""
        return self.env.grammars

    @property
    def observation_tokens(self) -> int:
        """See `BatchedEnv.observation_tokens`."""
        rest = int((self.env.prefix_length - self._before).max())
        return self.hints.tokens.shape[1] + rest + self.env.observation_tokens

    def empty_result(self, batch: int) -> TurnResult:
        """See `BatchedEnv.empty_result`."""
        return self.env.empty_result(batch)

    def reset(
        self, key: Key[Array, ""], settings: RolloutSettings, ids: EpisodeIds, mask: Bool[Array, " B"] | None = None
    ) -> tuple[Any, Message]:
        """See `BatchedEnv.reset`.

        Raises:
            ValueError: the rows are not those of the hints.
        """
        if len(ids.task) != len(self.hints.length):
            raise BadValue.of("slots", len(ids.task), f"but {len(self.hints.length)} episodes have hints")
        state, message = self.env.reset(key, settings, ids, mask)
        prefix, length = jnp.asarray(self.env.prefix)[ids.task], jnp.asarray(self.env.prefix_length)[ids.task]
        column, own = jnp.arange(prefix.shape[1]), jnp.arange(self.hints.tokens.shape[1])
        real = [
            own < self.hints.length[:, None],
            (column >= jnp.asarray(self._before)[ids.task][:, None]) & (column < length[:, None]),
            jnp.arange(message.tokens.shape[1]) < message.length[:, None],
        ]
        tokens = jnp.concatenate([self.hints.tokens, prefix, message.tokens], axis=1)
        all_real = jnp.concatenate(real, axis=1)
        tokens = compact(tokens, all_real, self.observation_tokens)
        return state, message.replace(tokens=tokens, length=jnp.sum(all_real, axis=1, dtype=jnp.int32))

    def step(
        self,
        settings: RolloutSettings,
        state: Any,
        response: Response,
        parsed: ParsedResponse,
        mask: Bool[Array, " B"],
        *,
        fresh: bool = False,
    ) -> tuple[Any, TurnResult, Message]:
        """See `BatchedEnv.step`."""
        state, result, message = self.env.step(settings, state, response, parsed, mask, fresh=fresh)
        more = self.observation_tokens - message.tokens.shape[1]
        return state, result, message.replace(tokens=jnp.pad(message.tokens, ((0, 0), (0, more))))
