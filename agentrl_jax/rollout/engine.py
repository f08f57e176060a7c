"""The rollout engine: decoding, environment steps and prefill in one compiled program.

A slot is a row of the batch and plays one episode at a time; the result of an episode never depends on its slot or on
the other rows. Each row has its own turn and position, and it decodes a response, waits for an observation, or is idle.
One cycle of the loop decodes until a given share of the active rows waits, steps the environments of those rows, and
prefills their observations.

Shapes: `B` slots, `E` episodes, `T` turns, `O` observation tokens, `L` response tokens, `V` vocabulary.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from agentrl_jax.algos import masked
from agentrl_jax.errors import BadValue
from agentrl_jax.models import cached_decoder, decoder
from agentrl_jax.models.kv_cache import KVCache, SharedPrefix
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.rollout import parsing, rng
from agentrl_jax.rollout.contexts import ACT
from agentrl_jax.rollout.engine_config import EngineConfig
from agentrl_jax.rollout.envs.batched_env import BatchedEnv, Message
from agentrl_jax.rollout.envs.context_env import in_context
from agentrl_jax.rollout.given import GivenResponses
from agentrl_jax.rollout.prefill import empty_cache, prefill_by_parts, prefill_prefixes
from agentrl_jax.rollout.recall import compact, first_read, recalled_parts
from agentrl_jax.rollout.recording import empty_response, empty_trajectory, record_truncation, record_turn
from agentrl_jax.rollout.sampling import sample, score
from agentrl_jax.rollout.trajectory import TRUNCATIONS, EpisodeIds, Response, RolloutSettings, RolloutStats, Trajectory


def rollout(
    params: decoder.Params,
    model: DecoderConfig,
    batched_env: BatchedEnv,
    config: EngineConfig,
    key: Key[Array, ""],
    ids: EpisodeIds,
    settings: RolloutSettings,
    constrain_sharding: Callable[[Any], Any] = lambda state: state,
    *,
    responses: Response | None = None,
) -> tuple[Trajectory, RolloutStats]:
    """Plays E episodes with the policy `params`. A pure function, meant to be compiled as one program.

    `model`, `batched_env` and `config` are static; the arguments and the errors raised are those of `Engine`.
    `responses` [E, N] are taken instead of sampling. With fewer turns than an episode may have, later turns are
    sampled, and so are those whose response is empty; else nothing is.
    """
    joined = in_context(batched_env, config.context, config.max_turns)
    given = None if responses is None else GivenResponses.of(responses, config.max_turns)
    engine = Engine(params, model, joined, config, key, ids, settings, constrain_sharding, given)
    state = engine.run()
    trajectory = state.trajectory
    return trajectory, RolloutStats(
        decode_steps=state.decode_steps,
        sampled_tokens=jnp.sum(trajectory.response.length, dtype=jnp.int32),
        prefill_steps=state.prefill_steps,
        slot_steps=state.decode_steps * engine.slots,
        episodes=jnp.int32(engine.episodes),
        failed=jnp.sum(trajectory.failed, dtype=jnp.int32),
        solved=jnp.sum(trajectory.success & ~trajectory.failed, dtype=jnp.int32),
        environment_steps=jnp.sum(trajectory.turn.actions >= 0, dtype=jnp.int32),
        rounds=jnp.int32(1),
    )


class LoopState(struct.PyTreeNode):
    """State of the loop. The fields of an idle row do not change."""

    episode: Int[Array, " B"]
    """Row of the trajectory that the slot writes to; E when idle."""
    ids: EpisodeIds
    batched_env: Any
    """State of the environments."""
    sample_keys: Key[Array, " B"]
    """Keys from which the tokens of each row are sampled."""
    turn: Int[Array, " B"]
    """Turns finished, of all kinds."""
    acts: Int[Array, " B"]
    """Turns finished that acted."""
    position: Int[Array, " B"]
    """Tokens of the context so far."""
    active: Bool[Array, " B"]
    """The slot plays an episode."""
    waiting: Bool[Array, " B"]
    """The response is complete, and the environment has not been stepped yet."""
    response: Response
    """Being sampled."""
    parser: Any
    """State of the response grammar."""
    token: Int[Array, " B"]
    """The next token of the response, already sampled, so that no logits are carried through the loop."""
    logprob: Float[Array, " B"]
    """Its log-probability."""
    cache: KVCache
    message: Message
    """The observation that the response answers."""
    next_episode: Int[Array, ""]
    """First episode that no slot has started."""
    trajectory: Trajectory
    """The turns recorded so far."""
    decode_steps: Int[Array, ""]
    prefill_steps: Int[Array, ""]


@dataclasses.dataclass(eq=False)
class Engine:
    """The steps of the loop, over one set of arguments.

    Raises:
        ValueError: slots or episodes are not a multiple of the group size, or there are more slots than episodes.
    """

    params: decoder.Params
    model: DecoderConfig
    batched_env: BatchedEnv
    """Whose messages say how they join, see `ContextEnv`."""
    config: EngineConfig
    key: Key[Array, ""]
    """Key of this rollout."""
    ids: EpisodeIds
    """E episodes; with a group size above 1, rows of a group are contiguous."""
    settings: RolloutSettings
    constrain_sharding: Callable[[Any], Any] = lambda state: state
    """Annotates every new state for the devices: `Shards.varying` inside a checked `jax.shard_map`, where loops start
    from constants; the layout of the cache where the compiler shards it."""
    given: GivenResponses | None = None
    """Responses that are not sampled; each token is scored as if it had been."""
    prefixes: SharedPrefix | None = dataclasses.field(init=False)
    """Keys and values of the task prefixes, see `prefill_prefixes`."""
    stacked: decoder.Params = dataclasses.field(init=False)
    """The parameters from `cached_decoder.prepare_stacked`; `params` become those from `prepare_for_decode`."""

    def __post_init__(self):
        self.episodes, group_size = self.ids.group.shape[0], self.config.group_size
        self.slots = self.config.slots or self.episodes
        if self.slots % group_size or self.episodes % group_size:
            raise BadValue(
                f"{self.slots} slots and {self.episodes} episodes must both be multiples of the {group_size} members "
                "of a group",
                key="slots",
                value=self.slots,
            )
        if self.slots > self.episodes:
            raise BadValue(
                f"{self.slots} slots for {self.episodes} episodes: give at most one slot an episode",
                key="slots",
                value=self.slots,
            )
        # Turns beyond T would be played but not recorded.
        self.settings = self.settings.replace(horizon=jnp.minimum(self.settings.horizon, self.config.max_turns))
        # What is read once, before the loop, is compiled for one layer.
        self.stacked = cached_decoder.prepare_stacked(self.params, self.model)
        self.params = cached_decoder.prepare_for_decode(self.params, self.model)
        self.prefixes = prefill_prefixes(self.stacked, self.model, self.batched_env, self.ids.task)

    def run(self) -> LoopState:
        """Plays all episodes, and returns the final state."""
        constrain = self.constrain_sharding

        def cycle(state: LoopState) -> LoopState:
            state = jax.lax.while_loop(self.may_decode, lambda s: constrain(self.decode(s)), state)
            state, pending = self.step_environments(state)
            state = constrain(state)
            return jax.lax.cond(
                jnp.any(state.active), lambda s: constrain(self.prefill(s, pending)), lambda s: s, state
            )

        return jax.lax.while_loop(lambda state: jnp.any(state.active), cycle, constrain(self.start()))

    def start(self) -> LoopState:
        """Starts the first episodes, one per slot, and prefills their first observations, once per group."""
        slots, config = self.slots, self.config
        ids = jax.tree.map(lambda x: x[:slots], self.ids)
        batched_env, message = self.batched_env.reset(self.key, self.settings, ids)
        task, tokens, length = (x[:: config.group_size] for x in (ids.task, message.tokens, message.length))
        cache = empty_cache(self.model, self.batched_env, config, slots)
        # The other blocks stay empty, and need not be compiled.
        first = cache.first(task.shape[0], tokens.shape[1])
        logits, first = self._read(self.stacked, first, task, tokens, self._prefix_length(task), length, config.chunk)
        cache = cache.with_first(first, length, self._prefix_of(ids.task))
        logits = jnp.repeat(logits, config.group_size, axis=0)
        episode, sample_keys, zeros = jnp.arange(slots), rng.sample_key(self.key, ids), jnp.zeros(slots, jnp.int32)
        token, logprob = self._next_token(logits, episode, sample_keys, turn=zeros, number=zeros)
        return LoopState(
            episode=episode,
            ids=ids,
            batched_env=batched_env,
            sample_keys=sample_keys,
            turn=zeros,
            acts=zeros,
            position=self._prefix_length(ids.task) + message.length,
            active=jnp.broadcast_to(self.settings.horizon > 0, slots),
            waiting=jnp.zeros(slots, bool),
            response=self._empty_response,
            parser=parsing.start(self.batched_env.grammars, ids.task),
            token=token,
            logprob=logprob,
            cache=cache,
            message=message,
            next_episode=jnp.int32(slots),
            trajectory=empty_trajectory(self.batched_env, self.ids, config.bounds, config.max_response_tokens),
            decode_steps=jnp.int32(0),
            prefill_steps=jnp.int32(1),
        )

    def may_decode(self, state: LoopState) -> Bool[Array, ""]:
        """Whether some row is decoding, and fewer rows wait than `prefill_threshold` asks for."""
        waiting, threshold = jnp.sum(state.waiting), self.config.prefill_threshold * jnp.sum(state.active)
        return jnp.any(state.active & ~state.waiting) & (waiting < threshold)

    def decode(self, state: LoopState) -> LoopState:
        """Adds the sampled token to the response of every decoding row, runs the model on it, and samples the next."""
        config, grammars, table = self.config, self.batched_env.grammars, self._grammar(state.ids.task, state.message)
        decoding = state.active & ~state.waiting
        response, token = state.response, state.token
        is_stop = functools.reduce(operator.or_, (token == stop for stop in config.end_of_turn))

        appended = (jnp.arange(config.max_response_tokens) == response.length[:, None]) & decoding[:, None]
        response = Response(
            tokens=jnp.where(appended, token[:, None], response.tokens),
            logprob=jnp.where(appended, state.logprob[:, None], response.logprob),
            length=response.length + decoding,
            ended=response.ended | (decoding & is_stop),
        )
        parser = masked.where(decoding, parsing.advance(grammars, table, state.parser, token), state.parser)
        complete = response.ended | (response.length >= self._max_length(state))
        if config.stop_at_answer:
            complete |= parsing.closed(grammars, table, parser)
        elif any(grammar.stops for grammar in grammars):
            stops = jnp.array([grammar.stops for grammar in grammars])[table]
            complete |= stops & parsing.closed(grammars, table, parser)

        hidden, cache = cached_decoder.decode_with_cache(
            *(self.params, self.model, state.cache, token, state.position, state.response.length, decoding),
            self._prefix_of(state.ids.task),
            # After a barrier, all rows start their responses at once.
            lockstep=config.prefill_threshold == 1.0,
        )
        logits = decoder.logits(self.params, hidden)
        following = self._next_token(logits, state.episode, state.sample_keys, state.turn, response.length)
        token, logprob = masked.where(decoding, following, (token, state.logprob))
        return state.replace(
            response=response,
            parser=parser,
            waiting=state.waiting | (decoding & complete),
            token=token,
            logprob=logprob,
            cache=cache,
            position=state.position + decoding,
            decode_steps=state.decode_steps + 1,
        )

    def _next_token(
        self,
        logits: Float[Array, "B V"],
        episode: Int[Array, " B"],
        sample_keys: Key[Array, " B"],
        turn: Int[Array, " B"],
        number: Int[Array, " B"],
    ) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
        """Token `number` of each row's response, and its log-probability."""
        temperature = self.settings.temperature[jnp.minimum(episode, self.settings.temperature.shape[0] - 1)]
        found, given = None, self.given
        if given is not None:
            token = given.token(episode, turn, number)
            found = token, score(logits, temperature, token)
            if given.all_turns:
                return found
        sampled = sample(rng.token_key(sample_keys, turn, number), logits, temperature)
        return sampled if given is None else masked.where(given.includes(episode, turn), found, sampled)

    def _max_length(self, state: LoopState) -> Int[Array, " B"] | int:
        """The length at which a response is complete."""
        longest, notes = self.config.max_response_tokens, self.config.context.notes
        limits = jnp.array([longest, *(note.max_tokens for note in notes)])
        most, given = limits[state.message.join.kind] if notes else longest, self.given
        if given is None:
            return most
        turn = state.episode, state.turn
        return given.length(*turn) if given.all_turns else jnp.where(given.includes(*turn), given.length(*turn), most)

    def step_environments(self, state: LoopState) -> tuple[LoopState, Bool[Array, " B"]]:
        """Steps the environments of the waiting rows, records their turns, and refills free slots with new episodes.

        Returns the state, and the rows whose message has to be prefilled next.
        """
        stepped, kind = state.waiting, state.message.join.kind
        table = self._grammar(state.ids.task, state.message)
        parsed = parsing.result(self.batched_env.grammars, table, state.parser)
        batched_env, result, message = self.batched_env.step(
            self.settings, state.batched_env, state.response, parsed, stepped
        )
        turn, acts = state.turn + stepped, state.acts + (stepped & (kind == ACT))
        trajectory = record_turn(
            state.trajectory, state.episode, state.turn, state.message, state.response, result, stepped
        )
        over = stepped & (
            result.terminated | result.truncated | result.failed | (acts >= self.settings.turns_of(state.ids.task))
        )
        full = jnp.zeros_like(over)
        if self.config.context_tokens:
            full = stepped & ~over & self._is_full(state, trajectory, message)
            at = jnp.where(full, state.episode, self.episodes), state.turn
            recorded = trajectory.turn.replace(truncated=trajectory.turn.truncated.at[at].set(True, mode="drop"))
            trajectory = trajectory.replace(turn=recorded)
        causes = [TRUNCATIONS.index("actions"), TRUNCATIONS.index("context")]
        cause = 1 + jnp.select([result.truncated, full], causes, TRUNCATIONS.index("turns"))
        over |= full
        truncated = over & ~result.terminated & ~result.failed
        trajectory = record_truncation(trajectory, state.episode, message, cause, truncated)
        continuing = stepped & ~over
        state = state.replace(
            batched_env=batched_env,
            trajectory=trajectory,
            turn=turn,
            acts=acts,
            message=masked.where(continuing, message, state.message),
            active=state.active & ~over,
            waiting=jnp.zeros_like(stepped),
        )
        if self.slots == self.episodes:
            return state, continuing
        state, refilled = self._refill(state, over)
        return state, continuing | refilled

    def _is_full(self, state: LoopState, trajectory: Trajectory, message: Message) -> Bool[Array, " B"]:
        """Whether the context may have no room for a response after this message."""
        start = jnp.where(message.join.restart, self._prefix_length(state.ids.task), state.position)
        length = self._to_read(trajectory, state.episode, message)[1]
        return start + length + self.config.max_response_tokens > self.config.context_tokens

    def _to_read(
        self, trajectory: Trajectory, episode: Int[Array, " B"], message: Message
    ) -> tuple[Int[Array, "B S"], Int[Array, " B"]]:
        """What is read before the next response: messages, after the parts that they recall; and the lengths."""
        bounds = self.config.bounds
        if bounds.never_restarts or self.config.context.fresh:
            return message.tokens, message.length
        column = jnp.arange(message.tokens.shape[1])
        tokens = message.tokens
        real = (first_read(message.join)[:, None] <= column) & (column < message.length[:, None])
        if message.join.recall is not None:
            parts = recalled_parts(trajectory, episode, message.join)
            tokens, real = (
                jnp.concatenate([x.reshape(len(episode), -1), y], axis=1) for x, y in zip(parts, (tokens, real))
            )
        room = (bounds.longest - 1) * self.config.max_response_tokens + bounds.longest * message.tokens.shape[1]
        return compact(tokens, real, room), jnp.sum(real, axis=1, dtype=jnp.int32)

    def _refill(self, state: LoopState, over: Bool[Array, " B"]) -> tuple[LoopState, Bool[Array, " B"]]:
        """Starts the next episodes in the slots whose episode is over, in the order of the slots."""
        candidate = state.next_episode + jnp.cumsum(over, dtype=jnp.int32) - 1
        refilled = over & (candidate < self.episodes)
        episode = jnp.minimum(candidate, self.episodes - 1)

        def begin(state: LoopState) -> LoopState:
            ids = masked.where(refilled, jax.tree.map(lambda x: x[episode], self.ids), state.ids)
            batched_env, message = self.batched_env.reset(self.key, self.settings, ids, refilled)
            state = state.replace(
                ids=ids,
                batched_env=masked.where(refilled, batched_env, state.batched_env),
                message=masked.where(refilled, message, state.message),
                sample_keys=masked.where(refilled, rng.sample_key(self.key, ids), state.sample_keys),
                turn=jnp.where(refilled, 0, state.turn),
                acts=jnp.where(refilled, 0, state.acts),
                position=jnp.where(refilled, self._prefix_length(ids.task), state.position),
                response=masked.where(refilled, self._empty_response, state.response),
            )
            return self.constrain_sharding(state)

        state = jax.lax.cond(jnp.any(refilled), begin, lambda s: s, state)
        return state.replace(
            episode=jnp.where(over, jnp.where(refilled, episode, self.episodes), state.episode),
            active=state.active | refilled,
            next_episode=state.next_episode + jnp.sum(refilled, dtype=jnp.int32),
        ), refilled

    def prefill(self, state: LoopState, pending: Bool[Array, " B"]) -> LoopState:
        """Runs the model on the observations of the `pending` rows and starts their responses."""
        start, cache, prefix = state.position, state.cache, self._prefix_length(state.ids.task)
        bounds, restart = self.config.bounds, pending & state.message.join.restart
        if not bounds.never_restarts:
            start = jnp.where(restart, prefix, start)
        if not bounds.always_restarts:
            answered = jnp.where(pending & ~restart, state.response.length, 0)
            cache = cache.store_responses(start - answered - prefix - cache.opening_length, answered)
        tokens, length = self._to_read(state.trajectory, state.episode, state.message)
        length = jnp.where(pending, length, 0)
        # What is read again is as long as several messages, but few rows may read so much.
        chunk = self.config.chunk or state.message.tokens.shape[1]
        logits, cache = self._read(
            self.params, cache, state.ids.task, tokens, start, length, chunk, self.config.prefill_rows
        )
        table = self._grammar(state.ids.task, state.message)
        first = parsing.start(self.batched_env.grammars, table)
        opening = self._next_token(logits, state.episode, state.sample_keys, state.turn, jnp.zeros_like(state.turn))
        token, logprob = masked.where(pending, opening, (state.token, state.logprob))
        return state.replace(
            cache=cache,
            position=start + length,
            token=token,
            logprob=logprob,
            response=masked.where(pending, self._empty_response, state.response),
            parser=masked.where(pending, first, state.parser),
            prefill_steps=state.prefill_steps + 1,
        )

    def _read(
        self,
        params: decoder.Params,
        cache: KVCache,
        task: Int[Array, " B"],
        tokens: Int[Array, "B O"],
        start: Int[Array, " B"],
        length: Int[Array, " B"],
        chunk: int,
        at_once: int = 0,
    ) -> tuple[Float[Array, "B V"], KVCache]:
        """Logits after the first `length` tokens of each row, and the cache that includes these tokens."""
        last, cache = prefill_by_parts(
            *(params, self.model, cache, tokens, start, length, chunk, at_once), self._prefix_of(task)
        )
        return decoder.logits(params, last), cache

    def _prefix_of(self, task: Int[Array, " B"]) -> SharedPrefix | None:
        return self.prefixes and self.prefixes.replace(row=task)

    @property
    def _empty_response(self) -> Response:
        return empty_response(self.slots, self.config.max_response_tokens)

    def _grammar(self, task: Int[Array, " B"], message: Message) -> Int[Array, " B"]:
        """Which of the grammars the responses to messages have."""
        tasks = len(self.batched_env.grammars) - len(self.config.context.notes)
        kind = message.join.kind
        return jnp.where(kind == ACT, task, tasks - 1 + kind) if self.config.context.notes else task

    def _prefix_length(self, task: Int[Array, " B"]) -> Int[Array, " B"]:
        return jnp.asarray(self.batched_env.prefix_length)[task]
