"""The components of a run before its first step: environments, model, programs."""

from collections.abc import Callable
from pathlib import Path

import jax

from agentrl_jax.config import Config, validate
from agentrl_jax.environments.protocol import Traits
from agentrl_jax.errors import refusals
from agentrl_jax.learner import prompt_information
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.engine_config import cache_length
from agentrl_jax.rollout.envs.batched_env import shared_prefix_len
from agentrl_jax.rollout.envs.level_splits import level_splits
from agentrl_jax.setup import build, build_inputs, build_model, start
from agentrl_jax.setup.agents import check_window
from agentrl_jax.setup.level_files import make_env
from agentrl_jax.setup.level_pools import new_pools
from agentrl_jax.setup.own_episodes import check_episode_functions
from agentrl_jax.setup.programs import Programs
from agentrl_jax.setup.service_tasks import Services, batched_envs
from agentrl_jax.setup.stored_traits import store_traits


class RunParts:
    """The components of a run. Nothing is compiled or started yet, and no file is written.

    A run without tasks has `config`, `key`, `programs`, `pretrained`, `tokenizer`, `model` and `tx` alone.

    The keys of a run are derived from `key`, see `run_keys`. `pretrained` is None for a freshly initialized
    decoder, and `services` for compiled tasks, whose `train_env` and `eval_env` are the same batched environment.
    `rollout`, `update` and `greedy` are the programs of an iteration, see `iteration.IterationPrograms`;
    `evaluation` plays held-out episodes, one per level; `prompt_information` measures whether responses depend on
    their prompts, None if the run does not measure it; `recorded` scores the first `recorded_episodes` of a
    rollout, None if nothing is recorded. `metrics` are those of the user, None without some. `plan_hints` searches
    the plans that a teacher or demonstrations read in their prompts, None if none do. `level_pools` has the levels
    that tasks choose from, as they are when learning begins, see `level_pools.new_pools`.
    """

    services: Services | None = None

    def __init__(self, config: Config, folder: Callable[[], Path]):
        """Builds the components; `folder` returns the folder for server logs, when a server is started.

        Raises:
            UserError: a part of the configuration is unusable.
        """
        mesh = make_mesh(config.device_count, **config.mesh.axes())
        validate(config.replace(devices=mesh.size))
        self.config = config
        self.key = jax.random.key(config.seed)
        self.programs = Programs.of_run(config, mesh)
        self.pretrained = build_model.load_model(config.model, self.programs.parameter)
        self.tokenizer = build_model.load_tokenizer(config.model, self.pretrained)
        self.tx = build_model.build_optimizer(config)
        if config.tasks:
            self._add_tasks(folder)
        else:
            self._build_model(0)

    def _build_model(self, prefix: int) -> None:
        """Builds the model; all prompts of the environments begin with the same `prefix` tokens."""
        self.model = build_model.build_model(self.config, self.tokenizer, self.pretrained, shared_prefix_len=prefix)
        build_model.check_divided(self.config.mesh, self.model.decoder)
        if self.config.optim.groups:  # whether each matches a parameter
            with refusals():
                build_model.initial_state(self.config, self.model, self.pretrained)

    def _add_tasks(self, folder: Callable[[], Path]) -> None:
        config = self.config
        self.services = Services.of(config, folder)
        if self.services is not None:
            self.services.refuse_seen()
        self.train_env, self.eval_env = batched_envs(config, self.tokenizer, self.services)
        self.train_splits = level_splits(self.train_env)
        build.check_trainable(config, self.train_splits)
        self.eval_splits = self.train_splits if self.eval_env is self.train_env else level_splits(self.eval_env)
        self.level_pools = new_pools(config, self.train_env, self.train_splits)
        self._build_model(shared_prefix_len(self.train_env))

        engine = build_inputs.engine_config(
            config, self.tokenizer, group_size=config.rollout.group_size, slots=config.rollout.slots
        )
        check_window(engine, [task.prompt for task in self.train_env.tasks])
        build.check_positions(
            self.pretrained.config if self.pretrained else None,
            self.train_env,
            engine,
            bootstrap=config.algo.advantage.bootstrap_truncated,
        )
        single = build_inputs.engine_config(config, self.tokenizer, group_size=1, slots=0)
        names = tuple(task.label for task in config.tasks)
        rollout_model = build_model.rollout_model(config, self.model)
        self.rollout = self.programs.rollout(
            *("rollout", rollout_model, self.train_env, engine),
            resampling=build_inputs.resampling(config),
            task_names=names,
        )
        self.recorded, self.recorded_episodes = None, 0
        if config.train.trajectories_every and config.train.iterations:
            self.recorded_episodes = min(config.train.trajectories, config.groups * config.rollout.group_size)
            limit = config.rollout.context_tokens
            self.recorded = self.programs.recorded(
                self.model, self.recorded_episodes, context=engine.context, context_tokens=limit
            )
        at = int(self.train_env.hint_at.min())
        with refusals():
            check_episode_functions(config, self.train_env.info_keys)
        self.metrics = self.programs.metrics(config.train.metrics) if config.train.metrics else None
        learner = build_inputs.learner_config(config, recorded_episodes=self.recorded_episodes, hint_at=at)
        self.update = self.programs.update(self.model, learner, self.tx, engine)
        remax = config.algo.advantage.has_greedy
        self.greedy = self.programs.rollout("baseline", rollout_model, self.train_env, single) if remax else None
        self.evaluation = self.programs.rollout("evaluation", self.model, self.eval_env, single)
        self.prompt_information = None
        if config.train.mutual_information_every:
            measured = prompt_information.build_config(
                config.prompt, config.rollout, engine.context, config.train.mutual_information_pairs, self.tokenizer
            )
            self.prompt_information = self.programs.mutual_information(self.model, measured)
        self._single = single
        self.plan_hints = start.plan_hints(config, self.train_env, self.tokenizer)
        start.check_imitation(config, self.train_env)

    def store_traits(self, folder: Path) -> None:
        """Writes what readers of the run's folder need to know of classes that it names by their import paths."""
        found = {} if self.services is None else {label: (x, 0) for label, x in self.services.traits().items()}
        for task, kind in zip(self.config.tasks, self.config.kinds):
            if kind.stored and task.label not in found:
                env, _ = make_env(task)
                own = build.build_compiled_env(self.config.replace(tasks=(task,)), self.tokenizer)
                traits = Traits(actions=env.actions, instruction=env.instruction)
                found[task.label] = traits, cache_length(own, self._single)
        if found:
            store_traits(folder, found)
