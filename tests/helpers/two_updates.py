"""Two updates of a configuration on made-up trajectories, for tests that compare many configurations.

The update is `learner.update`. Its two halves, making the batch and the gradient steps, are compiled separately. Each
is cached by the fields of `LearnerConfig` that it read while it was traced, so configurations that differ only in
fields read by one half share the other. Numbers that are static in a run but do not affect shapes are traced.
"""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import made_up
import numpy as np
from made_up import EPISODES, GROUP_SIZE, GROUPS, SAID, SEEN, SHAPE, TURNS
from setting_table import Setting, with_settings

from agentrl_jax.config import Config, decode, validate
from agentrl_jax.config.fields import Section
from agentrl_jax.errors import UserError
from agentrl_jax.learner import state
from agentrl_jax.learner import update as learner
from agentrl_jax.learner.settings import LearnerConfig
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.setup import build

UPDATES = 2
"""The adaptive controller, schedules and Adam's moments have an effect in the second update."""
MOST_PROGRAMS = 200
"""Maximum number of programs kept at a time; each takes many memory mappings, and Linux allows a process 65,530."""
_BOUNDS = ("objective.dual_clip", "advantage.value_clip", "mismatch.cap")


def read(data: dict[str, Any]) -> Config:
    """Reads and checks a configuration from plain data.

    Raises:
        UserError: the configuration is refused.
    """
    config = decode(data)
    validate(config)
    return config


def trajectory() -> Trajectory:
    """Sixteen episodes of two turns in four groups, off policy, some of them truncated.

    The two groups that a filter keeps differ with every score; the last group's returns are equal.
    """
    draw = np.random.default_rng(11)
    made = made_up.make_trajectory()
    group = np.arange(EPISODES) // GROUP_SIZE
    turns = np.where(np.arange(EPISODES) % 5 == 3, 1, TURNS)
    played = np.arange(TURNS) < turns[:, None]
    longest = np.array([3, SAID, SAID, 2])[group][:, None]
    length = np.where(played, draw.integers(longest - 1, longest + 1, (EPISODES, TURNS)), 0)
    reward = np.array([3.0, 1.5, 0.7, 0.0])[group][:, None] * draw.normal(0, 1, (EPISODES, TURNS))
    reward = (
        reward - np.where(group < 3, reward.sum(axis=1).reshape(GROUPS, GROUP_SIZE).mean(axis=1)[group], 0)[:, None] / 2
    )
    reward = np.where(played, reward + np.array([1.0, -1.0, 2.0, 0.0])[group][:, None] * (np.arange(TURNS) == 0), 0.0)
    error = np.where(played & (group < 3)[:, None], draw.integers(0, 2, (EPISODES, TURNS)), 0)
    logprob = -3.0 + draw.normal(0, 0.4, (EPISODES, TURNS, SAID))
    logprob -= np.array([0.5, 0.0, 0.1, 0.6])[group][:, None, None]
    logprob -= (np.array([0.1, 0.9, 0.0, 0.5])[group] * np.linspace(-1, 1, EPISODES)[draw.permutation(EPISODES)])[
        :, None, None
    ]
    met = draw.integers(0, 2, (EPISODES, TURNS, 1)).repeat(2, axis=2)
    cut = (np.arange(EPISODES) % 3 > 0) & (turns == TURNS)
    return made.replace(
        observation=jnp.asarray(draw.integers(0, 2, (EPISODES, TURNS, 1)) + 0 * np.asarray(made.observation)),
        observation_length=jnp.asarray(np.where(played, SEEN, 0), jnp.int32),
        response=made.response.replace(
            length=jnp.asarray(length, jnp.int32), logprob=jnp.asarray(logprob, jnp.float32)
        ),
        turn=made.turn.replace(
            reward=jnp.asarray(reward, jnp.float32),
            format_error=jnp.asarray(error, jnp.int32),
            state_hash=jnp.asarray(met, jnp.uint32),
        ),
        num_turns=jnp.asarray(turns, jnp.int32),
        ids=made.ids.replace(task=jnp.asarray(group // 2, jnp.int32)),
        truncation=jnp.asarray(cut, jnp.int32),
        final_observation=jnp.asarray(draw.integers(0, 19, (EPISODES, SEEN)), jnp.int32),
        final_observation_length=jnp.asarray(np.where(cut, SEEN, 0), jnp.int32),
    )


TRAJECTORY = trajectory()
GREEDY = jax.tree.map(lambda x: x[2::GROUP_SIZE], TRAJECTORY)


def shortened(whole: Trajectory, group_size: int, turns: int) -> Trajectory:
    """Returns the first members of each group, and the first turns of each episode."""
    kept = np.arange(len(whole.num_turns)) % GROUP_SIZE < group_size if group_size < GROUP_SIZE else slice(None)
    of = jax.tree.map(lambda x: x[kept], whole)

    def cut(tree):
        return jax.tree.map(lambda x: x[:, :turns], tree)

    return of.replace(
        observation=cut(of.observation),
        observation_length=cut(of.observation_length),
        response=cut(of.response),
        turn=cut(of.turn),
        num_turns=jnp.minimum(of.num_turns, turns),
    )


class _Compared(str):
    """A name that records what it is compared with, or its value if it is used in another way."""

    reads: dict[Any, Any]
    field: str

    def __eq__(self, other: object) -> bool:
        equal = str.__eq__(self, other)
        self.reads[self.field, other] = equal
        return equal

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        self.reads[self.field, None] = str(self)
        return str.__hash__(self)


class _Recorded:
    """A `LearnerConfig`, or a part of it, that records which fields are read; some of its numbers are traced.

    A property is recorded itself, not the fields it is computed from; for a name, the results of comparisons.
    """

    def __init__(self, part: Section, traced: dict[str, jax.Array], reads: dict[Any, Any], prefix: str = ""):
        self.__dict__.update(_part=part, _traced=traced, _reads=reads, _prefix=prefix)

    def __getattr__(self, name: str) -> Any:
        key = self._prefix + name
        if key in self._traced:
            return self._traced[key]
        value = getattr(self._part, name)
        if isinstance(value, Section):
            return _Recorded(value, self._traced, self._reads, f"{key}.")
        if not isinstance(value, str) or isinstance(getattr(LearnerConfig, name, None), property):
            self._reads[key, None] = value
            return value
        compared = _Compared(value)
        compared.reads, compared.field = self._reads, key
        return compared


_ABSENT = object()


def _value(config: LearnerConfig, key: str) -> Any:
    return functools.reduce(lambda part, name: getattr(part, name, _ABSENT), key.split("."), config)


def _agrees(config: LearnerConfig, reads: dict[Any, Any]) -> bool:
    """Whether a config has the same values in all recorded reads of another one."""
    for (name, other), found in reads.items():
        value = _value(config, name)
        if (value if other is None else value == other) != found:
            return False
    return True


class _Half:
    """One half of the update: programs by the fields that were read while they were traced."""

    def __init__(self):
        self.programs: dict[Any, list[tuple[dict[Any, Any], Any]]] = {}

    def __call__(self, function, config: LearnerConfig, arguments: tuple[Any, ...], key: Any) -> Any:
        """Calls `function` with a config and arguments, compiled for the shapes of these and for `key`."""
        traced = {name: _value(config, name) for name in _BOUNDS}
        traced = {n: jnp.float32(jnp.inf if x in (None, _ABSENT) else x) for n, x in traced.items()}
        shapes = tuple((x.shape, str(x.dtype)) for x in jax.tree.leaves(arguments))
        place = (key, shapes, jax.tree.structure(arguments))
        for reads, program in self.programs.get(place, ()):
            if _agrees(config, reads):
                return program(traced, arguments)
        if MAKING.kept() + LEARNING.kept() >= MOST_PROGRAMS:
            for half in (MAKING, LEARNING):
                half.programs.clear()
            jax.clear_caches()
        reads: dict[Any, Any] = {}
        program = jax.jit(lambda traced, arguments: function(_Recorded(config, traced, reads), *arguments))
        result = program(traced, arguments)
        self.programs.setdefault(place, []).append((reads, program))
        return result

    def kept(self) -> int:
        return sum(map(len, self.programs.values()))


MAKING, LEARNING = _Half(), _Half()
_make_batch, _learn = learner.make_batch, learner._learn


def _making(now, trajectory, temperature, settings, model, config, shards, replay, greedy):
    def function(config, now, trajectory, temperature, settings, greedy):
        return _make_batch(now, trajectory, temperature, settings, model, config, shards, replay, greedy)

    now = now.replace(opt_state=None)  # this half does not read it
    return MAKING(function, config, (now, trajectory, temperature, settings, greedy), model)


def _learning(now, batch, trained, key, settings, model, config, numbers, shards, replay):
    decay, numbers = numbers

    def function(config, now, batch, trained, key, settings, numbers):
        tx = state.optimizer(*numbers, decay)
        return _learn(now, batch, trained, key, settings, model, config, tx, shards, replay)

    return LEARNING(function, config, (now, batch, trained, key, settings, numbers), (model, decay))


@functools.cache
def _start(model: ActorCritic, decay: str, reference: bool) -> state.TrainState:
    now = made_up.fresh_state(model, tx=state.optimizer(0.9, 0.999, 0.01, decay))
    if not reference:
        return now
    draw = np.random.default_rng(4)
    far = jax.tree.map(lambda x: x + jnp.asarray(0.1 * draw.standard_normal(x.shape), x.dtype), now.params["policy"])
    return now.replace(reference=far)


def updated(config: Config) -> tuple[Any, Any]:
    """Returns the parameters before the first update of a configuration and after the second."""
    critic = config.model.critic if config.algo.advantage.has_critic else "none"
    model, rule, optim = ActorCritic(decoder=SHAPE, critic=critic), build.learner_config(config), config.optim
    numbers = tuple(jnp.float32(x) for x in (optim.b1, optim.b2, optim.weight_decay))
    now = start = _start(model, optim.decay, build.needs_reference(config))
    played = shortened(TRAJECTORY, config.rollout.group_size, config.prompt.max_turns)
    greedy = shortened(GREEDY, GROUP_SIZE, config.prompt.max_turns) if rule.advantage.kind == "remax" else None
    factor, schedules = build.learning_rates(config), build.schedules(config)
    learner.make_batch, learner._learn = _making, _learning
    try:
        for iteration in range(UPDATES):
            temperature = jnp.full(len(played.num_turns), schedules["temperature"](iteration), jnp.float32)
            settings = build.update_settings(config, float(factor(iteration)), iteration)
            now, _ = learner.update(
                now,
                played,
                temperature,
                jax.random.key(iteration),
                settings,
                greedy,
                model=model,
                config=rule,
                tx=(optim.decay, numbers),
                shards=Shards(),
            )
    finally:
        learner.make_batch, learner._learn = _make_batch, _learn
    return jax.tree.map(np.asarray, (start.params, now.params))


class Results:
    """Results of configurations, each computed once."""

    def __init__(self):
        self.known: dict[str, tuple[Any, Any]] = {}

    def of(self, config: Config) -> tuple[Any, Any]:
        """As `updated`."""
        key = config.model_dump_json()
        if key not in self.known:
            self.known[key] = updated(config)
        return self.known[key]


def difference(one: tuple[Any, Any], other: tuple[Any, Any]) -> float:
    """Returns the difference of two results relative to the step; the larger one of policy and critic."""
    if one[1].keys() != other[1].keys():
        return 1.0

    def norm(tree):
        return float(np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in jax.tree.leaves(tree))))

    found = []
    for part in one[1]:
        steps = [norm(jax.tree.map(np.subtract, after[part], before[part])) for before, after in (one, other)]
        if jax.tree.structure(one[1][part]) != jax.tree.structure(other[1][part]):
            return 1.0
        found.append(norm(jax.tree.map(np.subtract, one[1][part], other[1][part])) / max(*steps, 1e-12))
    return max(found)


SMALLEST = 1e-4
"""Smallest difference that counts; rounding is below it, see the test of settings that only change memory."""


class Judge:
    """Judges pairs of settings; configurations and results are cached."""

    def __init__(self):
        self.results, self.configs = Results(), {}

    def read(self, data: dict[str, Any]) -> Config | str:
        """Returns the configuration, or why it is refused."""
        key = json.dumps(data, sort_keys=True)
        if key not in self.configs:
            try:
                self.configs[key] = read(data)
            except UserError as error:
                self.configs[key] = str(error)
        return self.configs[key]

    def refusal(self, *settings: Setting) -> str:
        """Returns why settings are refused together; empty if they are accepted."""
        config = self.read(with_settings(settings, settings))
        return config if isinstance(config, str) else ""

    def without(self, setting: Setting, *others: Setting) -> Config | None:
        """Returns the configuration of `others` with a setting at its base value; None if the others need the setting.

        What the setting needs stays, unless it is refused without the setting.
        """
        for needs in ((setting, *others), others):
            config = self.read(with_settings(others, needs, without=setting.name))
            if not isinstance(config, str):
                return config
        return None

    def idle(self, *settings: Setting) -> list[Setting]:
        """Returns the settings that have no effect together with the others; all must be accepted together."""
        config = self.read(with_settings(settings, settings))
        found = []
        for setting in settings:
            base = self.without(setting, *(other for other in settings if other is not setting))
            if base is not None and difference(self.results.of(config), self.results.of(base)) < SMALLEST:
                found.append(setting)
        return found
