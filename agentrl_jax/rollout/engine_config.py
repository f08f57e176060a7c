"""Static settings of a rollout (shapes and scheduling), and the context length that follows from them."""

import dataclasses

from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.contexts import Bounds, Context
from agentrl_jax.rollout.envs.batched_env import BatchedEnv


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Shapes and scheduling of a rollout, with the shapes of `rollout.engine`.

    Raises:
        ValueError: `prefill_threshold` is outside (0, 1], or `end_of_turn` is empty.
    """

    max_turns: int
    """Turns that act; with turns of other kinds, an episode may have more (`Bounds.turns`)."""
    max_response_tokens: int
    group_size: int
    """Episodes per group; their rows are contiguous and share the prefill of the first observation, and where the
    context is full, no slot is refilled and all rows are prefilled at once, its keys and values."""
    slots: int
    """B; 0 gives every episode its own slot; with fewer, slots are refilled as episodes end."""
    prefill_threshold: float
    """Share of the active rows that must wait before observations are prefilled; 1 is a barrier after every turn."""
    context: Context
    """The rule that says what is read before a response."""
    stop_at_answer: bool
    """End a turn when the answer closes, without waiting for an end-of-turn token."""
    end_of_turn: tuple[int, ...]
    """Ids of the stop tokens, at least one; sampling one of them ends the response."""
    chunk: int = 0
    """Observations are prefilled in chunks of this many tokens, until the longest is read; 0 for the full width O at
    once. Chunks avoid padding where observations differ much in length."""
    prefill_rows: int = 0
    """Observations after the first are prefilled for this many rows at a time, the longest first; 0 for all B at once.
    Parts avoid padding where few rows wait, or where observations differ much in length."""
    skips_blocks: bool = True
    """Whether the cache has a block for each turn, of which only those that some row has reached are read. On an
    accelerator the branches keep the next block from being fetched in advance; without them there are two blocks."""
    context_tokens: int = 0
    """Maximum tokens of a context; an episode whose next turn might need more is truncated. 0 for the longest context
    that can occur."""

    def __post_init__(self):
        if not 0 < self.prefill_threshold <= 1:
            raise BadValue(
                f"prefill_threshold {self.prefill_threshold} is not in (0, 1]; expected a share of the rows",
                key="prefill_threshold",
                value=self.prefill_threshold,
            )
        if not self.end_of_turn:
            raise BadValue("end_of_turn names no stop token; give at least one", key="end_of_turn")

    @property
    def bounds(self) -> Bounds:
        """Those of the context."""
        return self.context.bounds(self.context.turns_of(self.max_turns))


def cache_length(batched_env: BatchedEnv, config: EngineConfig) -> int:
    """Positions of the cache: the longest context that can occur.

    Raises:
        ValueError: the first turn alone does not fit into `config.context_tokens`.
    """
    prefix, turn = batched_env.prefix.shape[1], batched_env.observation_tokens + config.max_response_tokens
    longest = prefix + config.bounds.longest * turn
    if config.context_tokens and prefix + turn > config.context_tokens:
        raise BadValue.of(
            "context_tokens",
            config.context_tokens,
            f"expected at least {prefix + turn} for the prefix ({prefix}), an observation "
            f"({batched_env.observation_tokens}) and a response ({config.max_response_tokens})",
        )
    return min(longest, config.context_tokens or longest)


def stored_length(batched_env: BatchedEnv, config: EngineConfig) -> int:
    """Positions that a row stores beside its prefix and the response that it decodes.

    Raises:
        ValueError: as `cache_length`.
    """
    read = config.bounds.longest * (batched_env.observation_tokens + config.max_response_tokens)
    # The last response is followed by nothing; a row whose prefix is short may store more of a limited context.
    return min(read, cache_length(batched_env, config)) - config.max_response_tokens
