"""Every setting is read: it changes what a run is built of, and the update reads it; an idle one is refused."""

import functools
import re

import changed_settings
import pytest
from changed_settings import BASE, SECTIONS, UNIONS, changes_what_is_built, every_setting, put, read, read_by_the_update
from made_up import settings
from paths import ROOT

from agentrl_jax.config.keys import FILLED, every_key
from agentrl_jax.config.load import leaves
from agentrl_jax.config.presets import NAMES, read_preset
from agentrl_jax.errors import UserError
from agentrl_jax.learner.settings import LearnerConfig
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN

BY_THE_RUN = {
    *(f"algo.{name}" for name in ("dynamic_sampling", "logprob_gap_limit")),
    *(f"train.{name}" for name in ("checkpoint_every", "validate_every", "validation_episodes", "max_bad_updates")),
    *(f"train.{name}" for name in ("validation_temperature", "on_collapse", "roll_back_factor", "max_roll_backs")),
    *(f"train.{name}" for name in ("trajectories_every", "trajectories", "recorded_mb", "keep_every", "loggers")),
    *(
        f"train.{name}"
        for name in ("best.metric", "best.mode", "best.evaluate", "stop.at", "stop.alpha", "stop.patience")
    ),
}
"""Settings that a run reads while it goes on."""


def test_every_setting_is_tried_or_read_by_name():
    every = {key for key in every_key() if key.startswith(tuple(f"{section}." for section in SECTIONS))}
    tried = {setting.name for setting in every_setting()}
    assert {key for key in every if not any(k.startswith(f"{key}.") for k in every)} - tried == {
        "algo.preset",
        "algo.normalize_rewards",
        "train.metrics",
        *FILLED_IN,
    }
    files = [path for path in (ROOT / "agentrl_jax").rglob("*.py") if path.parent.name != "config"]
    code = "\n".join(path.read_text() for path in files)
    assert [key for key in BY_THE_RUN if not re.search(rf"\.{key.split('.')[-1]}\b", code)] == []


def test_every_other_setting_changes_what_a_run_is_built_of():
    assert {setting.name for setting in every_setting() if not changes_what_is_built(setting)} == BY_THE_RUN


OWN = "algo.advantage.", "algo.objective.", "algo.filter.", "optim."
FILLED_IN = {key for key in every_key() if key.startswith(OWN) and key.split(".")[-1] in FILLED[1:]}
"""Of functions of the user, see tests/unit/setup; normalized rewards are in test_reward_parts.py."""
RULES = [{name: of[i % len(of)] for name, of in UNIONS.items()} for i in range(max(map(len, UNIONS.values())))]
"""Rules that together have every member of every union."""


@functools.cache
def read_by(number):
    return read_by_the_update(RULES[number], (FULL, SINGLE_TURN)[number % 2])


@pytest.mark.parametrize("number", range(len(RULES)))
def test_an_update_reads_every_field_of_its_rule(number):
    assert changed_settings.unread(RULES[number], *read_by(number)) == []


def test_an_update_reads_every_other_field_and_number():
    fields, numbers = (set.union(*found) for found in zip(*map(read_by, range(len(RULES)))))
    assert LearnerConfig.model_fields.keys() - fields == set()
    assert changed_settings.leaves(settings()).keys() - numbers == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_holds_no_value_that_nothing_reads(name):
    given = {f"algo.{key}" for key, _ in leaves(read_preset(name).values, lists=False)}
    base = put(BASE, {"tasks": [{"env": "SimpleSokoban", "groups": 16}], "prompt.max_turns": 10})
    base, idle = put({**base, "algo": {"preset": name}}, {"rollout.group_size": 16}), []
    for setting in every_setting():
        if given & {setting.name, setting.name.removesuffix(".kind")}:
            try:
                read(put(base, {setting.name: setting.value}))
            except UserError as error:
                if error.key == setting.name and re.search("does not (read|have)", str(error)):
                    idle.append(str(setting))
    assert idle == []
