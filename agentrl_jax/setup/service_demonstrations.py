"""Episodes of scripted policies in services, as trajectories to imitate."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from agentrl_jax.config import Config, PromptConfig
from agentrl_jax.config.one_task import alone
from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.packing import context_ends
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.services.environment import ScriptedPolicy
from agentrl_jax.services.environments.python import SEPARATOR
from agentrl_jax.services.shadow_env import NoisyOracle
from agentrl_jax.setup import build_inputs
from agentrl_jax.setup.agents import context_of
from agentrl_jax.setup.play_responses import play_responses
from agentrl_jax.setup.scripted_play import ScriptedEpisode, play_all
from agentrl_jax.setup.served_task import OPENINGS, ServedTask
from agentrl_jax.setup.service_tasks import Services
from agentrl_jax.text.grammar import ParsedResponse
from agentrl_jax.text.styles import get_style
from agentrl_jax.text.tokenizer import Tokenizer


def service_demonstrations(
    config: Config, services: Services, batched_env: HostEnv, tokenizer: Tokenizer, key: jax.Array
) -> tuple[Trajectory, Bool[Array, "E T"]]:
    """Plays `imitation.levels` training items of every task by a scripted policy, and records what a rollout would.

    Items are sampled without replacement; if there are fewer, all are played. Skipped are episodes of the oracle that
    do not solve their item within `prompt.max_turns`, and episodes with a response longer than
    `prompt.max_response_tokens`, a truncated observation, or more tokens than `rollout.context_tokens`.

    Also returns which turns are imitated: all but the random ones of `imitation.noise`.

    Raises:
        ValueError: a task has no oracle and needs one, or no episode is left.
    """
    turns, longest = config.prompt.max_turns, config.prompt.max_response_tokens
    episodes: list[tuple[int, int, np.ndarray, np.ndarray, np.ndarray]] = []
    for index, task in services.tasks.items():
        rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, index))))
        number, wanted = len(task.training), config.imitation.levels
        seeds = isinstance(task.training, range)  # of a Python environment, too many to be permuted
        rows = (rng.choice(number, wanted, replace=False) if seeds else rng.permutation(number)[:wanted]).tolist()
        own = alone(config, index)
        for row, episode in zip(rows, _play_items(own, task, list(map(task.training_item, rows)))):
            texts = [response_text(config.prompt, action) for action in episode.actions]
            responses = [[*tokenizer.encode(text), tokenizer.end_of_turn_id] for text in texts]
            imitable = episode.solved or config.imitation.plans == "random"
            if imitable and responses and max(map(len, responses)) <= longest:
                tokens, length = np.zeros((turns, longest), np.int32), np.zeros(turns, np.int32)
                for turn, ids in enumerate(responses):
                    tokens[turn, : len(ids)] = ids
                    length[turn] = len(ids)
                episodes.append((index, row, tokens, length, ~_is_random(config, episode.item)))
    if not episodes:
        raise BadValue.of(
            "imitation.levels",
            config.imitation.levels,
            f"but no episode of these items can be imitated: none is solved in {turns} turns with responses of "
            f"{longest} tokens; raise prompt.max_turns or prompt.max_response_tokens",
        )
    script = Script(*(np.array(column) for column in zip(*episodes)))
    trajectory = play_script(config, batched_env, key, script)
    kept = _complete(config, trajectory)
    return jax.device_put(jax.tree.map(lambda x: x[kept], (trajectory, script.imitated)))


class Script(NamedTuple):
    """Scripted responses of E episodes; `row` is that of the task's items."""

    task: Int[np.ndarray, " E"]
    row: Int[np.ndarray, " E"]
    tokens: Int[np.ndarray, "E T L"]
    length: Int[np.ndarray, "E T"]
    imitated: Bool[np.ndarray, "E T"]


def response_text(prompt: PromptConfig, action: str) -> str:
    """Returns a response with an action and no thought, without the text that is inserted before it.

    In an answer block stand the parts of an action of a Python environment.
    """
    if prompt.has_answer_block:
        space = " " if get_style(prompt.style).spaced else ""
        parts = [part.strip() for part in action.split(SEPARATOR)]
        thought = "<think></think>" if prompt.think else ""
        text = f"{thought}<answer>{f'{space}{prompt.separator}{space}'.join(parts)}</answer>"
        return text.removeprefix("<think>" if prompt.think else "<answer>") if prompt.forced_tag else text
    opening = "" if prompt.forced_tag else OPENINGS[prompt.think]
    return opening + (f"\n\n\nAction:\n{action}" if prompt.think else f" {action}")


def _play_items(config: Config, task: ServedTask, items: list[int]) -> list[ScriptedEpisode]:
    service, imitation, oracle = task.service, config.imitation, task.service.oracle
    if oracle is None and imitation.plans == "optimal" and not imitation.noise:
        raise BadValue(
            f"{task.config.label} has no oracle to imitate; use imitation.plans random, or imitation.levels 0",
            key=task.config.label,
        )

    def make_policy(item: int) -> ScriptedPolicy:
        if imitation.plans == "random":
            return service.random(item, config.seed + item)
        if imitation.noise or oracle is None:
            return NoisyOracle(service, item, _is_random(config, item), config.seed + item)
        return oracle(item)

    return play_all(task, make_policy, items, config)


def _is_random(config: Config, item: int) -> Bool[np.ndarray, " T"]:
    """In which turns of an item's demonstration the random policy acts."""
    return np.random.default_rng((config.seed, item)).random(config.prompt.max_turns) < config.imitation.noise


def play_script(config: Config, batched_env: HostEnv, key: jax.Array, script: Script) -> Trajectory:
    """Plays a script, with at most as many episodes at once as a rollout has; NumPy arrays [E, ...]."""
    count, turns = script.length.shape
    size = min(count, max(config.groups * config.rollout.group_size, config.train.validation_episodes))
    settings = build_inputs.rollout_settings(config, batched_env, size, 1.0)
    nothing = jnp.zeros((size, turns), jnp.int32)
    parsed = ParsedResponse(
        actions=nothing[..., None] - 1, num_valid=nothing, num_parsed=nothing, format_ok=nothing > 0
    )
    program = jax.jit(functools.partial(play_responses, batched_env, context=context_of(config)))
    chunks = []
    for first in range(0, count, size):
        chunk = Script(*(np.resize(x[first : first + size], (size, *x.shape[1:])) for x in script))
        number = np.arange(first, first + size)
        ids = build_inputs.episode_ids(group=number, member=np.zeros(size), task=chunk.task, level=chunk.row)
        played = program(key, settings, ids, jnp.asarray(chunk.tokens), jnp.asarray(chunk.length), parsed)
        chunks.append(jax.tree.map(np.asarray, played))
        batched_env.clear()
    return jax.tree.map(lambda *x: np.concatenate(x)[:count], *chunks)


def _complete(config: Config, trajectory: Trajectory) -> Int[np.ndarray, " kept"]:
    """Indices of the episodes without truncated text."""
    lost = int(np.sum(trajectory.failed))
    if lost:
        raise BadValue(
            f"{lost} of {len(trajectory.failed)} demonstrations failed in the service; try again",
            key="demonstrations",
            value=lost,
        )
    limit, context = config.rollout.context_tokens, context_of(config)
    fits = ~trajectory.overflow
    if limit and not context.fresh:
        fits &= jnp.max(context_ends(trajectory, context), axis=1) <= limit
    kept = np.flatnonzero(np.asarray(fits))
    if not kept.size:
        raise BadValue(
            "every episode has truncated text; raise env.observation_tokens or rollout.context_tokens",
            key="env.observation_tokens",
        )
    return kept
