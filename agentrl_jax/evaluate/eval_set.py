"""Held-out evaluation: the same levels for every policy, one episode per level."""

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from agentrl_jax.config import Config, TaskConfig
from agentrl_jax.config.checks import check_sizes
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.evaluate.baselines import success_intervals
from agentrl_jax.evaluate.level_set import LevelSet, level_set
from agentrl_jax.evaluate.seen import learned_levels, seen_levels
from agentrl_jax.evaluate.statistics import mean_interval, pass_all, pass_at, success_interval
from agentrl_jax.parallel import hosts
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.trajectory import RolloutSettings, Trajectory, level_ids
from agentrl_jax.runs.records import read_rows
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.setup import build
from agentrl_jax.setup.policy import RunPolicy, load_policy
from agentrl_jax.setup.programs import Programs, RolloutProgram
from agentrl_jax.setup.service_tasks import Services, batched_envs
from envs_jax import registry
from envs_jax.splits import MAX_LEVEL_TRIES

ATTEMPTS = 3
"""How often a held-out episode is attempted if its environment fails."""

STRICT = "strict_success"
"""Name of the environment information that is true where a stricter rule than that of success is fulfilled."""

Params = dict[str, Any]
"""Parameters of a policy, as `TrainState.merged_params` returns them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalSet(LevelSet):
    """Levels of one task, and the program that plays them."""

    program: RolloutProgram
    """Rollout of `chunk` episodes with group size 1."""
    chunk: int
    settings: RolloutSettings
    """Settings of a rollout; `settings_at` replaces split and temperature."""

    def settings_at(self, temperature: float) -> RolloutSettings:
        """Settings of one dispatch."""
        split = jnp.asarray(self.levels.split(self.split), jnp.int32)
        return self.settings.replace(temperature=jnp.full(self.chunk, temperature, jnp.float32), split=split)

    def play(self, params: Params, episodes: int, temperature: float, sample: int = 0) -> Trajectory:
        """Plays levels 0 to `episodes` - 1 once each; leaves of the trajectory are NumPy arrays [n, ...].

        An episode does not depend on `episodes`, and a level is the same at every temperature and in every `sample`,
        which is another episode on it. Episodes whose environment fails are played again.

        Raises:
            UserError: environments failed in all attempts.
        """
        settings = self.settings_at(temperature)
        parts = []
        for first in range(0, episodes, self.chunk):
            ids = build.evaluation_ids(first, self.chunk, self.task, self.rows, sample=sample)
            dispatch = functools.partial(self.program, params, self.key, ids, settings)
            parts.append(self._retry_failed(dispatch, min(self.chunk, episodes - first)))
        return jax.tree.map(lambda *x: np.concatenate(x)[:episodes], *parts)

    def _retry_failed(self, dispatch: Callable[[], tuple[Trajectory, Any]], count: int) -> Trajectory:
        """Repeats a dispatch until none of its first `count` episodes has failed."""
        found = hosts.fetch(dispatch()[0])
        for _ in range(ATTEMPTS - 1):
            if not found.failed[:count].any():
                break
            failed, again = found.failed, hosts.fetch(dispatch()[0])
            found = jax.tree.map(functools.partial(_where, failed), again, found)
        if isinstance(self.batched_env, HostEnv):
            self.batched_env.host_episodes.clear()  # closes what has already ended on the device
        if found.failed[:count].any():
            why = "see whether the service is well"
            if isinstance(self.batched_env, CompiledEnv):
                why = f"{MAX_LEVEL_TRIES} keys gave no level of the {self.split.name.lower()} split; use larger levels"
            raise UserError(
                f"{int(found.failed[:count].sum())} of {count} held-out episodes of "
                f"{self.batched_env.tasks[self.task].name} failed {ATTEMPTS} times; {why}"
            )
        return found


def _where(rows: Bool[np.ndarray, " n"], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(rows.reshape(rows.shape + (1,) * (a.ndim - 1)), a, b)


def evaluate_run(
    run: str | os.PathLike[str],
    *,
    checkpoint: str = "last",
    env: str | None = None,
    levels: str | None = None,
    episodes: int | None = None,
    temperature: float | None = None,
    samples: int = 1,
    seed: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Evaluates a checkpoint of a run: last, best (the highest success in validation), or that of a step.

    Unreadable rows of its records are reported but not refused: success depends on the checkpoint alone, and only the
    number of levels learned from needs the records. That number is None if they have a gap.

    `env` is the tag of another environment than that of the run's first task; if the run has a task with this tag, its
    options and levels apply; for a run on services it is one of its tags. `levels` is a file with levels, or
    one of `NAMED_LEVELS`, each played once. `episodes`, `temperature` (of the sampled evaluation) and `seed` replace
    those of the section `evaluation`. The sampled agent plays each level `samples` times.

    Returns:
        env, iteration, episodes, samples, seed, temperature; `seen`, from `seen.seen_levels`; `success` (avg@k of k
        samples) and `success_greedy`, each {mean, low, high, n} with levels as unit; with several samples, `pass_at`
        and `pass_all` by the number of samples (1, 2, 4, ... and all), see `statistics`; `return` (raw, sampled); if
        known, `random`, `null` and `optimal`, exact on the same levels within the agent's budget, `optimal_is`, see
        `Baselines`, and `gap_closed`, the share of the difference between random and optimal play that the sampled
        agent closes; for environments with a stricter rule, `strict_success` and `strict_success_greedy`; for a service
        with several categories of items, and for `NAMED_LEVELS`, `categories` (families of the panel, or levels) with
        both successes of each; `outcomes`, both successes level by level, and `levels_digest`, SHA-256 of the hashes
        of the levels' first states.

    Raises:
        UserError: the folder holds no run or no such checkpoint, or the levels cannot be used.
    """
    config = read_config(run)
    for name, number in (("episodes", episodes), ("samples", samples)):
        if number is not None and number < 1:
            raise UserError(f"--{name} is {number}, expected at least 1")
    config = config.replace(evaluation=config.evaluation.replace(episodes=episodes or config.evaluation.episodes))
    check_sizes(config)
    if temperature is not None and not temperature > 0:
        raise UserError(f"--temperature is {temperature}, expected a number above 0; the greedy result is always given")
    if config.served and levels is not None:
        raise UserError(f"{run}: was trained on services, whose items it names; leave out --levels")
    if config.served and env not in (None, *(task.env for task in config.tasks)):
        names = ", ".join(task.env for task in config.tasks)
        raise UserError(f"--env {env}: {run} was trained on services and has items of {names} only")
    with contextlib.ExitStack() as stack:
        with refusals():
            policy, eval_set = _load(run, config, checkpoint, env, levels, stack)
        learned = _learned(Path(run), policy.step, report)
        # The levels of a file are played once each.
        wanted = config.evaluation.episodes if levels is None else eval_set.batched_env.levels(0)
        number = eval_set.number(wanted)
        chunk = min(number, config.train.validation_episodes)
        eval_set = dataclasses.replace(eval_set, chunk=chunk, seed=eval_set.seed if seed is None else seed)
        env = config.tasks[0].env if env is None else env
        times = f", {samples} samples of each" if samples > 1 else ""
        report(f"{number} levels of {env}{times}, iteration {policy.iteration}")
        temperature = temperature or config.evaluation.temperature
        results = _results(policy, eval_set, number, temperature, samples, learned, report)
        found = {"env": env, "iteration": policy.iteration, "episodes": number, "samples": samples}
        return found | {"seed": eval_set.seed} | results


def _learned(run: Path, step: int, report: Callable[[str], None]) -> set[str] | None:
    """The levels that a checkpoint has learned from, see `learned_levels`; gaps in the records are reported."""
    levels, metrics = (read_rows(run / name) for name in ("levels.jsonl", "metrics.jsonl"))
    learned = learned_levels([row for _, row in levels.rows], [row for _, row in metrics.rows], step)
    bad = [
        f"{len(found.bad)} row{'s' * (len(found.bad) > 1)} of {name} cannot be read (the first is line {found.bad[0]})"
        for name, found in (("levels.jsonl", levels), ("metrics.jsonl", metrics))
        if found.bad
    ]
    if learned is None:
        gap = " and ".join(bad) or f"metrics.jsonl or levels.jsonl lacks rows of the {step} steps up to the checkpoint"
        report(
            f"{run}: {gap}, so how many levels were learned from is not known (seen_levels is null); restore the "
            "whole file to have that count"
        )
    elif bad:
        report(f"{run}: {' and '.join(bad)}; no result needs them")
    return learned


def _results(
    policy: RunPolicy,
    eval_set: EvalSet,
    episodes: int,
    temperature: float,
    samples: int,
    learned: set[str] | None,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Plays the levels and returns what `evaluate_run` describes, from `temperature` on."""
    task = eval_set.batched_env.tasks[eval_set.task]
    greedy = eval_set.play(policy.params, episodes, 0.0)
    ids = level_ids(greedy)
    solved, strict, returns = [], [], []
    for sample in range(samples):
        played = eval_set.play(policy.params, episodes, temperature, sample)
        solved.append(played.success)
        returns.append(np.asarray(played.returns, np.float64))
        strict += [_ever(played, STRICT)] if STRICT in played.turn.info else []
        if samples > 1:
            report(f"sample {sample + 1}/{samples}: {played.success.mean():.1%}")
    success = np.stack(solved, axis=1)

    def successes(rows: Any = slice(None)) -> dict[str, Any]:
        played = {"success": success[rows].mean(axis=1), "success_greedy": greedy.success[rows]}
        return {name: success_interval(of_levels) for name, of_levels in played.items()}

    result = {
        "temperature": temperature,
        **successes(),
        "return": mean_interval(np.mean(returns, axis=0)),
        "outcomes": {"success": success.mean(axis=1).tolist(), "success_greedy": greedy.success.astype(float).tolist()},
        "levels_digest": hashlib.sha256("".join(ids).encode()).hexdigest(),
        "seen": seen_levels(learned, ids, eval_set.levels, task, eval_set.boards(episodes)),
    }
    if samples > 1:
        numbers = sorted({*(2**power for power in range(samples.bit_length())), samples})
        for name, probability in (("pass_at", pass_at), ("pass_all", pass_all)):
            result[name] = {str(k): success_interval(probability(success, k)) for k in numbers}
    if strict:
        of_levels = {"strict_success": np.mean(strict, axis=0), "strict_success_greedy": _ever(greedy, STRICT)}
        result |= {name: success_interval(x) for name, x in of_levels.items()}
    known = eval_set.baselines(episodes)
    if known is not None:
        result |= success_intervals(known) | {"optimal_is": known.optimal_is}
        gap = known.optimal.mean() - known.random.mean()
        result["gap_closed"] = float((success.mean() - known.random.mean()) / gap) if gap > 0 else None
    if eval_set.categories is not None:
        of_level = np.array(eval_set.categories[:episodes])
        result["categories"] = {name: successes(of_level == name) for name in sorted(set(of_level.tolist()))}
    return result


def _ever(played: Trajectory, name: str) -> Bool[np.ndarray, " n"]:
    """Whether a flag of the environment was true after some turn of an episode."""
    turns = np.arange(played.turn.info[name].shape[1]) < played.num_turns[:, None]
    return np.any(turns & (played.turn.info[name] > 0), axis=1)


def _load(
    run: str | os.PathLike[str],
    config: Config,
    checkpoint: str,
    env: str | None,
    levels: str | None,
    stack: contextlib.ExitStack,
) -> tuple[RunPolicy, EvalSet]:
    """The policy of a run's checkpoint and the levels to evaluate; services are closed by the stack."""
    policy = load_policy(run, config, checkpoint)
    tasks = {task.env: task for task in reversed(config.tasks)}
    task = config.tasks[0] if env is None else tasks.get(env, TaskConfig(env=env, groups=1))
    prompt = config.prompt
    if task.env not in tasks:
        prompt = prompt.replace(max_actions=registry.spec(task.env).max_actions)
    if levels is not None:
        task = task.replace(levels=levels)
    config = config.replace(tasks=(task,), prompt=prompt)
    services = None
    if config.served:
        services = Services(config, lambda: Path(run))
        stack.callback(services.close)
    batched_env = batched_envs(config, policy.tokenizer, services)[1]
    engine = build.engine_config(config, policy.tokenizer, group_size=1, slots=0)
    build.check_positions(policy.pretrained, batched_env, engine)
    chosen = level_set(config, batched_env, levels, services)
    eval_set = EvalSet(
        program=Programs(make_mesh(1)).rollout("evaluation", policy.model, batched_env, engine),
        chunk=config.train.validation_episodes,
        settings=build.rollout_settings(config, batched_env, 1, 0.0),
        **vars(chosen),
    )
    return policy, eval_set
