"""Pairs of settings: either the run is refused with one sentence, or both settings change the parameters.

`make test` tests a sample, `make test-all` all pairs.
"""

import itertools
import random

import jax
import numpy as np
import pytest
import two_updates
from paths import TESTS
from setting_table import BASE, BUILT, ELSEWHERE, IDLE_WITH, TRIED, Setting, put
from two_updates import SMALLEST, Judge, difference, read

from agentrl_jax.config import Config
from agentrl_jax.config.algo import Moving
from agentrl_jax.config.keys import every_key
from agentrl_jax.config.load import leaves
from agentrl_jax.config.presets import NAMES, read_preset
from agentrl_jax.errors import UserError
from agentrl_jax.learner import prompt_information as dependence
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.setup import build
from agentrl_jax.setup.programs import Programs
from agentrl_jax.text.tokenizer import load_small
from agentrl_jax.train.horizon import Horizon
from agentrl_jax.train.roll_back import kept_checkpoints

SECTIONS = ("algo.", "optim.", "prompt.", "rollout.", "train.")
PAIRS = [pair for pair in itertools.combinations(TRIED, 2) if pair[0].name != pair[1].name]
SAMPLE = 60
"""Pairs of a quick run."""


@pytest.fixture(scope="module")
def judge():
    return Judge()


def is_known(idle: Setting, other: Setting) -> bool:
    """Whether a setting has no effect together with another, for a listed reason."""
    return any(idle.name in names and rule(other) for names, rule, _ in IDLE_WITH)


def complaints(judge, one: Setting, other: Setting) -> list[str]:
    """Returns what is wrong with a pair."""
    refusal = judge.refusal(one, other)
    if refusal:
        # One sentence that names a value: no traceback, no second line.
        return [] if "\n" not in refusal and " is " in f" {refusal} " else [f"{one} with {other}: {refusal}"]
    idle = judge.idle(one, other)
    of = [(x, other if x is one else one) for x in idle]
    return [f"{x} changes nothing beside {beside}" for x, beside in of if not is_known(x, beside)]


def test_every_setting_is_in_a_table():
    tried = {"algo.schedules" if "schedules" in setting.name else setting.name for setting in TRIED}
    every = list(every_key())
    fields = {key for key in every if key.startswith(SECTIONS) and not any(k.startswith(f"{key}.") for k in every)}
    assert fields - tried - ELSEWHERE.keys() == set()
    assert ELSEWHERE.keys() - fields == set()
    assert tried & ELSEWHERE.keys() == set()
    assert {setting.name for setting in TRIED} - set(every) <= {f"algo.schedules.{name}" for name in Moving.__args__}
    moved = {setting.name.removeprefix("algo.schedules.") for setting in TRIED if "schedules" in setting.name}
    assert moved == set(Moving.__args__)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_settings_that_do_not_reach_the_update_are_covered(name):
    file, test = ELSEWHERE[name][1].split("::")
    assert f"def {test}(" in (TESTS / file).read_text()


def built(config: Config) -> list:
    """All that is made of a configuration before anything is compiled, as plain data."""
    tokenizer = load_small()
    batched_env = build.build_compiled_env(config, tokenizer)
    horizon = Horizon(config.algo.horizon, config.prompt.max_turns)
    slots = config.rollout.slots
    texts = [(task.prompt, task.grammar) for task in batched_env.tasks]
    arrays = [texts, build.rollout_settings(config, batched_env, 2, 1.0)]
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
        dependence.build_config(config.prompt, config.rollout, config.train.mutual_information_pairs, tokenizer).pairs,
    ]


@pytest.mark.parametrize("setting", BUILT, ids=str)
def test_settings_whose_test_starts_below_the_configuration_arrive_there(setting):
    changes = (setting.needs, setting.needs | {setting.name: setting.value})
    plain, again, changed = (built(read(put(BASE, values))) for values in (changes[0], *changes))
    assert plain == again
    assert plain != changed


def _is_traced(setting: Setting) -> bool:
    """Whether neither a value nor the settings that it needs require another program."""
    try:
        rule = build.learner_config(read(put(BASE, {setting.name: setting.value})))
    except UserError:
        return False
    plain = build.learner_config(read(BASE))
    return not setting.needs and setting.name.split(".")[0] in ("algo", "optim", "train") and rule == plain


NUMBERS = [setting for setting in TRIED if _is_traced(setting)]
"""Settings that can change without a new program."""


def test_numbers_matter_beside_each_other(judge):
    """All pairs of numbers under one algorithm, with every program compiled once."""
    pairs = [pair for pair in itertools.combinations(NUMBERS, 2) if pair[0].name != pair[1].name]
    assert len(pairs) > 150
    found = [line for pair in pairs for line in complaints(judge, *pair)]
    assert found == []


FEW = ("algo.advantage.kind", "algo.objective.kind", "algo.minibatches", "algo.advantage.reward_placement")
RULES = [next(setting for setting in TRIED if setting.name == name) for name in FEW]
"""Settings that need another program, with one value each."""


def test_a_sample_of_pairs(judge):
    """Numbers together with a few settings that need other programs."""
    pairs = [pair for pair in PAIRS if any(x in RULES for x in pair) and any(x in NUMBERS for x in pair)]
    chosen = random.Random(0).sample(pairs, SAMPLE)
    before = two_updates.compiled()
    found = [line for pair in chosen for line in complaints(judge, *pair)]
    assert found == []
    assert two_updates.compiled() - before <= 12


def test_refusals_are_sentences(judge):
    refused = [judge.refusal(*pair) for pair in random.Random(1).sample(PAIRS, 600)]
    assert sum(map(bool, refused)) > 20
    assert all("\n" not in text and len(text) > 30 for text in refused if text)


@pytest.mark.slow
@pytest.mark.parametrize("first", TRIED, ids=str)
def test_every_pair(judge, first):
    """All pairs with settings that come later in the table; hundreds of programs."""
    later = TRIED[TRIED.index(first) + 1 :]
    found = [line for other in later if other.name != first.name for line in complaints(judge, first, other)]
    assert found == []


def test_what_changes_memory_alone_is_seen_to_change_nothing(judge):
    """Checks the criterion: microbatches change only rounding, and are found to have no effect."""
    parts = judge.results.of(read(put(BASE, {"algo.grad_accum_steps": 2})))
    assert difference(parts, judge.results.of(read(BASE))) < SMALLEST / 3


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_holds_no_value_that_nothing_reads(judge, name):
    """Another value for a key of the preset is not refused as unused."""
    base = put(BASE, {"tasks": [{"env": "SimpleSokoban", "groups": 16}], "prompt.max_turns": 10})
    base = put({**base, "algo": {"preset": name}}, {"rollout.group_size": 16})
    given, unread = {key for key, _ in leaves(read_preset(name).values, lists=False)}, []
    for setting in TRIED:
        if setting.name.removeprefix("algo.") in given:
            refusal = judge.read(put(base, {setting.name: setting.value}))
            refused = isinstance(refusal, str) and refusal.startswith(f"configuration: {setting.name} is")
            if refused and ("does not read" in refusal or "does not have" in refusal):
                unread.append(refusal)
    assert unread == []


REFUSED = [
    ({"algo.kl.estimator": "k2"}, 'algo.kl.estimator is "k2", which algo.kl.kind none does not have'),
    ({"algo.kl": {"kind": "fixed", "coef": 0.0}}, "algo.kl.coef is 0 and stays so"),
    ({"algo.filter.by": "mean"}, 'algo.filter.by is "mean", which algo.filter.kind none does not have'),
    ({"algo.filter.largest": False}, "algo.filter.largest is false, which algo.filter.kind none does not have"),
    (
        {"algo.filter": {"kind": "top_p", "include_zero": False}},
        "algo.filter.include_zero is false, which top_p with p below 1 does not read",
    ),
    (
        {"algo.filter_group_size": 4},
        "algo.filter_group_size is 4; expected at least 1 and fewer than rollout.group_size = 4",
    ),
    (
        {"algo.objective.kind": "policy_gradient", "algo.mismatch.ratio_from": "rollout"},
        "algo.mismatch.ratio_from is rollout, from which ratios start, but algo.objective policy_gradient has none",
    ),
    (
        {"algo.horizon": {"kind": "stepwise", "turns": [2]}},
        "algo.horizon.turns is [2], which is prompt.max_turns from the start",
    ),
    (
        {"algo.schedules.value_coef": {"end": 1.0, "iterations": 2}},
        "algo.schedules.value_coef.end is 1, where value_coef starts from",
    ),
    (
        {
            "algo.kl": {"kind": "adaptive", "estimator": "k2", "coef": 1.0, "target": 0.01},
            "algo.schedules.kl_coef": {"end": 0.0, "iterations": 2},
        },
        "algo.kl is adaptive, which moves algo.kl.coef, and algo.schedules.kl_coef moves it too",
    ),
    (
        {"prompt.max_turns": 1, "algo.advantage.reward_placement": "turn"},
        "algo.advantage.reward_placement is turn, which prompt.max_turns 1 does not read",
    ),
    (
        {"prompt.max_turns": 1, "rollout.context": "single_turn"},
        "rollout.context is single_turn, but prompt.max_turns is 1",
    ),
    (
        {"prompt.max_turns": 1, "algo.advantage": "bi_level_gae"},
        "algo.advantage is bi_level_gae, which is gae where",
    ),
    (
        {"prompt.max_turns": 1, "algo.advantage": {"kind": "gigpo", "history": 1}},
        "algo.advantage.history is 1, which prompt.max_turns 1 does not read",
    ),
]


@pytest.mark.parametrize(("values", "words"), REFUSED)
def test_what_does_nothing_is_refused(values, words):
    with pytest.raises(UserError) as error:
        read(put(BASE, values))
    assert str(error.value).removeprefix("configuration: ").startswith(words)


def test_the_base_is_a_run():
    assert isinstance(read(BASE), Config)
