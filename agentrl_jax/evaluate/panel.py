"""Held-out evaluation: the same levels for every agent, one episode a level.

Letters: `n` episodes.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from agentrl_jax.config import Config, TaskConfig
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.evaluate.statistics import mean_interval, success_interval
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout import keys as key_law
from agentrl_jax.rollout.host import HostWorld
from agentrl_jax.rollout.host_environment import HostTask
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.rollout.world import CompiledWorld
from agentrl_jax.size_checks import check_sizes
from agentrl_jax.train import build
from agentrl_jax.train.policy import load_policy
from agentrl_jax.train.programs import Programs, RolloutProgram
from agentrl_jax.train.run_folder import read_config
from agentrl_jax.train.service_tasks import Services, worlds
from envs_jax import registry

ATTEMPTS = 3
"""Times that a held-out episode is played whose environment breaks."""

Params = dict[str, Any]
"""Those of a policy, as `TrainState.whole` has them."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """Levels of one task, and the program that plays them.

    Attributes:
        program: rollout of `chunk` episodes of one member each.
        chunk: episodes per dispatch.
        world: tasks of the program.
        config: the run's configuration.
        task: index of the task.
        seed: of levels and sampling.
        kinds: of each of the task's levels, where they are of several.
    """

    program: RolloutProgram
    chunk: int
    world: CompiledWorld | HostWorld
    config: Config
    task: int
    seed: int
    kinds: Sequence[str] | None = None

    @property
    def given(self) -> int:
        """Levels that the task was given; 0 where they come from the generator."""
        return self.world.levels(self.task)

    def number(self, wanted: int) -> int:
        """Levels to play where `wanted` are asked for: a pack has no more than its own, and none counts twice."""
        return min(wanted, self.given or wanted)

    def play(self, params: Params, episodes: int, temperature: float) -> Trajectory:
        """Plays levels 0 to `episodes` - 1 once each; leaves of the trajectory are NumPy arrays [n, ...].

        An episode is the same whatever `episodes` is, and the same level is played at every temperature. Those whose
        environment breaks are played again.

        Raises:
            UserError: environments break again and again.
        """
        key = jax.random.key(self.seed)
        settings = build.rollout_settings(self.config, self.world, self.chunk, temperature)
        parts = []
        for first in range(0, episodes, self.chunk):
            ids = build.evaluation_ids(first, self.chunk, self.task, self.given)
            play = functools.partial(self.program, params, key, ids, settings)
            parts.append(self._whole(play, min(self.chunk, episodes - first)))
        return jax.tree.map(lambda *x: np.concatenate(x)[:episodes], *parts)

    def _whole(self, play: Callable[[], tuple[Trajectory, Any]], count: int) -> Trajectory:
        """The episodes of a dispatch, none of whose first `count` failed."""
        found = jax.tree.map(np.asarray, play()[0])
        for _ in range(ATTEMPTS - 1):
            if not found.failed[:count].any():
                break
            failed, again = found.failed, jax.tree.map(np.asarray, play()[0])
            found = jax.tree.map(lambda old, new, f=failed: _where(f, new, old), found, again)
        if isinstance(self.world, HostWorld):
            self.world.desk.clear()  # episodes that the device ended
        if found.failed[:count].any():
            raise UserError(
                f"{int(found.failed[:count].sum())} of {count} held-out episodes of "
                f"{self.world.tasks[self.task].name} failed {ATTEMPTS} times; see whether the service is well"
            )
        return found

    def baselines(self, episodes: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Exact success f64[n] of the uniform random and the optimal policy on the same levels; None if unknown."""
        task = self.world.tasks[self.task]
        if isinstance(task, HostTask):
            return None if task.baselines is None else task.baselines(episodes)
        oracle = registry.spec(task.name).oracle
        if oracle is None:
            return None
        if self.given:
            levels = np.asarray(task.env_params.levels)[:episodes]
        else:
            ids = build.evaluation_ids(0, episodes, self.task, 0)
            levels = registry.draw_levels(task.env, task.env_params, key_law.level_key(jax.random.key(self.seed), ids))
        return oracle(task.env_params, levels, self.config.prompt.max_actions)


def _where(rows: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return np.where(rows.reshape(rows.shape + (1,) * (old.ndim - 1)), new, old)


def evaluate_run(
    run: str | os.PathLike[str],
    *,
    env: str | None = None,
    levels: str | None = None,
    episodes: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Evaluates the newest checkpoint of a run.

    Args:
        run: folder of the run.
        env: tag of another environment than that of the run's first task; options and levels of the run's task with
            this tag hold, if there is one. Of a run on services one of its own.
        levels: file with levels, each played once.
        episodes: held-out levels; default `evaluation.episodes`.
        temperature: of the sampled evaluation; default `evaluation.temperature`.
        seed: default `evaluation.seed`.
        report: told what goes on.

    Returns:
        env, iteration, episodes, seed, temperature; `success` and `success_greedy`, each {mean, low, high, n}; `return`
        (raw, sampled); where they are known, `random` and `optimal`, exact on the same levels; and of a service with
        items of several kinds `categories`, both successes of each.

    Raises:
        UserError: the folder holds no run or no checkpoint, or the levels cannot be used.
    """
    config = read_config(run)
    if episodes is not None and episodes < 1:
        raise UserError(f"--episodes is {episodes}, expected at least 1")
    config = dataclasses.replace(
        config,
        evaluation=dataclasses.replace(config.evaluation, episodes=episodes or config.evaluation.episodes),
    )
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
            iteration, params, panel = _panel_of_run(run, config, env, levels, stack)
        return _evaluated(iteration, params, panel, episodes, temperature, seed, levels is not None, report)


def _evaluated(
    iteration: int,
    params: Params,
    panel: Panel,
    episodes: int | None,
    temperature: float | None,
    seed: int | None,
    every_level: bool,
    report: Callable[[str], None],
) -> dict[str, Any]:
    config = panel.config
    # Levels that are given are played once each.
    wanted = panel.given if every_level else episodes or config.evaluation.episodes
    episodes = panel.number(wanted)
    panel = dataclasses.replace(
        panel, seed=panel.seed if seed is None else seed, chunk=min(episodes, config.train.validation_episodes)
    )
    task = panel.config.tasks[0]
    temperature = temperature or config.evaluation.temperature
    report(f"{episodes} levels of {task.env}, iteration {iteration}")
    sampled = panel.play(params, episodes, temperature)
    greedy = panel.play(params, episodes, 0.0)
    result = {
        "env": task.env,
        "iteration": iteration,
        "episodes": episodes,
        "seed": panel.seed,
        "temperature": temperature,
        "success": success_interval(sampled.success),
        "success_greedy": success_interval(greedy.success),
        "return": mean_interval(np.asarray(sampled.returns, np.float64)),
    }
    known = panel.baselines(episodes)
    if known is not None:
        result |= {"random": success_interval(known[0]), "optimal": success_interval(known[1])}
    if panel.kinds is not None:
        of = np.array(panel.kinds[:episodes])
        result["categories"] = {
            kind: {
                "success": success_interval(sampled.success[of == kind]),
                "success_greedy": success_interval(greedy.success[of == kind]),
            }
            for kind in sorted(set(of.tolist()))
        }
    return result


def _panel_of_run(
    run: str | os.PathLike[str], config: Config, env: str | None, levels: str | None, stack: contextlib.ExitStack
) -> tuple[int, dict[str, Any], Panel]:
    """Iteration and policy of a run's newest checkpoint, and the panel that `evaluate_run` describes.

    What has to be closed when it has been played is put on the stack.
    """
    policy = load_policy(run, config)
    tasks = {task.env: task for task in reversed(config.tasks)}
    task = config.tasks[0] if env is None else tasks.get(env, TaskConfig(env=env, groups=1))
    prompt = config.prompt
    if task.env not in tasks:
        prompt = dataclasses.replace(prompt, max_actions=registry.spec(task.env).max_actions)
    if levels is not None:
        task = dataclasses.replace(task, levels=levels)
    config = dataclasses.replace(config, tasks=(task,), prompt=prompt)
    services = None
    if config.served:
        services = Services(config, lambda: Path(run))
        stack.callback(services.close)
    world = worlds(config, policy.tokenizer, services)[1]
    engine = build.engine_config(config, policy.tokenizer, members=1, slots=0)
    build.check_positions(policy.pretrained, world, engine)
    panel = Panel(
        program=Programs(make_mesh(1)).rollout("evaluation", policy.model, world, engine),
        chunk=config.train.validation_episodes,
        world=world,
        config=config,
        task=0,
        seed=config.evaluation.seed,
        kinds=None if services is None else services.kinds([world.levels(0)]),
    )
    return policy.iteration, policy.params, panel
