"""The rollout engine: decoding, environment steps and prefill in one compiled program.

Shapes: `B` slots, `E` episodes, `T` turns, `O` observation tokens, `L` response tokens, `V` vocabulary. A slot plays
one episode at a time; the result of an episode never depends on its slot or on the other rows. Each row has its own
turn, position and phase: it decodes a response, waits for an observation, or is idle. One cycle of the loop decodes
until a given share of the active rows waits, steps the environments of those rows, and prefills their observations.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from agentrl_jax.algos import masked
from agentrl_jax.models import decoder
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.rollout import parsing, rng
from agentrl_jax.rollout.engine_config import EngineConfig, cache_length
from agentrl_jax.rollout.envs.batched_env import BatchedEnv, Message
from agentrl_jax.rollout.prefill import chunked_prefill, prefill_prefixes, write_prefix
from agentrl_jax.rollout.recording import empty_response, empty_trajectory, record_truncation, record_turn
from agentrl_jax.rollout.sampling import sample, score
from agentrl_jax.rollout.trajectory import (
    TRUNCATIONS,
    EpisodeIds,
    Response,
    RolloutSettings,
    RolloutStats,
    Trajectory,
)


class LoopState(struct.PyTreeNode):
    """State of the loop. The fields of an idle row do not change.

    Attributes:
        episode: i32[B] row of the trajectory that the slot writes to; E when idle.
        ids: `EpisodeIds` of the slots, [B].
        batched_env: state of the environments.
        sample_keys: key[B] from which the tokens of each row are sampled.
        turn: i32[B] turns finished.
        position: i32[B] filled positions of the cache.
        active: bool[B] the slot plays an episode.
        waiting: bool[B] the response is complete and the environment has not answered yet.
        response: `Response` under construction.
        parser: state of the response grammar.
        logits: f32[B, V] of the next token.
        cache: `KVCache` of B rows.
        message: the observation that the next response answers.
        next_episode: i32[] first episode that no slot has started.
        trajectory: the turns recorded so far, [E, ...].
        stats: counters.
    """

    episode: jax.Array
    ids: EpisodeIds
    batched_env: Any
    sample_keys: jax.Array
    turn: jax.Array
    position: jax.Array
    active: jax.Array
    waiting: jax.Array
    response: Response
    parser: Any
    logits: jax.Array
    cache: decoder.KVCache
    message: Message
    next_episode: jax.Array
    trajectory: Trajectory
    stats: RolloutStats


def rollout(
    params: decoder.Params,
    model: DecoderConfig,
    batched_env: BatchedEnv,
    config: EngineConfig,
    key: jax.Array,
    ids: EpisodeIds,
    settings: RolloutSettings,
    constrain_sharding: Callable[[Any], Any] = lambda state: state,
) -> tuple[Trajectory, RolloutStats]:
    """Plays E episodes with the policy `params`. A pure function, meant to be compiled as a whole.

    Args:
        params: parameters of the policy.
        model: shape of the policy (static).
        batched_env: environments, prompts and grammars (static).
        config: shapes and scheduling (static).
        key: key of this rollout.
        ids: E episodes; with a group size above 1, rows of a group are contiguous.
        settings: traced settings.
        constrain_sharding: see `final_state`.

    Returns:
        The trajectory and counters.

    Raises:
        ValueError: slots or episodes are not a multiple of the group size, or there are more slots than episodes.
    """
    state = final_state(params, model, batched_env, config, key, ids, settings, constrain_sharding=constrain_sharding)
    trajectory = state.trajectory
    outcomes = {"failed": trajectory.failed, "solved": trajectory.success & ~trajectory.failed}
    stats = state.stats.replace(
        environment_steps=jnp.sum(trajectory.turn.actions >= 0, dtype=jnp.int32),
        **{name: jnp.sum(x, dtype=jnp.int32) for name, x in outcomes.items()},
    )
    return trajectory, stats


def final_state(
    params: decoder.Params,
    model: DecoderConfig,
    batched_env: BatchedEnv,
    config: EngineConfig,
    key: jax.Array,
    ids: EpisodeIds,
    settings: RolloutSettings,
    *,
    responses: Response | None = None,
    constrain_sharding: Callable[[Any], Any] = lambda state: state,
) -> LoopState:
    """Like `rollout`, but returns the final state of the loop.

    Args:
        params: parameters of the policy; this and the next arguments are those of `rollout`.
        model: shape of the policy.
        batched_env: environments, prompts and grammars.
        config: shapes and scheduling.
        key: key of this rollout.
        ids: E episodes.
        settings: traced settings.
        responses: [E, T] responses to use instead of sampling; each token is scored as if it had been sampled.
        constrain_sharding: annotates every new state for the devices: `Shards.varying` inside a checked
            `jax.shard_map`, where loops start from constants; the layout of the cache where the compiler shards it.
    """
    episodes = ids.group.shape[0]
    slots = config.slots or episodes
    if slots % config.group_size or episodes % config.group_size:
        raise ValueError(
            f"{slots} slots and {episodes} episodes must both be multiples of the {config.group_size} members of a "
            "group"
        )
    if slots > episodes:
        raise ValueError(f"{slots} slots for {episodes} episodes: give at most one slot an episode")
    # Turns beyond T would be played but not recorded.
    settings = settings.replace(horizon=jnp.minimum(settings.horizon, config.max_turns))
    layers = decoder.prepare_for_decode(params, model)
    opening = prefill_prefixes(layers, model, batched_env)
    engine = _Engine(layers, model, batched_env, config, key, ids, settings, responses, constrain_sharding, opening)

    def cycle(state: LoopState) -> LoopState:
        state = jax.lax.while_loop(engine.may_decode, lambda s: constrain_sharding(engine.decode(s)), state)
        state, pending = engine.interact(state)
        state = constrain_sharding(state)
        return jax.lax.cond(
            jnp.any(state.active), lambda s: constrain_sharding(engine.prefill(s, pending)), lambda s: s, state
        )

    return jax.lax.while_loop(lambda state: jnp.any(state.active), cycle, constrain_sharding(engine.start(slots)))


@dataclasses.dataclass(frozen=True, eq=False)
class _Engine:
    """The steps of the loop, over one set of arguments."""

    params: decoder.Params
    model: DecoderConfig
    batched_env: BatchedEnv
    config: EngineConfig
    key: jax.Array
    ids: EpisodeIds
    settings: RolloutSettings
    responses: Response | None
    constrain_sharding: Callable[[Any], Any]
    opening: decoder.KVCache
    """Keys and values of the task prefixes, see `prefill_prefixes`."""

    def start(self, slots: int) -> LoopState:
        """Starts the first `slots` episodes and prefills their first observations, once per group."""
        ids = jax.tree.map(lambda x: x[:slots], self.ids)
        batched_env, message = self.batched_env.reset(self.key, self.settings, ids)
        heads = slice(None, None, self.config.group_size)
        cache = decoder.init_cache(
            self.model, slots // self.config.group_size, cache_length(self.batched_env, self.config)
        )
        cache = write_prefix(cache, self.opening, ids.task[heads], jnp.ones(slots // self.config.group_size, bool))
        tokens, length = message.tokens[heads], message.length[heads]
        last, cache = self._read(cache, tokens, self._prefix_length(ids.task[heads]), length)
        logits = decoder.logits(self.params, last)
        logits, cache = jax.tree.map(lambda x: jnp.repeat(x, self.config.group_size, axis=0), (logits, cache))
        return LoopState(
            episode=jnp.arange(slots),
            ids=ids,
            batched_env=batched_env,
            sample_keys=rng.sample_key(self.key, ids),
            turn=jnp.zeros(slots, jnp.int32),
            position=self._prefix_length(ids.task) + message.length,
            active=jnp.broadcast_to(self.settings.horizon > 0, slots),
            waiting=jnp.zeros(slots, bool),
            response=empty_response(slots, self.config.max_response_tokens),
            parser=parsing.start(self.batched_env.grammars, ids.task),
            logits=logits,
            cache=cache,
            message=message,
            next_episode=jnp.int32(slots),
            trajectory=empty_trajectory(
                self.batched_env, self.ids, self.config.max_turns, self.config.max_response_tokens
            ),
            stats=_counters(self.ids.group.shape[0]),
        )

    def may_decode(self, state: LoopState) -> jax.Array:
        """bool[]: some row is decoding, and fewer rows wait than `prefill_threshold` asks for."""
        waiting = jnp.sum(state.waiting)
        return jnp.any(state.active & ~state.waiting) & (
            waiting < self.config.prefill_threshold * jnp.sum(state.active)
        )

    def decode(self, state: LoopState) -> LoopState:
        """Adds one token to the response of every decoding row, and runs the model on it."""
        config = self.config
        decoding = state.active & ~state.waiting
        response = state.response
        token, logprob, longest = self._next_token(state)

        here = (jnp.arange(config.max_response_tokens) == response.length[:, None]) & decoding[:, None]
        response = Response(
            tokens=jnp.where(here, token[:, None], response.tokens),
            logprob=jnp.where(here, logprob[:, None], response.logprob),
            length=response.length + decoding,
            ended=response.ended | (decoding & _is_one_of(token, config.end_of_turn)),
        )
        parser = masked.where(
            decoding, parsing.advance(self.batched_env.grammars, state.ids.task, state.parser, token), state.parser
        )
        complete = response.ended | (response.length >= longest)
        if config.stop_at_answer:
            complete |= parsing.closed(self.batched_env.grammars, state.ids.task, parser)

        hidden, cache = decoder.forward_with_cache(
            self.params, self.model, state.cache, token[:, None], state.position, decoding.astype(jnp.int32)
        )
        stats = state.stats
        return state.replace(
            response=response,
            parser=parser,
            waiting=state.waiting | (decoding & complete),
            logits=masked.where(decoding, decoder.logits(self.params, hidden[:, 0]), state.logits),
            cache=cache,
            position=state.position + decoding,
            stats=stats.replace(
                decode_steps=stats.decode_steps + 1,
                sampled_tokens=stats.sampled_tokens + jnp.sum(decoding, dtype=jnp.int32),
                slot_steps=stats.slot_steps + decoding.shape[0],
            ),
        )

    def _next_token(self, state: LoopState) -> tuple[jax.Array, jax.Array, jax.Array | int]:
        """Token and log-probability of each row, [B], and the length at which its response is complete."""
        temperature = self.settings.temperature[jnp.minimum(state.episode, self.settings.temperature.shape[0] - 1)]
        if self.responses is None:
            keys = rng.token_key(state.sample_keys, state.turn, state.response.length)
            return *sample(keys, state.logits, temperature), self.config.max_response_tokens
        given = jax.tree.map(lambda x: x.at[state.episode, state.turn].get(mode="clip"), self.responses)
        token = jnp.take_along_axis(given.tokens, state.response.length[:, None], axis=1, mode="clip")[:, 0]
        return token, score(state.logits, temperature, token), given.length

    def interact(self, state: LoopState) -> tuple[LoopState, jax.Array]:
        """Steps the environments of the waiting rows, records their turns, and refills free slots with new episodes.

        Returns:
            The state, and bool[B]: the rows whose message has to be prefilled next.
        """
        answered = state.waiting
        parsed = parsing.result(self.batched_env.grammars, state.ids.task, state.parser)
        batched_env, result, message = self.batched_env.step(
            self.settings,
            state.batched_env,
            state.response,
            parsed,
            answered,
            opens=self.config.context == "single_turn",
        )
        turn = state.turn + answered
        over = answered & (result.terminated | result.truncated | result.failed | (turn >= self.settings.horizon))
        full = answered & ~over & self._is_full(state, message)
        cause = 1 + jnp.select(
            [result.truncated, full], [TRUNCATIONS.index("actions"), TRUNCATIONS.index("context")], 0
        )
        result, over = result.replace(truncated=result.truncated | full), over | full
        trajectory = record_turn(
            state.trajectory, state.episode, state.turn, state.message, state.response, result, answered
        )
        truncated = over & ~result.terminated & ~result.failed
        trajectory = record_truncation(trajectory, state.episode, message, cause, truncated)
        continuing = answered & ~over
        state = state.replace(
            batched_env=batched_env,
            trajectory=trajectory,
            turn=turn,
            message=masked.where(continuing, message, state.message),
            active=state.active & ~over,
            waiting=jnp.zeros_like(answered),
        )
        if state.episode.shape[0] == self.ids.group.shape[0]:
            return state, continuing
        state, refilled = self._refill(state, over)
        return state, continuing | refilled

    def _is_full(self, state: LoopState, message: Message) -> jax.Array:
        """bool[B]: after this message the context may have no room for a response."""
        if not self.config.context_tokens:
            return jnp.zeros_like(state.active)
        alone = self.config.context == "single_turn"
        start = self._prefix_length(state.ids.task) if alone else state.position
        return start + message.length + self.config.max_response_tokens > self.config.context_tokens

    def prefill(self, state: LoopState, pending: jax.Array) -> LoopState:
        """Runs the model on the observations of the rows in `pending` bool[B] and starts their responses."""
        start = state.position
        if self.config.context == "single_turn":
            start = jnp.where(pending, self._prefix_length(state.ids.task), start)
        length = jnp.where(pending, state.message.length, 0)
        last, cache = self._read(state.cache, state.message.tokens, start, length)
        return state.replace(
            cache=cache,
            position=start + length,
            logits=masked.where(pending, decoder.logits(self.params, last), state.logits),
            response=masked.where(
                pending, empty_response(pending.shape[0], self.config.max_response_tokens), state.response
            ),
            parser=masked.where(pending, parsing.start(self.batched_env.grammars, state.ids.task), state.parser),
            stats=state.stats.replace(prefill_steps=state.stats.prefill_steps + 1),
        )

    def _read(
        self, cache: decoder.KVCache, tokens: jax.Array, start: jax.Array, length: jax.Array
    ) -> tuple[jax.Array, decoder.KVCache]:
        """See `chunked_prefill`."""
        return chunked_prefill(self.params, self.model, cache, tokens, start, length, self.config.chunk)

    def _refill(self, state: LoopState, over: jax.Array) -> tuple[LoopState, jax.Array]:
        """Starts the next episodes in the slots whose episode is over, in the order of the slots."""
        total = self.ids.group.shape[0]
        candidate = state.next_episode + jnp.cumsum(over, dtype=jnp.int32) - 1
        refilled = over & (candidate < total)
        taken = jnp.minimum(candidate, total - 1)

        def take(state: LoopState) -> LoopState:
            ids = masked.where(refilled, jax.tree.map(lambda x: x[taken], self.ids), state.ids)
            batched_env, message = self.batched_env.reset(self.key, self.settings, ids, refilled)
            state = state.replace(
                ids=ids,
                batched_env=masked.where(refilled, batched_env, state.batched_env),
                message=masked.where(refilled, message, state.message),
                sample_keys=masked.where(refilled, rng.sample_key(self.key, ids), state.sample_keys),
                turn=jnp.where(refilled, 0, state.turn),
                position=jnp.where(refilled, self._prefix_length(ids.task), state.position),
                cache=write_prefix(state.cache, self.opening, ids.task, refilled),
            )
            return self.constrain_sharding(state)

        state = jax.lax.cond(jnp.any(refilled), take, lambda s: s, state)
        return state.replace(
            episode=jnp.where(over, jnp.where(refilled, taken, total), state.episode),
            active=state.active | refilled,
            next_episode=state.next_episode + jnp.sum(refilled, dtype=jnp.int32),
        ), refilled

    def _prefix_length(self, task: jax.Array) -> jax.Array:
        return jnp.asarray(self.batched_env.prefix_length)[task]


def _is_one_of(token: jax.Array, stops: tuple[int, ...]) -> jax.Array:
    """bool[B]: the token [B] is a stop token. One comparison per stop token, since there are few."""
    return functools.reduce(operator.or_, (token == stop for stop in stops))


def _counters(episodes: int) -> RolloutStats:
    """Counters after the first prefill; those that follow from the trajectory are filled in at the end."""
    counted = {field.name: 0 for field in dataclasses.fields(RolloutStats) if field.name != "measured"}
    counted |= {"prefill_steps": 1, "rounds": 1, "episodes": episodes}
    return RolloutStats(**{name: jnp.int32(value) for name, value in counted.items()})
