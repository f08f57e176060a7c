"""Settings that change while a run goes on: which may, and what each was at a step."""

import json

import pytest
from refusing import refusal

from agentrl_jax.config import Config, decode, to_dict
from agentrl_jax.config.defaults import with_defaults
from agentrl_jax.config.keys import every_key
from agentrl_jax.config.migrations import FORMAT
from agentrl_jax.config.optim import Constant, Linear
from agentrl_jax.runs.config_history import FROM_NOW_ON, MAY_CHANGE, ConfigHistory, edited_keys, read_history, to_record
from agentrl_jax.runs.run_folder import RunFolder, read_config

BASE = with_defaults(Config(run_dir="x"))
SCHEDULES = {"rollout.temperature": {"shape": "linear", "end": 0.5, "iterations": 9}}


def with_keys(**changes):
    data = to_dict(BASE)
    for name, value in changes.items():
        section, key = name.split("__")
        data[section][key] = value
    return decode(data)


def test_the_keys_are_keys_of_the_configuration():
    changing = FROM_NOW_ON
    assert not (changing | MAY_CHANGE) - {*every_key()}
    assert {"optim.lr", "algo.objective.clip_high", "algo.kl.coef", "algo.filter.p"} <= changing
    assert not {"algo.objective.kind", "algo.epochs", "prompt.max_turns", "algo.filter.ratio"} & changing


def test_a_value_is_that_of_the_last_change_before_the_step():
    rows = [
        {"step": 10, "changed": {"optim.lr": ["0.1", "0.2"], "train.keep": ["2", "5"]}},
        {"step": 30, "changed": {"optim.lr": ["0.2", "0.3"], "rollout.slots": ["0", "4"]}},
        {"step": 20, "changed": {"optim.lr": ["0.3", "0.4"]}},  # the run went back to step 20
        {
            "step": 40,
            "changed": {"algo.schedules": ["{}", json.dumps({"temperature": SCHEDULES["rollout.temperature"]})]},
        },
    ]
    last = with_keys(optim__lr=0.4, algo__schedules=SCHEDULES, rollout__slots=4)
    history = ConfigHistory(last, rows)
    for step, rate in ((1, 0.1), (10, 0.1), (11, 0.2), (20, 0.2), (21, 0.4), (30, 0.4), (31, 0.4)):
        assert history.at(step).optim.lr == rate, step
    assert [history.at(step).rollout.slots for step in (30, 31)] == [0, 4]
    assert (history.at(40).algo.schedules, history.at(41)) == ({}, last)
    assert history.at(1).train.keep == last.train.keep  # on which nothing depends
    assert ConfigHistory(last).at(1) is last


@pytest.fixture
def begun(tmp_path):
    config = BASE.replace(run_dir=str(tmp_path / "run"), optim=BASE.optim.replace(schedule=Linear()))
    with RunFolder(config) as folder:
        folder.log({"step": 1, "stage": "rl", "iteration": 1})
    return config


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        *[("optim", {"lr": 0.5}), ("train", {"iterations": 300}), ("optim", {"schedule": Constant()})],
        ("algo", {"schedules": with_keys(algo__schedules=SCHEDULES).algo.schedules}),
    ],
)
def test_numbers_of_the_rule_change_on_request_only(section, changes, begun, tmp_path):
    changed = begun.replace(**{section: getattr(begun, section).replace(**changes)})
    assert "--accept_changes" in str(refusal(RunFolder, changed))
    assert read_history(tmp_path / "run") == []
    with RunFolder(changed, accept_changes=True) as folder:
        history = folder.history(changed)
    assert read_config(begun.run_dir) == changed
    (row,) = read_history(tmp_path / "run")
    assert (row["step"], [*row["changed"]]) == (0, [f"{section}.{name}" for name in changes])
    assert (history.at(0), history.at(1)) == (begun, changed)
    other = changed.replace(prompt=changed.prompt.replace(max_turns=3))
    assert "prompt.max_turns" in str(refusal(RunFolder, other, accept_changes=True))


def test_a_damaged_history_is_refused(begun, tmp_path):
    file = tmp_path / "run" / "config.history.jsonl"
    file.write_text('{"step": 1, "changed": {}}\n{"step": "1"}\n')
    with RunFolder(begun) as folder:
        assert refusal(folder.history, begun).value == 2


def test_what_was_edited_since_a_checkpoint_is_named():
    record = to_record(BASE)
    edited = with_keys(optim__lr=0.5, train__keep=7).replace(run_dir="y", devices=2)
    assert [*edited_keys(record, edited)] == [("optim.lr", str(BASE.optim.lr), "0.5")]
    for unknown in (None, {**record, "format": FORMAT + 1}):
        assert [*edited_keys(unknown, edited)] == []
    del record["keys"]["start"], record["keys"]["train"]["keep_every"]
    record["keys"]["rollout"]["context"] = record["keys"].pop("agent")["kind"]
    assert [*edited_keys({**record, "format": 2}, BASE)] == []
