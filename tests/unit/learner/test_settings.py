"""Every setting is read: it changes what a run is built of, and the update reads it; an idle one is refused.

Generated from the fields of the configuration: nothing is compiled. That settings change the parameters beside each
other is tested at night, by `test_pairs`.
"""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval
from made_up import BASE as RULE
from made_up import EPISODES, KEY, PLAIN, SHAPE, fresh_state
from paths import ROOT
from setting_table import BASE, BUILT, TRIED, put
from two_updates import GREEDY, TRAJECTORY, Judge, read

from agentrl_jax.config.algo import Moving, Replay, UpdateRule
from agentrl_jax.config.fields import Section
from agentrl_jax.config.keys import every_key, sections_of
from agentrl_jax.config.load import leaves
from agentrl_jax.config.presets import NAMES, read_preset
from agentrl_jax.errors import UserError
from agentrl_jax.learner import prompt_information
from agentrl_jax.learner.settings import LearnerConfig, UpdateSettings
from agentrl_jax.learner.update import update
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.setup import build
from agentrl_jax.setup.programs import Programs
from agentrl_jax.text.tokenizer import load_small
from agentrl_jax.train.horizon import Horizon
from agentrl_jax.train.roll_back import kept_checkpoints

SECTIONS = ("algo.", "optim.", "prompt.", "rollout.", "train.")
BY_THE_RUN = {
    "algo.preset",
    "algo.dynamic_sampling",
    "algo.logprob_gap_limit",
    *(f"train.{name}" for name in ("checkpoint_every", "validate_every", "validation_episodes", "max_bad_updates")),
    *(f"train.{name}" for name in ("validation_temperature", "on_collapse", "roll_back_factor", "max_roll_backs")),
    *(f"train.{name}" for name in ("mutual_information_every", "trajectories_every", "trajectories", "recorded_mb")),
}
"""Settings that a run reads while it goes on, or that name others."""


TOKENIZER, ENVIRONMENTS = load_small(), {}


def built(config):
    """All that is made of a configuration before anything is compiled, as plain data."""
    tokenizer, key = TOKENIZER, (config.prompt, config.rollout)
    if key not in ENVIRONMENTS:
        ENVIRONMENTS[key] = build.build_compiled_env(config, tokenizer)
    batched_env = ENVIRONMENTS[key]
    horizon, slots = Horizon(config.algo.horizon, config.prompt.max_turns), config.rollout.slots
    texts = [(task.prompt, task.grammar) for task in batched_env.tasks]
    rates, temperature = build.learning_rates(config), build.schedules(config)["temperature"]
    tx, params = build.build_optimizer(config), {"matrix": jnp.ones((2, 2)), "norm": jnp.ones(2)}
    stepped, moments = tx.update(jax.tree.map(jnp.ones_like, params), tx.init(params), params)
    updates = [build.update_settings(config, float(rates(i)), i) for i in range(4)]
    arrays = [texts, build.rollout_settings(config, batched_env, 2, float(temperature(1))), stepped, moments, updates]
    information = prompt_information.build_config(
        config.prompt, config.rollout, config.train.mutual_information_pairs, tokenizer
    )
    return [
        build.engine_config(config, tokenizer, group_size=config.rollout.group_size, slots=slots),
        build.learner_config(config),
        build.rollout_model(config, build.build_model(config, tokenizer)),
        [(np.shape(leaf), np.asarray(leaf).tolist()) for leaf in jax.tree.leaves(arrays)],
        jax.tree.structure(texts),
        batched_env.shared_noise,
        [horizon.turns(iteration) for iteration in range(4)],
        horizon.plan,
        kept_checkpoints(config.train),
        Programs.of_run(config, make_mesh(1)).offload,
        information.pairs,
        build.needs_reference(config),
    ]


def test_every_setting_is_tried_or_read_by_name():
    """What is not tried below is an attribute that the product reads outside the configuration."""
    tried = {"algo.schedules" if "schedules" in setting.name else setting.name for setting in (*TRIED, *BUILT)}
    every = set(every_key())
    fields = {key for key in every if key.startswith(SECTIONS) and not any(k.startswith(f"{key}.") for k in every)}
    assert fields - tried == BY_THE_RUN
    moved = {setting.name.removeprefix("algo.schedules.") for setting in TRIED if "schedules" in setting.name}
    assert moved == set(Moving.__args__)
    files = [path for path in (ROOT / "agentrl_jax").rglob("*.py") if path.parent.name != "config"]
    code = "\n".join(path.read_text() for path in files)
    unread = [key for key in BY_THE_RUN - {"algo.preset"} if not re.search(rf"\.{key.split('.')[-1]}\b", code)]
    assert unread == []


def test_every_setting_changes_what_a_run_is_built_of():
    idle = []
    for setting in (*TRIED, *BUILT):
        needs = {key: value for key, value in setting.needs.items() if key != setting.name}
        try:
            plain = built(read(put(BASE, needs)))
        except UserError:  # some need the setting itself
            plain = built(read(BASE))
        if plain == built(read(put(BASE, needs | {setting.name: setting.value}))):
            idle.append(str(setting))
    assert idle == []


class Reads:
    """A part of a `LearnerConfig` that records the names of the fields that are read, by whatever method."""

    def __init__(self, part, seen, prefix=""):
        self.__dict__.update(_part=part, _seen=seen, _prefix=prefix)

    def __getattr__(self, name):
        found = inspect.getattr_static(type(self._part), name, None)
        if isinstance(found, property):
            return found.fget(self)
        if inspect.isfunction(found):
            return functools.partial(found, self)
        self._seen.add(self._prefix + name)
        value = getattr(self._part, name)
        return Reads(value, self._seen, f"{self._prefix}{name}.") if isinstance(value, Section) else value


def members(name):
    """The members of a union of the learning rule, with values with which every field matters."""
    values = {"history": 1, "reward_normalization": "mean", "bootstrap_truncated": True, "ratio": 0.5, "k": 2}
    values |= {"estimator": "k2"}
    return [
        part(**{k: v for k, v in values.items() if k in part.model_fields})
        for part in sections_of(UpdateRule.model_fields[name].annotation)
    ]


UNIONS = {name: members(name) for name in ("advantage", "objective", "kl", "filter", "mismatch")}
UNIONS["mismatch"] = [part for part in UNIONS["mismatch"] if not isinstance(part, Replay)]
RULES = [{name: of[i % len(of)] for name, of in UNIONS.items()} for i in range(max(map(len, UNIONS.values())))]
"""Rules that together have every member of every union; a replay has no field, and needs an engine."""


@functools.cache
def read_by_the_update(number):
    """Fields that an update by a rule reads, and numbers on which its new state depends."""
    parts, seen = RULES[number], set()
    config = RULE.replace(
        **{name: part.static() for name, part in parts.items()}, epochs=2, context=("full", "single_turn")[number % 2]
    )
    model = ActorCritic(decoder=SHAPE, critic="shared" if parts["advantage"].has_critic else "none")
    state = fresh_state(model, reference=parts["kl"].kind != "none")
    numbers = jax.tree.map(jnp.float32, UpdateSettings(**dict.fromkeys(UpdateSettings.__dataclass_fields__, 0.5)))

    def learn(numbers):
        options = {"model": model, "config": Reads(config, seen), "tx": PLAIN, "shards": Shards()}
        return update(state, TRAJECTORY, jnp.ones(EPISODES), KEY, numbers, GREEDY, **options)[0]

    jaxpr = jax.make_jaxpr(learn)(numbers).jaxpr
    _, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return seen, {name for name, of in zip(UpdateSettings.__dataclass_fields__, used, strict=True) if of}


@pytest.mark.parametrize("number", range(len(RULES)))
def test_an_update_reads_every_field_of_its_rule(number):
    seen, used = read_by_the_update(number)
    config = read(BASE)
    for name, part in RULES[number].items():
        traced, algo = part.traced(), config.algo.replace(**{name: part})
        static = {f"{name}.{field}" for field in type(part).model_fields.keys() - traced.keys() - {"kind"}}
        assert static - seen == set()
        before = build.update_settings(config.replace(algo=algo), 1.0)
        for field in traced:
            changed = part.replace(**{field: 0.25 * getattr(part, field) + 0.125})
            after = build.update_settings(config.replace(algo=algo.replace(**{name: changed})), 1.0)
            moved = {of for of in UpdateSettings.__dataclass_fields__ if getattr(before, of) != getattr(after, of)}
            assert moved, field
            assert moved <= used, field


def test_an_update_reads_every_other_field_and_number():
    found = [read_by_the_update(number) for number in range(len(RULES))]
    fields = set.union(*(seen for seen, _ in found))
    assert LearnerConfig.model_fields.keys() - fields == set()
    assert UpdateSettings.__dataclass_fields__.keys() - set.union(*(used for _, used in found)) == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_holds_no_value_that_nothing_reads(name):
    """Another value for a key of the preset is not refused as unused."""
    judge, base = Judge(), put(BASE, {"tasks": [{"env": "SimpleSokoban", "groups": 16}], "prompt.max_turns": 10})
    base = put({**base, "algo": {"preset": name}}, {"rollout.group_size": 16})
    given, unread = {key for key, _ in leaves(read_preset(name).values, lists=False)}, []
    for setting in TRIED:
        if setting.name.removeprefix("algo.") in given:
            refusal = judge.read(put(base, {setting.name: setting.value}))
            refused = isinstance(refusal, str) and refusal.startswith(f"configuration: {setting.name} is")
            if refused and ("does not read" in refusal or "does not have" in refusal):
                unread.append(refusal)
    assert unread == []


IDLE = [
    ({"algo.kl.estimator": "k2"}, "algo.kl.estimator"),
    ({"algo.kl": {"kind": "fixed", "coef": 0.0}}, "algo.kl.coef"),
    ({"algo.filter.by": "mean"}, "algo.filter.by"),
    ({"algo.filter.largest": False}, "algo.filter.largest"),
    ({"algo.filter": {"kind": "top_p", "include_zero": False}}, "algo.filter.include_zero"),
    ({"algo.filter_group_size": 4}, "algo.filter_group_size"),
    (
        {"algo.objective.kind": "policy_gradient", "algo.mismatch.ratio_from": "rollout"},
        "algo.mismatch.ratio_from",
    ),
    ({"algo.horizon": {"kind": "stepwise", "turns": [2]}}, "algo.horizon.turns"),
    ({"algo.schedules.value_coef": {"end": 1.0, "iterations": 2}}, "algo.schedules.value_coef.end"),
    (
        {
            "algo.kl": {"kind": "adaptive", "estimator": "k2", "coef": 1.0, "target": 0.01},
            "algo.schedules.kl_coef": {"end": 0.0, "iterations": 2},
        },
        "algo.kl",
    ),
    ({"prompt.max_turns": 1, "algo.advantage.reward_placement": "turn"}, "algo.advantage.reward_placement"),
    ({"prompt.max_turns": 1, "rollout.context": "single_turn"}, "rollout.context"),
    ({"prompt.max_turns": 1, "algo.advantage": "bi_level_gae"}, "algo.advantage"),
    ({"prompt.max_turns": 1, "algo.advantage": {"kind": "gigpo", "history": 1}}, "algo.advantage.history"),
]


@pytest.mark.parametrize(("values", "key"), IDLE)
def test_what_does_nothing_is_refused(values, key):
    with pytest.raises(UserError) as error:
        read(put(BASE, values))
    assert error.value.key == key
    assert key in str(error.value)
    assert "\n" not in str(error.value)
