import dataclasses
import inspect
import os

import pytest
import yaml

from agentrl_jax.algos.presets import PRESETS
from agentrl_jax.config import (
    AlgoConfig,
    Config,
    OptimConfig,
    RolloutConfig,
    TaskConfig,
    TrainConfig,
    decode,
    differences,
    load_config,
    save_resolved,
    to_dict,
    validate,
)
from agentrl_jax.errors import UserError
from agentrl_jax.rates import with_rates
from agentrl_jax.train.build import learning_rates


@pytest.fixture
def write(tmp_path):
    def write(text, name="run.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refused(path, *overrides):
    with pytest.raises(UserError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_empty_file_gives_the_defaults_and_a_folder_named_after_it(write):
    config = load_config(write("", "first.yaml"))
    assert config == dataclasses.replace(with_rates(Config()), run_dir=os.path.join("runs", "first"))


def test_values_of_the_file_and_of_the_command_line(write):
    path = write("seed: 3\ntasks: [{env: Bandit, groups: 4}, {env: FrozenLake, groups: 8}]\nalgo: {clip_high: 0.3}\n")
    words = ["--algo.clip_high", "0.25", "--tasks.1.groups=4", "--prompt.max-turns", "3", "--run_dir", "2026"]
    config = load_config(path, [*words, "--tasks.1.options.success_rate", "1", "--prompt.format_penalty", "-0.5"])
    assert (config.seed, config.algo.clip_high, config.prompt.max_turns, config.run_dir) == (3, 0.25, 3, "2026")
    assert [task.groups for task in config.tasks] == [4, 4]
    assert config.tasks[1].options == {"success_rate": 1}
    assert config.prompt.format_penalty == -0.5


def test_an_option_of_the_default_task_can_be_given_without_a_file_entry(write):
    assert load_config(write(""), ["--tasks.0.env", "FrozenLake"]).tasks == (TaskConfig(env="FrozenLake", groups=8),)


def test_numbers_with_an_exponent_are_numbers(write):
    config = load_config(write("optim: {lr: 1e-3, critic_lr: 5E-4}"), ["--model.norm_eps", "1e-5"])
    assert (config.optim.lr, config.optim.critic_lr, config.model.norm_eps) == (1e-3, 5e-4, 1e-5)


def test_types_of_options_are_kept(write):
    text = "tasks: [{env: X, groups: 4, options: {a: 1, b: 1.0, c: true, d: '1'}}]"
    options = load_config(write(text)).tasks[0].options
    assert [(value, type(value)) for value in options.values()] == [(1, int), (1.0, float), (True, bool), ("1", str)]


def test_the_resolved_file_reads_back_as_the_same_tree(write, tmp_path):
    text = "tasks: [{env: X, groups: 4, options: {slip: 0.3}}]\nalgo: {preset: starpo, dual_clip: null, minibatches: 2}"
    config = load_config(write(text), ["--optim.lr", "1e-6"])
    save_resolved(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    assert decode(to_dict(config)) == config
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == to_dict(config)


def test_presets_fill_what_is_not_given(write):
    path = write("algo: {preset: starpo, clip_low: 0.1}\ntasks: [{env: X, groups: 8}]")
    algo = load_config(path).algo
    assert algo.clip_low == 0.1
    assert {key: getattr(algo, key) for key in PRESETS["starpo"].values if key != "clip_low"} == {
        key: value for key, value in PRESETS["starpo"].values.items() if key != "clip_low"
    }
    overridden = load_config(path, ["--algo.preset", "starpo_grpo"]).algo
    assert (overridden.advantage, overridden.kl_where, overridden.clip_low) == ("grpo", "loss", 0.1)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_is_a_valid_configuration(preset):
    config = decode({"algo": {"preset": preset}, "prompt": {"max_turns": 10}})
    validate(config)
    assert {key: getattr(config.algo, key) for key in PRESETS[preset].values} == PRESETS[preset].values
    assert AlgoConfig.from_preset(preset) == config.algo
    assert AlgoConfig.from_preset(preset, clip_low=0.1).clip_low == 0.1


def test_defaults_are_those_of_the_default_preset():
    assert decode({}).algo == AlgoConfig()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("algo: {clip_hihg: 1}", ["unknown key algo.clip_hihg", "algo.clip_high"]),
        ("clip_high: 0.28", ["unknown key clip_high", "algo.clip_high"]),
        ("zzz: 1", ["unknown key zzz", "known keys here", "seed"]),
        ("seed: 1.5", ["seed is 1.5", "a whole number"]),
        ("seed: true", ["seed is true", "a whole number"]),
        ("seed: -1", ["seed is -1", "at least 0"]),
        ("seed: '1'", ['seed is "1"', "a whole number"]),
        ("algo: {gamma: 1.5}", ["algo.gamma is 1.5", "at most 1"]),
        ("algo: {gamma: .nan}", ["algo.gamma"]),
        ("algo: {dual_clip: high}", ['algo.dual_clip is "high"', "a number"]),
        ("algo: {advantage: ppo}", ['algo.advantage is "ppo"', "'grpo', 'rloo'"]),
        ("algo: {preset: best}", ['algo.preset is "best"', "starpo_s"]),
        ("algo: {preset: [1]}", ["algo.preset is [1]"]),
        ("algo: 3", ["algo is 3", "keys with values"]),
        ("prompt: {think: 1}", ["prompt.think is 1", "true or false"]),
        ("optim: {lr: .inf}", ["optim.lr", "a finite number"]),
        ("tasks: []", ["tasks is []", "at least one entry"]),
        ("tasks: {env: Bandit}", ["tasks", "a list"]),
        ("tasks: [{groups: 4}]", ["tasks.0.env is missing"]),
        ("tasks: [{env: X, groups: 0}]", ["tasks.0.groups is 0", "at least 1"]),
        ("tasks: [{env: X, groups: 4, group: 3}]", ["unknown key tasks.0.group", "tasks.0.groups"]),
        (
            "tasks: [{env: X, groups: 4, options: {a: [1]}}]",
            ["tasks.0.options.a is [1]", "bool or int or float or str"],
        ),
        ("seed: 2020-01-01", ["seed", "a whole number"]),
        ("1: 2", ["unknown key 1"]),
        ("- 1", ["list", "key: value"]),
        ("seed: [", ["run.yaml line", "not valid YAML"]),
        ("model: &m [*m]", ["a part of itself"]),
        ("seed: " + "[" * 3000, ["nested too deeply"]),
        ("seed: 4294967296", ["seed is 4294967296", "below 4294967296"]),
        ("model: {width: 100000000000}", ["model.width", "at most 1048576"]),
        ("optim: {lr: 1.0e+39}", ["optim.lr", "at most 3e+38"]),
        ("seed: 1\nseed: 2", ["given twice"]),
        ("seed: !!python/object/apply:os.getcwd []", ["not valid YAML"]),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_names_the_key(write, text, parts):
    message = refused(write(text))
    assert "run.yaml" in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--algo.clip_hihg", "1"], ["algo.clip_hihg", "algo.clip_high"]),
        (["--tasks.4.groups", "1"], ["tasks has 1 entries"]),
        (["--seed.x", "1"], ["unknown key seed.x", "no keys below"]),
        (["--seed"], ["--seed", "no value"]),
        (["--seed", "--algo.gamma", "1"], ["--seed", "no value"]),
        (["seed", "1"], ["'seed'", "--algo.clip_high"]),
        (["--seed", "[1"], ["--seed", "not a value"]),
        (["--seed", "x"], ['seed is "x"', "a whole number"]),
    ],
)
def test_a_wrong_override_is_refused_in_one_line(write, words, parts):
    message = refused(write("tasks: [{env: X, groups: 4}]"), *words)
    for part in parts:
        assert part in message


def test_a_missing_file_is_refused(tmp_path):
    assert "no such file" in refused(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--algo.advantage", "grpo", "--rollout.members", "1", "--algo.filter_ratio", "1"], ["rollout.members is 1"]),
        (["--rollout.members", "1"], ["algo.filter_ratio", "rollout.members is 1"]),
        (["--algo.filter_ratio", "0.1"], ["keeps none", "0.125"]),
        (["--algo.kl_coef", "0.1"], ["algo.kl_coef is 0.1", "algo.kl_where"]),
        (["--algo.importance_cap", "3"], ["algo.importance_cap is 3", "parallel does not read"]),
        (["--algo.minibatches", "5"], ["does not divide the 32 rows"]),
        (["--algo.advantage", "grpo", "--algo.reward_placement", "turn"], ["algo.reward_placement is turn"]),
        (["--algo.advantage", "grpo", "--algo.reward_normalisation", "mean"], ["algo.reward_normalisation is mean"]),
        (["--algo.reward_placement", "turn", "--algo.reward_normalisation", "mean"], ["reward_placement turn"]),
        (["--algo.advantage", "grpo", "--algo.gamma", "0.9"], ["algo.gamma is 0.9", "does not read"]),
        (["--algo.advantage", "rloo", "--algo.lam", "0.9"], ["algo.lam is 0.9", "does not read"]),
        (["--algo.turn_gamma", "0.9"], ["algo.turn_gamma is 0.9", "gae does not read"]),
        (
            ["--algo.preset", "grpo", "--algo.bootstrap_truncated", "true"],
            ["algo.bootstrap_truncated is true", "no critic"],
        ),
        (["--algo.anchor_history", "2"], ["algo.anchor_history is 2"]),
        (["--algo.advantage", "gigpo", "--algo.history_power", "2"], ["algo.history_power is 2", "anchor_history 0"]),
        (
            ["--algo.advantage", "bi_level_gae", "--model.critic", "separate", "--algo.step_weight", "2"],
            ["step_weight"],
        ),
        (["--algo.objective", "gspo"], ["algo.dual_clip is 3", "gspo does not read"]),
        (["--algo.filter_rule", "top_p"], ["algo.filter_ratio is 0.25", "top_p does not read"]),
        (["--algo.filter_value", "0.5"], ["algo.filter_value is 0.5", "fraction does not read"]),
        (
            ["--algo.filter_rule", "top_p", "--algo.filter_ratio", "1", "--algo.filter_largest", "false"],
            ["algo.filter_largest is false"],
        ),
        (
            ["--algo.max_rollouts", "2", "--rollout.members", "1", "--algo.filter_ratio", "1"],
            ["algo.max_rollouts is 2", "at least 2 members"],
        ),
        (["--algo.max_rollouts", "2", "--algo.logprobs", "strict"], ["algo.max_rollouts is 2", "strict replays one"]),
        (["--algo.filter_members", "17"], ["algo.filter_members is 17", "rollout.members = 16"]),
        (["--algo.preset", "grpo", "--algo.filter_members", "1"], ["expected at least 2"]),
        (["--algo.preset", "scaling_inter"], ["algo.horizons is [5, 8, 10]", "prompt.max_turns = 5"]),
        (["--algo.kl_target", "0.1"], ["algo.kl_target is 0.1", "algo.kl_coef is 0"]),
        (["--algo.kl_horizon", "5"], ["algo.kl_horizon is 5"]),
        (
            ["--algo.preset", "grpo", "--algo.kl_target", "0.1", "--algo.kl_horizon", "10"],
            ["algo.kl_horizon is 10", "25.6"],
        ),
        (
            ["--algo.preset", "starpo_s2", "--algo.filter_rule", "min_p", "--algo.filter_kind", "mean"],
            ["algo.filter_kind is mean"],
        ),
        (["--algo.preset", "dapo", "--algo.filter_rule", "min_p", "--algo.filter_value", "2"], ["use at most 1"]),
        (["--algo.preset", "dapo", "--algo.filter_rule", "top_k", "--algo.filter_value", "0.9"], ["a whole number"]),
        (["--algo.preset", "dapo", "--train.max_bad_updates", "1"], ["train.max_bad_updates is 1"]),
        (
            ["--algo.preset", "ppo", "--algo.kl_kind", "k2"],
            ["algo.kl_where is reward and algo.kl_kind k2", "use algo.kl_kind k1"],
        ),
        (["--algo.preset", "ppo", "--algo.kl_kind", "full"], ["algo.kl_kind full"]),
        (
            ["--algo.preset", "rloo", "--algo.clip_high", "0.2"],
            ["algo.clip_high is 0.2", "policy_gradient does not read"],
        ),
        (
            ["--algo.preset", "rloo", "--algo.schedules", "{clip_high: {end: 1, iterations: 5}}"],
            ["algo.schedules.clip_high.end is 1, which"],
        ),
        (["--algo.preset", "rloo", "--algo.dual_clip", "3"], ["algo.dual_clip is 3", "policy_gradient does not read"]),
        (["--algo.overlong_penalty", "2"], ["algo.overlong_penalty is 2", "overlong_buffer 0 does not read"]),
        (["--algo.overlong_buffer", "0.5", "--algo.overlong_penalty", "0"], ["algo.overlong_penalty is 0"]),
        (["--algo.preset", "grpo", "--optim.critic_lr", "1e-3"], ["optim.critic_lr is 0.001", "has no critic"]),
        (["--optim.decay", "all", "--optim.weight_decay", "0"], ["optim.decay is all", "optim.weight_decay is 0"]),
        (["--algo.preset", "grpo", "--train.critic_warmup", "2"], ["train.critic_warmup is 2", "has no critic"]),
        (["--train.critic_warmup", "200"], ["train.critic_warmup is 200", "train.iterations 200"]),
        (["--algo.preset", "grpo", "--algo.value_clip", "0.1"], ["algo.value_clip is 0.1"]),
        (["--algo.grpo_std", "false"], ["algo.grpo_std is false"]),
        (["--algo.horizon_every", "5"], ["algo.horizon_every is 5"]),
        (["--algo.horizons", "[2, 3]"], ["horizon fixed does not read"]),
        (["--algo.horizon", "stepwise"], ["algo.horizons is []"]),
        (["--algo.horizon", "stepwise", "--algo.horizons", "[3, 2]"], ["algo.horizons is [3, 2]"]),
        (["--algo.horizon_gain", "0.1"], ["algo.horizon_gain is 0.1"]),
        (["--algo.schedules", "{kl_coef: {end: 0.1, iterations: 5}}"], ["algo.kl_where is none"]),
        (["--algo.schedules", "{clip_low: {end: 1.5, iterations: 5}}"], ["clip_low.end is 1.5"]),
        (["--algo.schedules", "{temperature: {end: 0, iterations: 5}}"], ["temperature.end is 0"]),
        (["--algo.schedules", "{lr: {end: 0, iterations: 5}}"], ["algo.schedules"]),
        (["--algo.reward_grouping", "batch"], ["algo.reward_grouping is batch"]),
        (["--tasks", "[{env: X, groups: 4}, {env: X, groups: 4}]"], ["called X", "tasks.1.name X-2"]),
        (["--model.heads", "3"], ["model.heads is 3"]),
        (["--model.kv_heads", "3"], ["model.kv_heads is 3"]),
        (["--prompt.max_actions", "4"], ["prompt.max_actions = 4"]),
        (["--rollout.temperature", "0"], ["rollout.temperature is 0"]),
        (["--rollout.slots", "129"], ["rollout.slots is 129", "128 episodes"]),
        (["--devices", "3"], ["devices is 3"]),
        (["--imitation.levels", "8"], ["imitation.steps is 0"]),
        (["--tasks.0.levels", "no/such/file.npy"], ["tasks.0.levels", "no such file"]),
    ],
)
def test_fields_that_do_not_fit_together_are_refused(write, words, parts):
    message = refused(write(""), *words)
    for part in parts:
        assert part in message


def test_a_ratio_is_not_rounded_below_its_meaning():
    validate(Config(tasks=(TaskConfig(env="X", groups=100),), algo=AlgoConfig(filter_ratio=0.29, minibatches=29)))


def test_a_name_tells_two_tasks_of_one_environment_apart(write):
    config = load_config(write("tasks: [{env: X, groups: 4}, {env: X, groups: 4, name: hard}]"))
    assert [task.label for task in config.tasks] == ["X", "hard"]


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [("constant", [0.5, 1, 1, 1]), ("linear", [0.5, 0.75, 0.5, 0.25]), ("cosine", [0.5, 0.853553, 0.5, 0.146447])],
)
def test_learning_rates_rise_and_fall(schedule, factors):
    """The first iteration already learns, and so does the last."""
    config = Config(optim=OptimConfig(schedule=schedule, warmup=2), train=TrainConfig(iterations=4))
    rates = learning_rates(config)
    assert [float(rates(i)) for i in range(4)] == pytest.approx(factors, rel=1e-5)


def test_differences_names_every_key_that_differs():
    a = Config(tasks=(TaskConfig(env="X", groups=4),))
    b = dataclasses.replace(
        a,
        seed=1,
        tasks=(TaskConfig(env="X", groups=4, options={"slip": 0.1}), TaskConfig(env="Y", groups=2)),
        rollout=RolloutConfig(members=8),
    )
    assert differences(a, a) == []
    changed = {"seed", "rollout.members", "tasks.0.options", "tasks.0.options.slip"}
    added = {f"tasks.1.{field.name}" for field in dataclasses.fields(TaskConfig)}
    assert set(differences(a, b)) == set(differences(b, a)) == changed | added


def test_every_field_has_an_explanation_and_a_default():
    for section in (Config, *(type(getattr(Config(), field.name)) for field in dataclasses.fields(Config))):
        if not dataclasses.is_dataclass(section):
            continue
        source = inspect.getsource(inspect.getmodule(section))
        for field in dataclasses.fields(section):
            after = source.split(f"class {section.__name__}:")[1].split(f"    {field.name}: ")[1]
            statement, explanation = after.split('"""')[:2]
            assert len(explanation) > 5
            assert ": " not in statement.split("\n    ")[-1]
            assert field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
