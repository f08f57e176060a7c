"""Retries: several attempts at a level, each after the sentence that the last one failed, within one conversation.

A retry reads the success signal of the environment, which says when to go on. Its success is therefore no avg@k or
pass@k. Beside it stands the cheapest control with the same number of attempts: samples without feedback, pass@k.

Shapes: `n` levels, `N` attempts, `k` samples.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from agentrl_jax.config import Config
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.evaluate.results import Played
from agentrl_jax.evaluate.statistics import (
    Clusters,
    cost_until_success,
    mean_interval,
    paired_interval,
    pass_at,
    success_interval,
)
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.envs.mixed_env import TaskEnv
from agentrl_jax.rollout.envs.retry import ATTEMPT, RetryEnv
from agentrl_jax.rollout.trajectory import TRUNCATIONS, Trajectory
from agentrl_jax.setup import build, build_inputs
from agentrl_jax.setup.policy import RunPolicy
from agentrl_jax.setup.programs import Programs, RolloutProgram
from agentrl_jax.text.pieces import PieceTable
from agentrl_jax.text.styles import FEEDBACK
from agentrl_jax.text.tokenizer import Tokenizer

MOST_ATTEMPTS = 64

READS_SUCCESS = (
    "A retry begins after a failure and reads the environment's success signal, so its success is not comparable with "
    "avg@k or pass@k of an agent without it"
)
NOTE = (
    f"{READS_SUCCESS}; pass@k here is as many attempts without feedback on the same levels. "
    "Tokens are sampled ones up to the first success."
)
"""Footnote of every table with retries."""


@dataclasses.dataclass(frozen=True)
class Retries:
    """What plays levels with retries."""

    program: RolloutProgram
    env: RetryEnv
    turns: Int[Array, ""]
    """Turns of all attempts."""
    attempts: int
    """N."""
    new_tokens: int | None
    """How many tokens of the feedback are in no prompt of the environment, so that a policy trained in it alone never
    read them; None if that is unknown, as for a pretrained model."""


class Attempts(NamedTuple):
    """What was reached and used within the first 1 to N attempts."""

    success: Bool[np.ndarray, "n N"]
    turns: Int[np.ndarray, "n N"]
    tokens: Int[np.ndarray, "n N"]
    """Sampled."""
    context_full: int
    """Levels whose last attempt was cut, and further ones left out, because the context was full."""


def load(config: Config, policy: RunPolicy, batched_env: TaskEnv, attempts: int) -> Retries:
    """The program that plays up to `attempts` attempts at a level of `batched_env`, the environment of `config`.

    Raises:
        UserError: the tokenizer cannot write the feedback, or the conversation of all attempts is too long.
    """
    name, turns = f"--attempts {attempts}", attempts * config.prompt.max_turns
    tokens = feedback_tokens(policy.tokenizer) if attempts > 1 else []
    of_task = cast(CompiledEnv | HostEnv, batched_env)  # an evaluation has one task
    with refusals(name):
        env = retry_env(of_task, config.prompt.max_turns, attempts)
        new = _new_tokens(tokens, batched_env) if attempts > 1 and not policy.pretrained else None
    engine = build_inputs.engine_config(config, policy.tokenizer, group_size=1, slots=0)
    engine = dataclasses.replace(engine, max_turns=turns)
    with refusals(name):
        try:
            build.check_positions(policy.pretrained, env, engine)
        except UserError as error:
            message = f"{name}, in one conversation: {error}; or make fewer attempts"
            raise UserError(message, key=error.key, value=error.value) from error
        program = Programs(make_mesh(1)).rollout("retry", policy.model, env, engine)
    return Retries(program, env, jnp.int32(turns), attempts, new)


def retry_env(batched_env: CompiledEnv | HostEnv, turns: int, attempts: int) -> RetryEnv:
    """An environment with up to `attempts` attempts of so many turns; one needs no feedback."""
    return RetryEnv(batched_env.for_retries() if attempts > 1 else batched_env, turns, attempts)


def feedback_tokens(tokenizer: Tokenizer) -> list[int]:
    """The tokens of the feedback; raises a `UserError` if the tokenizer cannot write it."""
    tokens = tokenizer.encode(FEEDBACK)
    if tokenizer.decode_bytes(tokens) != FEEDBACK.encode():
        raise UserError(
            f"--attempts: the tokenizer of this run writes {tokenizer.decode(tokens)!r} for the feedback {FEEDBACK!r}; "
            "expected the same text; leave it out, or give a run whose tokenizer has all letters",
            key="--attempts",
        )
    return tokens


def _new_tokens(tokens: Sequence[int], batched_env: TaskEnv) -> int | None:
    prompts = [task.prompt for task in batched_env.tasks]
    known: set[int] = set()
    for prompt in prompts:
        if not isinstance(prompt.table, PieceTable):  # texts of the host, or pieces that join other tokens
            return None
        known |= {*prompt.prefix.tolist(), *np.asarray(prompt.table.tokens).tolist()}
    return sum(token not in known for token in tokens)


def within(played: Trajectory, attempts: int) -> Attempts:
    """Sums up the episodes of n levels, played by `load`, by the number of attempts; leaves are NumPy arrays."""
    attempt = np.where(np.asarray(played.turn_mask), played.turn.info[ATTEMPT], attempts)
    counted = attempt[..., None] <= np.arange(attempts)
    return Attempts(
        success=np.any(counted & played.turn.success[..., None], axis=1),
        turns=counted.sum(axis=1),
        tokens=np.sum(counted * played.response.length[..., None], axis=1),
        context_full=int(np.sum(played.truncation == 1 + TRUNCATIONS.index("context"))),
    )


def evaluate(
    play: Callable[[float], Trajectory],
    temperature: float,
    retries: Retries,
    control: Played,
    attempts: Sequence[int],
    report: Callable[[str], None],
    *,
    clusters: Clusters = None,
) -> dict[str, Any]:
    """Plays all levels with retries, sampled at a temperature and greedily; the result is that of `rates`.

    `play` plays every level at a temperature, `control` are samples of the same levels, and `clusters` names the
    cluster of each.
    """
    report(f"up to {retries.attempts} attempts at each level, with feedback after a failure")
    if retries.new_tokens:
        report(
            f"{retries.new_tokens} tokens of the feedback are in no other prompt of this environment: a policy "
            "that was trained in it alone never read them"
        )
    sampled, greedy = (within(play(of), retries.attempts) for of in (temperature, 0.0))
    if sampled.context_full:
        report(f"{sampled.context_full} levels: the context was full before the last attempt was over")
    result = {"feedback": FEEDBACK, "new_tokens": retries.new_tokens, "context_full": sampled.context_full}
    return result | {"note": NOTE, "attempts": rates(sampled, greedy, control, attempts, clusters)}


def rates(
    sampled: Attempts, greedy: Attempts, control: Played, attempts: Sequence[int], clusters: Clusters = None
) -> dict[str, dict[str, Any]]:
    """Success and costs by the number of attempts, with levels as unit of the intervals.

    Each number has `retry` and `retry_greedy`, the success within so many attempts; `pass_at`, that of as many samples
    without feedback; `difference`, paired, of `retry` and `pass_at`; `retry_tokens` and `retry_turns` of the sampled
    agent; and `pass_at_tokens`, what its samples cost up to the first success.
    """
    rate, mean, difference = (
        functools.partial(interval, clusters=clusters)
        for interval in (success_interval, mean_interval, paired_interval)
    )
    points = {}
    for k in attempts:
        success, independent = sampled.success[:, k - 1], pass_at(control.success, k)
        points[str(k)] = {
            "retry": rate(success),
            "retry_greedy": rate(greedy.success[:, k - 1]),
            "pass_at": rate(independent),
            "difference": difference(success, independent),
            "retry_tokens": mean(sampled.tokens[:, k - 1]),
            "pass_at_tokens": mean(cost_until_success(control.success, control.tokens, k)),
            "retry_turns": mean(sampled.turns[:, k - 1]),
        }
    return points
