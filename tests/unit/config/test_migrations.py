"""Configurations of earlier versions mean today what they meant then, and no key changes without a migration."""

import itertools
import json
import operator
import re

import pytest
import yaml
from paths import TESTS
from refusing import refusal

from agentrl_jax.config import Config, TaskConfig, load_config, load_resolved, save_resolved
from agentrl_jax.config.algo import ScheduleConfig
from agentrl_jax.config.defaults import with_defaults
from agentrl_jax.config.keys import child_type, every_key, sections_of
from agentrl_jax.config.migrations import FORMAT

FORMATS = TESTS / "golden" / "formats"
FALLS = {"end": 0.1, "iterations": 9, "shape": "linear"}


def test_a_run_of_the_flat_rule_is_read():
    """Written before rules had sections; the values are those of its file."""
    config = load_resolved(FORMATS / "flat_rule.yaml")
    assert (config.model.embed_dim, config.prompt.max_response_tokens, config.rollout.group_size) == (16, 8, 8)
    algo = config.algo
    assert (algo.advantage.kind, algo.advantage.value_coef, algo.advantage.reward_placement) == ("gae", 0.02, "turn")
    assert (algo.objective.kind, algo.objective.dual_clip, algo.grad_accum_steps) == ("ppo", 3.0, 2)
    assert (algo.filter.kind, algo.filter.ratio, algo.kl.kind) == ("fraction", 0.25, "none")
    assert (algo.mismatch.ratio_from, config.optim.decay) == ("learner", "all")


def test_a_run_without_a_format_is_read():
    config = load_resolved(FORMATS / "no_format.yaml")
    assert (config.algo.mismatch.ratio_from, config.optim.decay) == ("rollout", "matrices")
    assert config.train.recorded_mb == 1024


@pytest.mark.parametrize(
    ("flat", "key", "value"),
    [
        ({"advantage": "grpo", "grpo_std": False}, "advantage.normalize_by_std", False),
        ({"advantage": "gigpo", "anchor_history": 2, "step_weight": 0.5}, "advantage.history", 2),
        ({"advantage": "bi_level_gae", "turn_gamma": 0.9}, "advantage.turn_gamma", 0.9),
        ({"advantage": "reward_to_go", "gamma": 0.5}, "advantage.gamma", 0.5),
        ({"advantage": "remax"}, "advantage.kind", "remax"),
        ({"objective": "gspo", "clip_high": 4e-4}, "objective.clip_high", 4e-4),
        ({"objective": "cispo"}, "objective.kind", "cispo"),
        ({"kl_where": "loss", "kl_kind": "k2", "kl_coef": 0.5}, "kl.coef", 0.5),
        ({"kl_where": "loss", "kl_coef": 0.5, "kl_target": 0.1}, "kl.kind", "adaptive"),
        ({"filter_ratio": 1.0}, "filter.kind", "none"),
        ({"filter_rule": "top_k", "filter_value": 3}, "filter.k", 3),
        ({"filter_rule": "min_p", "filter_value": 0.5, "filter_zero": False}, "filter.include_zero", False),
        ({"filter_rule": "top_p", "filter_value": 0.5}, "filter.p", 0.5),
        ({"logprobs": "masked", "importance_cap": 3.0}, "mismatch.high", 3.0),
        ({"logprobs": "masked", "importance_cap": 4.0}, "mismatch.low", 0.25),
        ({"logprobs": "truncated", "importance_cap": 4.0}, "mismatch.low", 0.0),
        ({"logprobs": "truncated", "importance_level": "sequence"}, "mismatch.reduction", "mean"),
        ({"horizon": "adaptive", "horizons": [2, 4], "horizon_gain": 0.1}, "horizon.min_gain", 0.1),
        ({"max_rollouts": 3, "filter_ratio": 1.0}, "dynamic_sampling", 3),
        ({"schedules": {"clip_low": FALLS}}, "schedules", {"objective.clip_low": ScheduleConfig(**FALLS)}),
        ({"schedules": {"temperature": FALLS}}, "schedules", {"rollout.temperature": ScheduleConfig(**FALLS)}),
        ({"schedules": {"entropy_coef": FALLS}}, "schedules", {"entropy_coef": ScheduleConfig(**FALLS)}),
    ],
)
def test_each_kind_of_the_flat_rule_has_its_section(flat, key, value, tmp_path):
    data = yaml.safe_load((FORMATS / "flat_rule.yaml").read_text())
    data["algo"] |= flat
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(data))
    config = load_resolved(tmp_path / "config.yaml")
    assert operator.attrgetter(key)(config.algo) == value
    assert config.optim.critic_lr == (data["optim"]["critic_lr"] if config.algo.advantage.has_critic else None)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_an_optimizer_without_a_kind_is_adamw_whose_rates_end_with_the_run(schedule, tmp_path):
    data = yaml.safe_load((FORMATS / "no_format.yaml").read_text())
    data["optim"] |= {"schedule": schedule, "b2": 0.95}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(data))
    optim = load_resolved(tmp_path / "config.yaml").optim
    assert (optim.kind, optim.b2, optim.groups, optim.warmup_share) == ("adamw", 0.95, (), 0.0)
    ends = {} if schedule == "constant" else {"end_factor": 0.0, "iterations": 0}
    assert optim.schedule.model_dump() == {"kind": schedule, **ends}


def test_a_stored_configuration_is_read_without_the_files_that_it_names(tmp_path):
    tasks = (TaskConfig(env="SimpleSokoban", groups=8, levels=str(tmp_path / "gone.npy")),)
    config = with_defaults(Config(run_dir="x", tasks=tasks))
    save_resolved(config, tmp_path / "config.yaml")
    assert load_resolved(tmp_path / "config.yaml") == config
    error = refusal(load_config, tmp_path / "config.yaml")
    assert (error.key, error.value) == ("tasks.0.levels", tasks[0].levels)


def test_a_format_of_a_later_version_and_a_part_of_a_configuration_are_refused(tmp_path):
    file = tmp_path / "config.yaml"
    for number, load in itertools.product((FORMAT + 1, -1, "1", True), (load_resolved, load_config)):
        file.write_text(yaml.safe_dump({"format": number, "version": "9.9"}))
        error = refusal(load, file)
        assert (error.key, error.value, "9.9" in str(error)) == (f"{file}: format", number, True)
    file.write_text("seed: 1\n")
    assert refusal(load_resolved, file).key == str(file)


def test_no_key_changes_without_a_migration():
    """Add a function to `migrations.MIGRATIONS`; then write what this test found into keys.json."""

    def kind(key):
        found = Config
        for name in key.split("."):
            found = child_type(found, name)
        return "section" if sections_of(found) else re.sub(r"typing\.| at 0x[0-9a-f]+", "", str(found))

    found = {"format": FORMAT, "keys": {key: kind(key) for key in every_key()}}
    assert json.loads((FORMATS / "keys.json").read_text()) == found
