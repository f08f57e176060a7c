import os
import re

import pytest
import yaml

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
    load_resolved,
    save_resolved,
    to_dict,
    validate,
)
from agentrl_jax.config.advantages import Gae, Grpo
from agentrl_jax.config.algo import FractionFilter
from agentrl_jax.config.defaults import length_buckets, with_defaults
from agentrl_jax.config.fields import Section
from agentrl_jax.config.keys import listing, sections_of
from agentrl_jax.config.load import leaves
from agentrl_jax.errors import UserError
from agentrl_jax.setup import build
from agentrl_jax.setup.build import learning_rates


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
    assert config == with_defaults(Config()).replace(run_dir=os.path.join("runs", "first"))


def test_values_of_the_file_and_of_the_command_line(write):
    tasks = "tasks: [{env: Bandit, groups: 4}, {env: FrozenLake, groups: 8}]"
    path = write(f"seed: 3\n{tasks}\nalgo: {{objective: {{clip_high: 0.3}}}}\n")
    words = ["--algo.objective.clip_high", "0.25", "--tasks.1.groups=4", "--prompt.max-turns", "3", "--run_dir", "2026"]
    config = load_config(path, [*words, "--tasks.1.options.success_rate", "1", "--prompt.format_penalty", "-0.5"])
    assert (config.seed, config.algo.objective.clip_high, config.prompt.max_turns, config.run_dir) == (
        3,
        0.25,
        3,
        "2026",
    )
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
    algo = "algo: {preset: starpo, objective: {dual_clip: null}, minibatches: 2}"
    text = f"tasks: [{{env: X, groups: 4, options: {{slip: 0.3}}}}]\n{algo}"
    config = load_config(write(text), ["--optim.lr", "1e-6"])
    save_resolved(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    assert decode(to_dict(config)) == config
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == to_dict(config)


def test_presets_fill_what_is_not_given(write):
    path = write("algo: {preset: starpo, objective: {clip_low: 0.1}}\ntasks: [{env: X, groups: 8}]")
    algo = load_config(path).algo
    plain = decode({"algo": {"preset": "starpo"}}).algo
    assert algo == plain.replace(objective=plain.objective.replace(clip_low=0.1))
    overridden = load_config(path, ["--algo.preset", "starpo_grpo"]).algo
    assert (overridden.advantage, overridden.kl.kind, overridden.objective.clip_low) == (Grpo(), "fixed", 0.1)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("grpo", Grpo()),
        ({"kind": "grpo"}, Grpo()),
        ({"kind": "grpo", "normalize_by_std": False}, Grpo(normalize_by_std=False)),
        ({"kind": "gae", "lam": 0.9}, Gae(lam=0.9)),
        ({"lam": 0.9}, Gae(lam=0.9)),
    ],
)
def test_a_kind_of_its_own_replaces_the_preset_s_and_the_same_one_keeps_its_numbers(given, found):
    assert decode({"algo": {"advantage": given}}).algo.advantage == found


def test_a_part_with_kinds_on_the_command_line(write):
    path = write("algo: {advantage: grpo, filter: {ratio: 0.5}}")
    words = ["--algo.advantage.whiten", "true", "--algo.filter", "none", "--algo.kl.kind", "none"]
    algo = load_config(path, words).algo
    assert (algo.advantage, algo.filter.kind, algo.kl.kind) == (Grpo(whiten=True), "none", "none")
    assert load_config(path, ["--algo.filter", "{kind: top_k, k: 2}"]).algo.filter.k == 2
    assert load_config(path, ["--model.remat", "none"]).model.remat == "none"


def test_defaults_are_those_of_the_default_preset():
    assert decode({}) == with_defaults(Config(algo=AlgoConfig()))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("algo: {clip_hihg: 1}", ["unknown key algo.clip_hihg", "did you mean algo.objective.clip_high?"]),
        ("clip_high: 0.28", ["unknown key clip_high", "did you mean algo.objective.clip_high?"]),
        ("algo: {kl_coef: 1}", ["unknown key algo.kl_coef", "did you mean algo.kl.coef?"]),
        ("algo: {objective: {clip_hihg: 1}}", ["algo.objective.clip_hihg", "did you mean algo.objective.clip_high?"]),
        ("algo: {kl: {zzz: 1}}", ["unknown key algo.kl.zzz", "known keys here: kind"]),
        ("zzz: 1", ["unknown key zzz", "known keys here", "seed"]),
        ("seed: 1.5", ["seed is 1.5", "an integer"]),
        ("seed: true", ["seed is true", "an integer"]),
        ("seed: -1", ["seed is -1", "at least 0"]),
        ("seed: '1'", ['seed is "1"', "an integer"]),
        ("algo: {advantage: {gamma: 1.5}}", ["algo.advantage.gamma is 1.5", "at most 1"]),
        ("algo: {advantage: {gamma: .nan}}", ["algo.advantage.gamma"]),
        ("algo: {objective: {dual_clip: high}}", ['algo.objective.dual_clip is "high"', "a number"]),
        ("algo: {advantage: ppo}", ['algo.advantage.kind is "ppo"', "'grpo', 'rloo'"]),
        ("algo: {advantage: {kind: [1]}}", ["algo.advantage.kind is"]),
        ("algo: {advantage: 3}", ["algo.advantage is 3", "a kind, or keys with values"]),
        ("algo: {filter: [1]}", ["algo.filter is [1]", "a kind, or keys with values"]),
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
            ["tasks.0.options.a is [1]", "true or false or an integer or a number or text"],
        ),
        ("seed: 2020-01-01", ["seed", "an integer"]),
        ("1: 2", ["unknown key 1"]),
        ("- 1", ["list", "key: value"]),
        ("seed: [", ["run.yaml line", "not valid YAML"]),
        ("model: &m [*m]", ["a part of itself"]),
        ("seed: " + "[" * 3000, ["nested too deeply"]),
        ("seed: 4294967296", ["seed is 4294967296", "below 4294967296"]),
        ("model: {embed_dim: 100000000000}", ["model.embed_dim", "at most 1048576"]),
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
        (["--algo.clip_hihg", "1"], ["algo.clip_hihg", "algo.objective.clip_high"]),
        (["--tasks.4.groups", "1"], ["tasks has 1 entries"]),
        (["--seed.x", "1"], ["unknown key seed.x", "no keys below"]),
        (["--seed"], ["--seed", "no value"]),
        (["--seed", "--algo.epochs", "1"], ["--seed", "no value"]),
        (["seed", "1"], ["'seed'", "--algo.objective.clip_high"]),
        (["--seed", "[1"], ["--seed", "not a value"]),
        (["--seed", "x"], ['seed is "x"', "an integer"]),
        (["--seed", "010"], ['seed is "010"', "an integer"]),  # 8 in YAML 1.1
        (["--seed", "1:30"], ['seed is "1:30"', "an integer"]),  # 90
        (["--optim.lr", "1:30.5"], ['optim.lr is "1:30.5"', "a number"]),
    ],
)
def test_a_wrong_override_is_refused_in_one_line(write, words, parts):
    message = refused(write("tasks: [{env: X, groups: 4}]"), *words)
    for part in parts:
        assert part in message


def test_levels_without_end_are_refused_in_a_file_and_on_the_command_line(write):
    assert "recursion limit" in refused(write("{a: " * 250 + "1" + "}" * 250))
    deep = ["--tasks.0.options.x", "[" * 250 + "1" + "]" * 250]
    assert "the file is" in refused(write("tasks: [{env: X, groups: 4}]"), *deep)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({1: 2}, "unknown key 1;"),
        ({"model": {1: 2}}, "unknown key model.1;"),
        ({"tasks": [{"env": "X", "groups": 4, "options": {3: [1]}}]}, "tasks.0.options.3 is [1]"),
        ({"algo": {"kl": {"kind": "fixed", "fixed": 1, "coef": -1}}}, "algo.kl.coef is -1, expected a number"),
        ({"algo": {"filter": {"kind": "top_k", "k": "a", "top_k": [1]}}}, 'algo.filter.k is "a"'),
    ],
)
def test_keys_that_are_no_text_or_called_like_a_kind_are_named(data, message):
    with pytest.raises(UserError, match=re.escape(message)):
        decode(data)


def test_a_missing_file_is_refused(tmp_path):
    assert "no such file" in refused(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ["--algo.advantage", "grpo", "--rollout.group_size", "1", "--algo.filter", "none"],
            ["rollout.group_size is 1"],
        ),
        (["--rollout.group_size", "1"], ["algo.filter is fraction by std", "rollout.group_size is 1"]),
        (["--algo.filter.ratio", "0.1"], ["keeps none", "0.125"]),
        (["--algo.filter.ratio", "1"], ["algo.filter.ratio is 1", "below 1"]),
        (["--algo.filter", "none", "--algo.filter.by", "mean"], ["algo.filter.by is", "kind none does not have"]),
        (["--algo.kl.coef", "0.1"], ["algo.kl.coef is 0.1", "kind none does not have", "fixed or adaptive"]),
        (["--algo.mismatch.cap", "3"], ["algo.mismatch.cap is 3", "kind none does not have", "tis or icepop"]),
        (["--algo.minibatches", "5"], ["does not divide the 32 rows"]),
        (["--algo.advantage", "grpo", "--algo.advantage.reward_placement", "turn"], ["reward_placement is"]),
        (["--algo.advantage", "grpo", "--algo.advantage.reward_normalization", "mean"], ["reward_normalization is"]),
        (
            ["--algo.advantage.reward_placement", "turn", "--algo.advantage.reward_normalization", "mean"],
            ["algo.advantage.reward_normalization is mean", "reward_placement is turn"],
        ),
        (["--algo.advantage", "grpo", "--algo.advantage.gamma", "0.9"], ["gamma is 0.9", "kind grpo does not have"]),
        (["--algo.advantage", "rloo", "--algo.advantage.lam", "0.9"], ["lam is 0.9", "kind rloo does not have"]),
        (["--algo.advantage.turn_gamma", "0.9"], ["turn_gamma is 0.9", "kind gae does not have", "or gigpo"]),
        (
            ["--algo.preset", "grpo", "--algo.advantage.bootstrap_truncated", "true"],
            ["algo.advantage.bootstrap_truncated is true", "kind grpo does not have"],
        ),
        (["--algo.advantage.history", "2"], ["algo.advantage.history is 2"]),
        (
            ["--algo.advantage", "gigpo", "--algo.advantage.history_power", "2"],
            ["algo.advantage.history_power is 2", "history 0 does not read"],
        ),
        (["--algo.advantage", "bi_level_gae", "--algo.advantage.step_weight", "2"], ["step_weight is 2", "gigpo"]),
        (["--algo.objective", "gspo", "--algo.objective.dual_clip", "3"], ["dual_clip is 3", "gspo does not have"]),
        (["--algo.filter", "top_p", "--algo.filter.ratio", "0.25"], ["ratio is 0.25", "kind top_p does not have"]),
        (["--algo.filter.p", "0.5"], ["algo.filter.p is 0.5", "kind fraction does not have"]),
        (["--algo.filter", "top_p", "--algo.filter.largest", "false"], ["algo.filter.largest is false"]),
        (
            ["--algo.dynamic_sampling", "2", "--rollout.group_size", "1", "--algo.filter", "none"],
            ["algo.dynamic_sampling is 2", "at least 2 members"],
        ),
        (
            ["--algo.dynamic_sampling", "2", "--algo.mismatch", "replay"],
            ["algo.dynamic_sampling is 2", "replay replays one"],
        ),
        (
            ["--rollout.quantization", "weights", "--algo.mismatch", "replay"],
            ["rollout.quantization is weights", "use algo.mismatch tis"],
        ),
        (
            ["--rollout.quantization", "weights_and_cache", "--model.precision", "mixed", "--model.cache", "float32"],
            ["model.cache is float32", "leave model.cache out"],
        ),
        (["--rollout.quantization", "cache"], ['rollout.quantization is "cache"', "weights_and_cache"]),
        (["--algo.filter_group_size", "17"], ["algo.filter_group_size is 17", "rollout.group_size = 16"]),
        (["--algo.preset", "grpo", "--algo.filter_group_size", "1"], ["expected at least 2"]),
        (
            ["--algo.filter_group_size", "1", "--algo.advantage", "{kind: gae, reward_normalization: mean_std}"],
            ["algo.filter_group_size is 1", "expected at least 2"],
        ),
        (
            ["--algo.advantage", "{kind: gigpo, step_weight: 0, anchor: observation}"],
            ["algo.advantage.anchor is observation", "step_weight 0"],
        ),
        (["--algo.preset", "scaling_inter"], ["algo.horizon.turns is [5, 8, 10]", "prompt.max_turns = 5"]),
        (["--algo.kl.target", "0.1"], ["algo.kl.target is 0.1", "use kind adaptive"]),
        (["--algo.kl.horizon", "5"], ["algo.kl.horizon is 5", "use kind adaptive"]),
        (["--algo.kl", "{kind: adaptive, coef: 0}"], ["algo.kl.coef is 0", "above 0"]),
        (
            ["--algo.preset", "grpo", "--algo.kl", "{kind: adaptive, target: 0.1, horizon: 10}"],
            ["algo.kl.horizon is 10", "25.6"],
        ),
        (["--algo.filter", "{kind: min_p, by: mean}"], ["algo.filter.by is", "'std', 'entropy'"]),
        (["--algo.filter", "{kind: top_p, by: mean}"], ["algo.filter.by is", "'std', 'entropy'"]),
        (["--algo.filter", "{kind: min_p, p: 2}"], ["algo.filter.p is 2", "at most 1"]),
        (["--algo.filter", "{kind: top_k, k: 0.9}"], ["algo.filter.k is 0.9", "an integer"]),
        (["--algo.preset", "dapo", "--train.max_bad_updates", "1"], ["train.max_bad_updates is 1"]),
        (
            ["--algo.preset", "ppo", "--algo.kl.estimator", "k2"],
            ["algo.kl.apply_to is reward and algo.kl.estimator k2", "use algo.kl.estimator k1"],
        ),
        (["--algo.preset", "ppo", "--algo.kl.estimator", "full"], ["algo.kl.estimator full"]),
        (
            ["--algo.preset", "grpo", "--algo.kl", "{kind: fixed, apply_to: reward, estimator: k1}"],
            ["algo.kl.apply_to is reward", "grpo compares returns"],
        ),
        (
            ["--algo.preset", "rloo", "--algo.objective.clip_high", "0.2"],
            ["algo.objective.clip_high is 0.2", "kind policy_gradient does not have"],
        ),
        (
            ["--algo.preset", "rloo", "--algo.schedules", "{clip_high: {end: 1, iterations: 5}}"],
            ["algo.schedules.clip_high.end is 1", "policy_gradient"],
        ),
        (
            ["--algo.preset", "grpo", "--algo.schedules", "{value_coef: {end: 1, iterations: 5}}"],
            ["algo.schedules.value_coef.end is 1", "algo.advantage grpo"],
        ),
        (["--algo.preset", "rloo", "--algo.objective.dual_clip", "3"], ["dual_clip is 3", "policy_gradient"]),
        (["--algo.filter", "{kind: top_k, k: 16}"], ["algo.filter.k is 16", "all are kept"]),
        (["--algo.horizon", "{kind: adaptive, turns: [3]}"], ["algo.horizon.turns is [3]", "use stepwise"]),
        (["--mesh.rollout", "wide"], ["mesh.rollout is wide", "mesh.fsdp is 1"]),
        (["--env.workers", "8"], ["env.workers is 8", "the tasks are compiled"]),
        (["--algo.overlong_penalty", "2"], ["algo.overlong_penalty is 2", "overlong_buffer is 0; leave it out"]),
        (["--algo.overlong_buffer", "0.5", "--algo.overlong_penalty", "0"], ["algo.overlong_penalty is 0"]),
        (["--algo.preset", "grpo", "--optim.critic_lr", "1e-3"], ["optim.critic_lr is 0.001", "has no critic"]),
        (["--optim.decay", "all", "--optim.weight_decay", "0"], ["optim.decay is all", "optim.weight_decay is 0"]),
        (["--algo.preset", "grpo", "--train.critic_warmup", "2"], ["train.critic_warmup is 2", "has no critic"]),
        (["--train.critic_warmup", "200"], ["train.critic_warmup is 200", "train.iterations 200"]),
        (["--algo.preset", "grpo", "--algo.advantage.value_clip", "0.1"], ["algo.advantage.value_clip is 0.1"]),
        (["--algo.advantage.normalize_by_std", "false"], ["algo.advantage.normalize_by_std is false"]),
        (["--algo.horizon.every", "5"], ["algo.horizon.every is 5", "kind fixed does not have"]),
        (["--algo.horizon.turns", "[2, 3]"], ["algo.horizon.turns is [2, 3]", "kind fixed does not have"]),
        (["--algo.horizon", "{kind: stepwise, turns: []}"], ["algo.horizon.turns is []", "at least one"]),
        (["--algo.horizon", "{kind: stepwise, turns: [3, 2]}"], ["algo.horizon.turns is [3, 2]", "growing"]),
        (["--algo.horizon", "{kind: stepwise, turns: [2], min_gain: 0.1}"], ["min_gain is 0.1", "kind adaptive"]),
        (["--algo.schedules", "{kl_coef: {end: 0.1, iterations: 5}}"], ["algo.kl none"]),
        (["--algo.schedules", "{clip_low: {end: 1.5, iterations: 5}}"], ["clip_low.end is 1.5"]),
        (["--algo.schedules", "{temperature: {end: 0, iterations: 5}}"], ["temperature.end is 0"]),
        (["--algo.schedules", "{lr: {end: 0, iterations: 5}}"], ["algo.schedules"]),
        (["--algo.advantage.reward_grouping", "batch"], ["algo.advantage.reward_grouping is batch"]),
        (["--tasks", "[{env: X, groups: 4}, {env: X, groups: 4}]"], ["called X", "tasks.1.name X-2"]),
        (["--model.heads", "3"], ["model.heads is 3"]),
        (["--model.kv_heads", "3"], ["model.kv_heads is 3"]),
        (["--prompt.max_actions", "4"], ["prompt.max_actions = 4"]),
        (["--rollout.temperature", "0"], ["rollout.temperature is 0"]),
        (["--rollout.slots", "129"], ["rollout.slots is 129", "128 episodes"]),
        (["--rollout.prefill_rows", "128"], ["rollout.prefill_rows is 128", "128 episodes run at once"]),
        (["--devices", "3"], ["devices is 3"]),
        (["--imitation.levels", "8"], ["imitation.steps is 0"]),
        (["--imitation.dagger_rounds", "1"], ["imitation.dagger_rounds is 1", "imitation.dagger_levels is 0"]),
        (
            ["--imitation", "{levels: 8, steps: 50, dagger_rounds: 2, dagger_levels: 8}"],
            ["imitation.dagger_rounds is 2", "imitation.steps 50 has 2 parts of 25 steps"],
        ),
        (
            ["--imitation", "{levels: 8, steps: 50, plans: random, dagger_rounds: 1, dagger_levels: 8}"],
            ["imitation.dagger_rounds is 1", "imitation.plans optimal and exploring"],
        ),
        (["--imitation.plans", "exploring"], ["imitation.plans is exploring", "imitation.levels"]),
        (["--tasks.0.levels", "no/such/file.npy"], ["tasks.0.levels", "no such file"]),
    ],
)
def test_fields_that_do_not_fit_together_are_refused(write, words, parts):
    message = refused(write(""), *words)
    for part in parts:
        assert part in message


def test_a_ratio_is_not_rounded_below_its_meaning():
    validate(
        Config(
            tasks=(TaskConfig(env="X", groups=100),), algo=AlgoConfig(filter=FractionFilter(ratio=0.29), minibatches=29)
        )
    )


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
    b = a.replace(
        seed=1,
        tasks=(TaskConfig(env="X", groups=4, options={"slip": 0.1}), TaskConfig(env="Y", groups=2)),
        rollout=RolloutConfig(group_size=8),
    )
    assert differences(a, a) == []
    changed = {"seed", "rollout.group_size", "tasks.0.options", "tasks.0.options.slip"}
    added = {f"tasks.1.{name}" for name in TaskConfig.model_fields}
    assert set(differences(a, b)) == set(differences(b, a)) == changed | added


def sections(kind=Config):
    """Every section of the tree, of all kinds."""
    yield kind
    for field in kind.model_fields.values():
        for part in sections_of(field.annotation):
            yield from sections(part)


@pytest.mark.parametrize("section", dict.fromkeys(sections()))
def test_every_field_has_an_explanation_and_a_default(section):
    required = {"env", "groups", "end", "iterations"} if section.__name__ in ("TaskConfig", "ScheduleConfig") else set()
    for name, field in section.model_fields.items():
        assert name == "kind" or len(field.description or field.annotation.__doc__) > 5
        assert not field.is_required() or name in required


def test_the_listing_holds_every_key_with_its_value_and_every_other_kind():
    config = decode({"algo": {"preset": "dapo"}})
    text = listing(config)
    for key, value in leaves(to_dict(config)):
        if not key[-1].isdigit():
            assert f"--{key} {'none' if value is None else value if isinstance(value, str) and value else ''}" in text
    flat = " ".join(text.split())
    kinds = [field.default for field in AlgoConfig.model_fields.values() if isinstance(field.default, Section)]
    assert len(kinds) == 6
    for part in sections(AlgoConfig):
        names = set(part.model_fields) - {"kind"}
        if "kind" in part.model_fields and names:
            kind = part.model_fields["kind"].default
            assert f"(kind {kind} has" in flat or any(f"kind {kind}" in line for line in text.splitlines())


@pytest.mark.parametrize(
    "old", ["algo: {kl_where: none}", "algo: {kl: {kind: none}, logprobs: parallel}", "model: {dtype: float32}"]
)
def test_the_folder_of_an_older_version_is_refused_with_what_to_do(old, tmp_path):
    save_resolved(Config(run_dir="x"), tmp_path / "config.yaml")
    held = yaml.safe_load((tmp_path / "config.yaml").read_text())
    for section, values in yaml.safe_load(old).items():
        held[section] |= values
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(held))
    with pytest.raises(UserError) as caught:
        load_resolved(tmp_path / "config.yaml")
    message = str(caught.value)
    assert "\n" not in message
    assert f"if {tmp_path} was written by another version of agentrl, use that version, or a new run folder" in message


@pytest.mark.parametrize(
    ("changes", "buckets"),
    [
        ({}, 4),
        ({"algo": {"grad_accum_steps": 1}}, 1),
        ({"algo": {"grad_accum_steps": 2, "packing": True}}, 1),
        ({"algo": {"grad_accum_steps": 2, "length_buckets": 1}}, 1),
        ({"algo": {"grad_accum_steps": 2, "length_buckets": 7}}, 7),
        ({"rollout": {"context": "single_turn"}}, 1),
        ({"rollout": {"context": "single_turn"}, "prompt": {"max_turns": 5, "max_response_tokens": 128}}, 4),
        ({"rollout": {"context": "single_turn"}, "env": {"url": "local"}}, 4),
        ({"prompt": {"max_turns": 1}}, 1),
    ],
    ids=str,
)
def test_rows_that_can_differ_are_cut_to_several_lengths(changes, buckets):
    """By the file alone; a value that is given, and packing, come first."""
    config = decode({"algo": {"grad_accum_steps": 2}} | changes)
    assert length_buckets(config) == with_defaults(config).algo.length_buckets == buckets
    assert build.learner_config(config).length_buckets == buckets


@pytest.mark.parametrize(("name", "buckets"), [("demo", 1), ("frozen_lake", 1), ("sciworld", 1), ("textcraft", 4)])
def test_published_experiments_keep_their_row_lengths(name, buckets):
    assert load_config(f"experiments/{name}.yaml").algo.length_buckets == buckets
