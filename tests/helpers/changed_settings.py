"""Every setting of a run with other values, generated from the fields of the configuration, and what is built of them.

A value that is refused alone is given together with another one of its section, such as the kind that reads it.
"""

import copy
import dataclasses
import functools
import inspect
import itertools
import types
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from made_up import BASE as RULE
from made_up import EPISODES, GROUP_SIZE, HINTS, KEY, NUMBERS, PLAIN, SHAPE, TRAJECTORY, fresh_state, settings

from agentrl_jax.config import Config, TaskConfig, decode, validate
from agentrl_jax.config.advantages import WeightedTerm
from agentrl_jax.config.algo import UpdateRule
from agentrl_jax.config.fields import OWN, Section
from agentrl_jax.config.keys import child_type, kind_of, sections_of
from agentrl_jax.config.mismatch import Replay
from agentrl_jax.config.optim import ParameterGroup
from agentrl_jax.errors import UserError
from agentrl_jax.learner import prompt_information
from agentrl_jax.learner.settings import UpdateSettings
from agentrl_jax.learner.state import Kept, with_kept
from agentrl_jax.learner.update import update
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.setup import build, build_inputs, build_model
from agentrl_jax.setup.programs import Programs
from agentrl_jax.text.tokenizer import load_small
from agentrl_jax.train.horizon import Horizon
from agentrl_jax.train.roll_back import kept_checkpoints

BASE: dict[str, Any] = {
    "tasks": [{"env": "SimpleSokoban", "groups": 2, "name": name} for name in "ab"],
    "prompt": {"max_turns": 2, "max_response_tokens": 5},
    "rollout": {"group_size": 4},
    "algo": {
        "preset": "starpo",
        "objective": {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": None},
        "minibatches": 2,
    },
    "optim": {"lr": 0.05, "max_grad_norm": 1e4, "schedule": {"kind": "linear"}},
    "train": {"iterations": 4},
}
"""A critic, several turns and members of a group, more than one step so that clipping occurs; else the defaults."""
SECTIONS = ("algo", "optim", "prompt", "rollout", "train")
VALUES = (2, 1, 0.5, 8, 4, 3, 0.25, 1.0, -1.0, 0, 20, 300)
"""Of these the first that is accepted is tried."""
NEEDED = {"algo.objective": {"algo.mismatch.ratio_from": Literal["rollout"]}}
"""What a kind of a union may need in another one."""


SCHEDULED = ("entropy_coef", "rollout.temperature", "prompt.format_penalty", *NUMBERS)


def comes_with_it(part: Any) -> bool:
    """Whether a member of a union is none of the user."""
    return kind_of(part) != OWN if "kind" in part.model_fields else True


@dataclasses.dataclass(frozen=True)
class Setting:
    """A value of a setting, and the values of other settings without which it is refused, by dotted name."""

    name: str
    value: Any
    needs: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}={str(self.value).replace(' ', '')}"


def read(data: dict[str, Any]) -> Config:
    config = decode(data)
    validate(config)
    return config


def put(data: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of plain data with values set by dotted name; fields that another kind lacks are dropped."""
    data = copy.deepcopy(data)
    for name in sorted(values, key=lambda name: not name.endswith(".kind")):
        *path, last = name.split(".")
        node = data
        for step in path:
            node = node.setdefault(step, {})
        if last == "kind":
            kinds = {kind_of(kind): kind for kind in sections_of(functools.reduce(child_type, path, Config))}
            for key in node.keys() - kinds[values[name]].model_fields.keys():
                del node[key]
        node[last] = values[name]
    return data


def accepted(values: dict[str, Any]) -> Config | None:
    key = repr(sorted(values.items()))
    if key not in _ACCEPTED:
        try:
            _ACCEPTED[key] = read(put(BASE, values))
        except UserError:
            _ACCEPTED[key] = None
    return _ACCEPTED[key]


_ACCEPTED: dict[str, Config | None] = {}


def _values(annotation: Any) -> tuple[list[Any], bool]:
    """Values of a type to try, and whether each that is accepted is another case, as names are."""
    options = [x for x in get_args(annotation) if x is not types.NoneType]
    if get_origin(annotation) is Literal:
        return options, True
    if get_origin(annotation) is dict:
        if options[0] is not str:
            has_parts = "tokens" in map(kind_of, sections_of(options[1]))
            return [{"tokens": {"kind": "tokens", "weight": 0.5}}] if has_parts else [], True
        return [{name: {"end": end, "iterations": 1}} for name in SCHEDULED for end in (0.5, -2.0)], True
    if get_origin(annotation) is tuple:
        entry = get_args(annotation)[0]
        if entry is WeightedTerm:
            return [({"weight": 0.5, "rule": {"kind": "gae"}},)], True
        if entry is ParameterGroup:
            changes = ({"lr_factor": 0}, {"lr_factor": 0.5}, {"weight_decay": 0.5})
            return [({"match": "*", **change},) for change in changes], True
        return [(name,) for name in get_args(entry)] if get_origin(entry) is Literal else [(1,), (1, 2)], True
    if annotation is bool:
        return [True, False], True
    return (["|"] if annotation is str else list(VALUES)), False


def _fields() -> Iterator[tuple[str, Any, dict[str, Any], dict[str, Any]]]:
    """Names of settings with their types, the kind of their section that has them, and the other names there."""
    for section in SECTIONS:
        whole, *others = filter(comes_with_it, sections_of(Config.model_fields[section].annotation))
        for part in others:  # of a union, whose first member is the usual one
            for name in part.model_fields.keys() - whole.model_fields.keys() | {"kind"}:
                kind = {} if name == "kind" else {f"{section}.kind": kind_of(part)}
                yield f"{section}.{name}", part.model_fields[name].annotation, kind, {}
        plain = {f"{section}.{name}": field.annotation for name, field in whole.model_fields.items()}
        unions = {
            key: parts
            for key, of in plain.items()
            if get_origin(of) not in (dict, tuple) and (parts := sections_of(of))
        }
        plain = {key: annotation for key, annotation in plain.items() if key not in unions}
        plain.pop("algo.preset", None)
        for key, annotation in plain.items():
            yield key, annotation, {}, plain
        for key, parts in unions.items():
            for part in filter(comes_with_it, parts):
                below = {f"{key}.{name}": field.annotation for name, field in part.model_fields.items()}
                kind = {f"{key}.kind": part.model_fields["kind"].default} if "kind" in part.model_fields else {}
                for name, of in below.items():
                    yield name, of, {} if name in kind else kind, NEEDED.get(key, {}) | plain | below


def _found(name: str, annotation: Any, kind: dict[str, Any], others: dict[str, Any]) -> Iterator[Setting]:
    """The settings of one field, each alone or, if it is refused alone, beside another one of its section."""
    values, every = _values(annotation)
    beside = [{}, *({other: x} for other, of in others.items() for x in _values(of)[0][:3])]
    for several in [[value] for value in values] if every else [values]:
        found = filter(None, (_setting(name, value, kind, more) for more in beside for value in several))
        found = itertools.islice(found, 1) if every else found  # the usual name is the usual one beside anything
        yield from itertools.islice((setting for setting in found if setting.value is not None), 1)


def _setting(name: str, value: Any, kind: dict[str, Any], more: dict[str, Any]) -> Setting | None:
    """The setting, if it is accepted and another one; its value is None if it is the usual one."""
    changed = accepted(kind | more | {name: value})
    if changed is None:
        return None
    # A kind that needs another setting is compared with the base, which does not accept what it needs.
    plain = accepted(kind | more) or (None if kind else accepted({}))
    return plain and Setting(name, None if plain == changed else value, kind | more)


@functools.cache
def every_setting() -> tuple[Setting, ...]:
    return tuple(setting for field in _fields() for setting in _found(*field))


TOKENIZER = load_small()


@functools.cache
def _environment(prompt: Any, rollout: Any) -> Any:
    cheap = (TaskConfig(env="Bandit", groups=1), TaskConfig(env="FrozenLake", groups=1))
    return build.build_compiled_env(Config(tasks=cheap, prompt=prompt, rollout=rollout), TOKENIZER)


@functools.cache
def _stepped(optim: Any) -> list[Any]:
    shapes = {"embedding": (4, 3), "layers": {"query": (2, 3, 4), "norm": (2, 3)}, "norm": (3,)}
    draw, shaped = np.random.default_rng(0), functools.partial(jax.tree.map, is_leaf=lambda x: isinstance(x, tuple))
    params, *steps = (shaped(lambda shape: jnp.float32(draw.normal(size=shape)), shapes) for _ in range(3))
    tx, found = build_model.build_optimizer(Config(optim=optim)), []
    state = tx.init(params)
    for size, grads in enumerate(steps, 1):
        grads = jax.tree.map(lambda g, s=3.0**size: s * g, grads)
        updates, state = tx.update(tx.trained(grads), state, params)
        found += jax.tree.leaves(updates)
    return found


def built(config: Config) -> list[Any]:
    """All that is made of a configuration before anything is compiled, as plain data."""
    batched_env, algo, rollout = _environment(config.prompt, config.rollout), config.algo, config.rollout
    texts = [(task.prompt, task.grammar) for task in batched_env.tasks]
    rates, temperature = build_inputs.learning_rates(config), build_inputs.schedules(config)["rollout.temperature"]
    updates = [build_inputs.update_settings(config, float(rates(i)), i) for i in (0, 3, 4)]
    arrays = [texts, build_inputs.rollout_settings(config, batched_env, 2, float(temperature(1))), updates]
    horizon, pairs = Horizon(algo.horizon, config.prompt.max_turns), config.train.mutual_information_pairs
    return [
        build_inputs.engine_config(config, TOKENIZER, group_size=rollout.group_size, slots=rollout.slots),
        build_inputs.learner_config(config),
        build_model.rollout_model(config, build_model.build_model(config, TOKENIZER)),
        [(np.shape(leaf), np.asarray(leaf).tolist()) for leaf in jax.tree.leaves(arrays) + _stepped(config.optim)],
        jax.tree.structure(texts),
        batched_env.shared_noise,
        (horizon.plan, [horizon.turns(iteration) for iteration in range(4)]),
        kept_checkpoints(config.train),
        Programs.of_run(config, make_mesh(1)).offload,
        prompt_information.build_config(config.prompt, rollout, FULL, pairs, TOKENIZER).pairs,
        build_model.kept_by(config),
    ]


def changes_what_is_built(setting: Setting) -> bool:
    plain, changed = accepted(setting.needs) or accepted({}), accepted(setting.needs | {setting.name: setting.value})
    if id(plain) not in _BUILT:
        _BUILT[id(plain)] = built(plain)
    return _BUILT[id(plain)] != built(changed)


_BUILT: dict[int, list[Any]] = {}
"""By the configuration, all of which are kept in `_ACCEPTED`."""


class _Reads:
    """A part of a `LearnerConfig` that records the names of the fields that are read, by whatever method."""

    def __init__(self, part: Section, seen: set[str], prefix: str = ""):
        self.__dict__.update(_part=part, _seen=seen, _prefix=prefix)

    def __getattr__(self, name: str) -> Any:
        found = inspect.getattr_static(type(self._part), name, None)
        if isinstance(found, property):
            return found.fget(self)
        if inspect.isfunction(found):
            return functools.partial(found, self)
        self._seen.add(self._prefix + name)
        value = getattr(self._part, name)
        return _Reads(value, self._seen, f"{self._prefix}{name}.") if isinstance(value, Section) else value


def _members(name: str) -> list[Section]:
    """The members of a union of the learning rule, with values with which every field matters."""
    values = {"history": 1, "reward_normalization": "mean", "bootstrap_truncated": True, "ratio": 0.5, "k": 2}
    values |= {"estimator": "k2", "sync_every": 2}
    parts = filter(comes_with_it, sections_of(UpdateRule.model_fields[name].annotation))
    return [part(**{key: x for key, x in values.items() if key in part.model_fields}) for part in parts]


UNIONS = {name: _members(name) for name in ("advantage", "objective", "tokens", "kl", "filter", "mismatch")}
UNIONS["distillation"] = [
    part.replace(teacher="ema", gate="sdar") if part.kind == "self" else part for part in _members("distillation")
]
UNIONS["mismatch"] = [part for part in UNIONS["mismatch"] if not isinstance(part, Replay)]
"""The members of every union; a replay has no field, and needs an engine."""


def read_by_the_update(rule: dict[str, Section], context: str) -> tuple[set[str], set[str]]:
    """Fields that an update by a rule reads, and numbers on which its new state depends."""
    seen: set[str] = set()
    rule_of_tasks = {"weighs_tasks": True, "balance_tasks": True, "whiten_by": "task"}
    parts = {name: part.untraced() for name, part in rule.items()}
    config = RULE.replace(**parts, **rule_of_tasks, epochs=2, context=context)
    model = ActorCritic(decoder=SHAPE, critic="shared" if rule["advantage"].has_critic else "none")
    state = fresh_state(model, reference=rule["kl"].kind != "none")
    teaches = rule["distillation"].kind == "self"
    target = rule["kl"].kind == "fixed"  # else the weight of the entropy is a setting
    state = with_kept(state, Kept(teacher=teaches, average=True, entropy_coef=0.5 if target else None))
    hints = HINTS if teaches else None
    greedy = jax.tree.map(lambda x: x[2::GROUP_SIZE], TRAJECTORY)

    def learn(numbers):
        options = {"model": model, "config": _Reads(config, seen), "tx": PLAIN, "shards": Shards()}
        return update(state, TRAJECTORY, jnp.ones(EPISODES), KEY, numbers, greedy, hints, **options)[0]

    numbers = jax.tree.map(lambda x: jnp.full(x.shape, 0.5), settings())
    jaxpr = jax.make_jaxpr(learn)(numbers).jaxpr
    _, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return seen, {name for name, of in zip(leaves(numbers), used, strict=True) if of}


def leaves(numbers: UpdateSettings) -> dict[str, Any]:
    """Traced numbers by name, those of the rule by key."""
    found = jax.tree.leaves_with_path(numbers)
    return {jax.tree_util.keystr(path[-1:], simple=True): leaf for path, leaf in found}


READ_BEFORE = {"distillation.accept_weak_teacher"}
"""Fields of the rule that a run reads before its first update."""


def _moved(part: Any, field: str) -> Any:
    """A section with another traced number."""
    number, _, name = field.rpartition(".")
    if number:
        term = part.terms[int(number)]
        moved = _moved(term, name) if name == "weight" else term.replace(rule=_moved(term.rule, name))
        return part.replace(terms=(*part.terms[: int(number)], moved, *part.terms[int(number) + 1 :]))
    return part.replace(**{field: 0.25 * getattr(part, field) + 0.125})


def unread(rule: dict[str, Section], seen: set[str], used: set[str]) -> list[str]:
    config, found = accepted({}), []
    for name, part in rule.items():
        traced, algo = part.traced(), config.algo.replace(**{name: part})
        static = {f"{name}.{field}" for field in type(part).model_fields.keys() - traced.keys() - {"kind"}}
        found += static - seen - READ_BEFORE
        before = build_inputs.update_settings(config.replace(algo=algo), 1.0)
        for field in traced:
            changed = algo.replace(**{name: _moved(part, field)})
            after = build_inputs.update_settings(config.replace(algo=changed), 1.0)
            moved = {of for of, value in leaves(before).items() if np.any(leaves(after)[of] != value)}
            found += [] if moved and moved <= used else [f"{name}.{field}"]
    return found
