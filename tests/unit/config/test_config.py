import os

import pytest
import yaml
from refusing import refusal

from agentrl_jax.config import AlgoConfig, Config, TaskConfig, decode, keys, load_config, load_resolved, to_dict
from agentrl_jax.config.advantages import Gae, Grpo
from agentrl_jax.config.defaults import with_defaults
from agentrl_jax.config.fields import Section
from agentrl_jax.config.keys import kind_of
from agentrl_jax.config.load import differences, installed_version, leaves, save_resolved
from agentrl_jax.config.migrations import FORMAT


@pytest.fixture
def write(tmp_path):
    def write(text):
        (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
        return tmp_path / "run.yaml"

    return write


def refused(path, *overrides):
    error = refusal(load_config, path, overrides)
    assert "\n" not in str(error)
    return error


def test_an_empty_file_gives_the_defaults_and_a_folder_named_after_it(write):
    assert load_config(write("")) == with_defaults(Config()).replace(run_dir=os.path.join("runs", "run"))
    assert decode({}) == with_defaults(Config(algo=AlgoConfig()))


def test_values_of_the_file_and_of_the_command_line(write):
    tasks = "tasks: [{env: Bandit, groups: 4}, {env: FrozenLake, groups: 8}]"
    path = write(f"seed: 3\n{tasks}\nalgo: {{objective: {{clip_high: 0.3}}}}\n")
    words = ["--algo.objective.clip_high", "0.25", "--tasks.1.groups=4", "--prompt.max-turns", "3", "--run_dir", "2026"]
    config = load_config(path, [*words, "--tasks.1.options.success_rate", "1", "--prompt.format_penalty", "-0.5"])
    assert (config.seed, config.algo.objective.clip_high, config.run_dir) == (3, 0.25, "2026")
    assert (config.prompt.max_turns, config.prompt.format_penalty) == (3, -0.5)
    assert [(task.groups, task.options) for task in config.tasks] == [(4, {}), (4, {"success_rate": 1})]


def test_values_from_python(write):
    given = {"tasks": [{"env": "Bandit", "groups": 4}], "seed": 3}
    config = load_config(given, {"tasks.0.groups": 8, "optim.lr": "1e-3", "algo": {"preset": "grpo"}})
    assert config == load_config(
        write("tasks: [{env: Bandit, groups: 8}]"), ["--seed", 3, "--algo.preset", "grpo", "--optim.lr", 1e-3]
    )
    assert given["tasks"][0]["groups"] == 4
    for overrides, key in (
        ({3: 1}, "--3"),
        ({"seed": "1\x00"}, "--seed"),
        ({"seed": [1]}, "seed"),
        ({"sed": 1}, "sed"),
    ):
        assert refusal(load_config, given, overrides).key == key


def test_further_tasks_of_an_environment_have_names():
    tasks = [{"env": env, "groups": 4, "name": name} for env, name in zip("XXYXX", ("", "", "", "X-3", ""))]
    config = load_config({"tasks": tasks})
    assert [task.label for task in config.tasks] == ["X", "X-2", "Y", "X-3", "X-4"]
    assert [task.name for task in config.tasks] == ["", "X-2", "", "X-3", "X-4"]
    assert load_config(to_dict(config)) == config


def test_services_without_items_for_validations_have_none():
    task = {"env": "textcraft", "groups": 4, "items": "0-9", "held_out": "20-29"}
    for validation, given, every in (("", {}, 0), ("30-39", {}, 10), ("", {"validate_every": 5}, 5)):
        config = decode({"tasks": [task | {"validation": validation}], "train": given})
        assert config.train.validate_every == every
    assert decode({}).train.validate_every == 10


def test_every_synonym_means_a_key():
    assert {*keys._MEANT.values(), *keys._FOR_VALUE.values()} <= {*keys.every_key(), "tasks.0.env", "tasks.0.groups"}


def test_types_of_values(write):
    assert load_config(write(""), ["--tasks.0.env", "FrozenLake"]).tasks == (TaskConfig(env="FrozenLake", groups=8),)
    text = "optim: {lr: 1e-3}\ntasks: [{env: X, groups: 4, options: {a: 1, b: 1.0, c: true, d: '1'}}]"
    config = load_config(write(text), ["--model.norm_eps", "1e-5"])
    assert (config.optim.lr, config.model.norm_eps) == (1e-3, 1e-5)
    types = [(value, type(value)) for value in config.tasks[0].options.values()]
    assert types == [(1, int), (1.0, float), (True, bool), ("1", str)]


def test_the_resolved_file_names_its_format_and_reads_back_as_the_same_tree(write, tmp_path):
    algo = "algo: {preset: starpo, objective: {dual_clip: null}, minibatches: 2}"
    text = f"tasks: [{{env: X, groups: 4, options: {{slip: 0.3}}}}]\n{algo}"
    config = load_config(write(text), ["--optim.lr", "1e-6"])
    save_resolved(config, tmp_path / "config.yaml")
    assert load_resolved(tmp_path / "config.yaml") == load_config(tmp_path / "config.yaml") == config
    assert decode(to_dict(config)) == config
    stored = {"format": FORMAT, "version": installed_version(), **to_dict(config)}
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == stored


def test_the_folder_of_a_run_is_read_with_changes(write, tmp_path):
    run = tmp_path / "moved"
    run.mkdir()
    config = load_config(write("seed: 3"), ["--run_dir", "runs/before"])
    save_resolved(config, run / "config.yaml")
    changed = load_config(run, ["--train.iterations", "7"])
    assert differences(config, changed) == ["run_dir", "train.iterations"]
    assert changed.run_dir == str(run)
    assert refusal(load_config, tmp_path).key == str(tmp_path / "config.yaml")


def test_presets_fill_what_is_not_given(write):
    path = write("algo: {preset: starpo, objective: {clip_low: 0.1}}\ntasks: [{env: X, groups: 8}]")
    algo = load_config(path).algo
    plain = decode({"algo": {"preset": "starpo"}}).algo
    assert algo == plain.replace(objective=plain.objective.replace(clip_low=0.1))
    overridden = load_config(path, ["--algo.preset", "starpo_grpo"]).algo
    assert (overridden.advantage, overridden.kl.kind, overridden.objective.clip_low) == (Grpo(), "fixed", 0.1)


def test_a_kind_of_its_own_replaces_the_preset_s_and_the_same_one_keeps_its_numbers():
    for given, found in (
        *(("grpo", Grpo()), ({"kind": "grpo"}, Grpo())),
        ({"kind": "grpo", "normalize_by_std": False}, Grpo(normalize_by_std=False)),
        *(({"kind": "gae", "lam": 0.9}, Gae(lam=0.9)), ({"lam": 0.9}, Gae(lam=0.9))),
    ):
        assert decode({"algo": {"advantage": given}}).algo.advantage == found


def test_a_part_with_kinds_on_the_command_line(write):
    path = write("algo: {advantage: grpo, filter: {ratio: 0.5}}")
    words = ["--algo.advantage.whiten", "true", "--algo.filter", "none", "--algo.kl.kind", "none"]
    algo = load_config(path, words).algo
    assert (algo.advantage, algo.filter.kind, algo.kl.kind) == (Grpo(whiten=True), "none", "none")
    assert load_config(path, ["--algo.filter", "{kind: top_k, k: 2}"]).algo.filter.k == 2
    assert load_config(path, ["--model.remat", "none"]).model.remat == "none"


@pytest.mark.parametrize(
    ("text", "key", "value", "hint"),
    [
        ("algo: {clip_hihg: 1}", "algo.clip_hihg", None, "did you mean algo.objective.clip_high?"),
        ("clip_high: 0.28", "clip_high", None, "did you mean algo.objective.clip_high?"),
        ("algo: {kl_coef: 1}", "algo.kl_coef", None, "did you mean algo.kl.coef?"),
        ("learning_rate: 1", "learning_rate", None, "did you mean optim.lr?"),
        ("algo: {clip_ratio: 1}", "algo.clip_ratio", None, "did you mean algo.objective.clip_low?"),
        ("algo: grpo", "algo", "grpo", "did you mean algo.preset?"),
        ("tasks: [Bandit]", "tasks.0", "Bandit", "tasks: [{env: NAME}]"),
        ("algo: {objective: {clip_hihg: 1}}", "algo.objective.clip_hihg", None, "algo.objective.clip_high?"),
        ("algo: {kl: {zzz: 1}}", "algo.kl.zzz", None, "known keys here: kind"),
        ("zzz: 1", "zzz", None, "known keys here"),
        ("seed: 1.5", "seed", 1.5, "an integer"),
        ("seed: true", "seed", True, "an integer"),
        ("seed: -1", "seed", -1, "at least 0"),
        ("seed: 4294967296", "seed", 4294967296, "below 4294967296"),
        ("seed: '1'", "seed", "1", "is '1', expected an integer"),
        ("seed: 2020-01-01", "seed", "2020-01-01", "an integer"),
        ("algo: {advantage: {gamma: 1.5}}", "algo.advantage.gamma", 1.5, "at most 1"),
        ("algo: {advantage: {kind: [1]}}", "algo.advantage.kind", "[1]", "'rloo'"),
        ("algo: {advantage: 3}", "algo.advantage", 3, "a kind, or keys with values"),
        ("algo: {filter: [1]}", "algo.filter", [1], "a kind, or keys with values"),
        ("algo: 3", "algo", 3, "keys with values"),
        ("optim: {lr: 1.0e+39}", "optim.lr", 1e39, "at most 3e+38"),
        ("model: {lora: {targets: []}}", "model.lora.targets", [], "at least one entry"),
        ("tasks: {env: Bandit}", "tasks", {"env": "Bandit"}, "a list"),
        ("tasks: [{groups: 4}]", "tasks.0.env", None, "missing"),
        ("tasks: [{env: X, groups: 4, group: 3}]", "tasks.0.group", None, "tasks.0.groups"),
        ("tasks: [{env: X, groups: 4, options: {a: [1]}}]", "tasks.0.options.a", [1], "true or false or an integer"),
        ("1: 2", "1", None, "unknown key"),
        ("algo: {kl: {coef: 0.1}}", "algo.kl.coef", 0.1, "algo.kl.coef is 0.1, "),
        ("algo: {kl: {kind: adaptive, coef: 0}}", "algo.kl.coef", 0, "algo.kl.coef is 0, "),
        ("algo: {preset: ppo, kl: {estimator: k2}}", "algo.kl.apply_to", "reward", "apply_to is reward, "),
        ("algo: {preset: ppo, kl: {estimator: full}}", "algo.kl.apply_to", "reward", "apply_to is reward, "),
        ("algo: {advantage: {kind: grpo, gamma: 0.9}}", "algo.advantage.gamma", 0.9, "gamma is 0.9, "),
        (
            "algo: {advantage: {reward_placement: turn, reward_normalization: mean}}",
            *("algo.advantage.reward_normalization", "mean", "reward_normalization is mean, "),
        ),
        ("algo: {advantage: {reward_grouping: batch}}", "algo.advantage.reward_grouping", "batch", "is batch, "),
        ("algo: {advantage: {kind: gigpo, history_power: 2}}", "algo.advantage.history_power", 2, "is 2, "),
        (
            "algo: {advantage: {kind: gigpo, step_weight: 0, anchor: observation}}",
            *("algo.advantage.anchor", "observation", "anchor is observation, "),
        ),
        ("algo: {filter: {kind: top_p, include_zero: false}}", "algo.filter.include_zero", False, "is false, "),
        ("algo: {horizon: {kind: stepwise, turns: [3, 2]}}", "algo.horizon.turns", (3, 2), "turns is [3, 2], "),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_with_the_key(write, text, key, value, hint):
    path = write(text)
    error = refused(path)
    assert (error.key, error.value) == (key, value)
    assert str(error).startswith(f"{path}: ")
    assert hint in str(error)


def test_a_file_that_is_no_configuration_is_refused(write):
    for text, flaw in (
        *(("- 1", "key: value"), ("seed: [", "not valid YAML"), ("model: &m [*m]", "a part of itself")),
        *(("seed: " + "[" * 3000, "nested too deeply"), ("{a: " * 250 + "1" + "}" * 250, "recursion limit")),
        *(("seed: 1\nseed: 2", "given twice"), ("seed: !!python/object/apply:os.getcwd []", "not valid YAML")),
        *(("algo: {advantage: {gamma: .nan}}", "algo.advantage.gamma"), ("optim: {lr: .inf}", "a finite number")),
    ):
        assert flaw in str(refused(write(text)))


def test_a_wrong_override_is_refused_with_the_key(write):
    file = write("tasks: [{env: X, groups: 4}]")
    for words, key, value in (
        (["--algo.clip_hihg", "1"], "algo.clip_hihg", None),
        (["--tasks.4.groups", "1"], "--tasks.4.groups", None),
        *((["--seed.x", "1"], "seed.x", None), (["--seed"], "--seed", None), (["seed", "1"], "seed", None)),
        *((["--seed", "--algo.epochs", "1"], "--seed", None), (["--seed", "[1"], "--seed", "[1")),
        # 8 and 90 in YAML 1.1.
        *((["--seed", "x"], "seed", "x"), (["--seed", "010"], "seed", "010"), (["--seed", "1:30"], "seed", "1:30")),
        (["--optim.lr", "1:30.5"], "optim.lr", "1:30.5"),
    ):
        error = refused(file, *words)
        assert (error.key, error.value) == (key, value)
    assert "the file is" in str(refused(file, "--tasks.0.options.x", "[" * 250 + "1" + "]" * 250))


def test_keys_that_are_no_text_or_called_like_a_kind_are_named():
    for data, key in (
        ({"model": {1: 2}}, "model.1"),
        ({"tasks": [{"env": "X", "groups": 4, "options": {3: [1]}}]}, "tasks.0.options.3"),
        ({"algo": {"kl": {"kind": "fixed", "fixed": 1, "coef": -1}}}, "algo.kl.coef"),
        ({"algo": {"filter": {"kind": "top_k", "k": "a", "top_k": [1]}}}, "algo.filter.k"),
    ):
        assert refusal(decode, data).key == key


def test_differences_names_every_key_that_differs():
    a = decode({"tasks": [{"env": "X", "groups": 4}]})
    tasks = [{"env": "X", "groups": 4, "options": {"slip": 0.1}}, {"env": "Y", "groups": 2}]
    b = decode({"seed": 1, "tasks": tasks, "rollout": {"group_size": 8}})
    assert differences(a, a) == []
    changed = {"seed", "rollout.group_size", "tasks.0.options", "tasks.0.options.slip"}
    changed |= {f"tasks.1.{name}" for name in (*TaskConfig.model_fields, "sampling.kind") if name != "sampling"}
    assert set(differences(a, b)) == set(differences(b, a)) == changed


def sections(kind=Config):
    yield kind
    for field in kind.model_fields.values():
        for part in keys.sections_of(field.annotation):
            yield from sections(part)


def test_every_field_has_an_explanation():
    for section in dict.fromkeys(sections()):
        for name, field in section.model_fields.items():
            assert name == "kind" or len(field.description or field.annotation.__doc__) > 5, (section, name)


def test_the_listing_holds_every_key_with_its_value_and_every_other_kind():
    config = decode({"algo": {"preset": "dapo"}})
    text = keys.listing(config)
    for key, value in leaves(to_dict(config)):
        if not key[-1].isdigit():
            assert f"--{key} {'none' if value is None else value if isinstance(value, str) and value else ''}" in text
    flat = " ".join(text.split())
    kinds = [field.default for field in AlgoConfig.model_fields.values() if isinstance(field.default, Section)]
    assert len(kinds) == 8
    for part in sections(AlgoConfig):
        names = set(part.model_fields) - {"kind"}
        if "kind" in part.model_fields and names:
            kind = kind_of(part)
            assert f"(kind {kind} has" in flat or any(f"kind {kind}" in line for line in text.splitlines())


def test_the_folder_of_an_older_version_is_refused_with_what_to_do(tmp_path):
    held = {"format": FORMAT, "version": "0.1.0", **to_dict(Config(run_dir="x"))}
    for section, key in (("algo", "kl_where"), ("algo", "logprobs"), ("model", "dtype")):
        old = held | {section: held[section] | {key: "none"}}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(old))
        assert "another version of agentrl" in str(refusal(load_resolved, tmp_path / "config.yaml"))


def test_the_context_of_a_rollout_is_read_as_the_agent_that_it_is_called_today():
    given = {"rollout": {"context": "single_turn", "group_size": 4}}
    assert decode(given) == decode({"agent": "single_turn", "rollout": {"group_size": 4}})
    assert refusal(decode, {**given, "agent": "full"}).key == "rollout.context"


def test_advantages_may_be_a_list_with_weights():
    terms = [{"kind": "gae", "lam": 0.9, "weight": 0.5}, "gigpo"]
    config = decode({"algo": {"preset": "grpo", "advantage": terms}})
    advantage = config.algo.advantage
    assert [(term.weight, term.rule.kind) for term in advantage.terms] == [(0.5, "gae"), (1.0, "gigpo")]
    assert (advantage.has_critic, advantage.per_group, advantage.per_episode) == (True, True, False)
    assert (advantage.reward_placement, advantage.value_clip, advantage.bootstrap_truncated) == ("episode", 0.5, False)
    assert config.algo.traced_keys()["advantage.0.lam"] == 0.9
    assert config.algo.traced_keys()["advantage.1.weight"] == 1.0
    assert decode(to_dict(config)) == config
    whole = {"kind": "sum", "whiten": True, "terms": terms}
    assert decode({"algo": {"preset": "grpo", "advantage": whole}}).algo.advantage.terms == advantage.terms


@pytest.mark.parametrize(
    ("terms", "key"),
    [
        (["gae", "turn_gae"], "algo.advantage"),
        ([{"kind": "gae", "reward_placement": "turn"}, "reward_to_go"], "algo.advantage.reward_placement"),
        ([{"kind": "grpo", "whiten": True}], "algo.advantage.0.whiten"),
        ([], "algo.advantage.terms"),
        (["sum"], "algo.advantage.terms.0.rule.kind"),
        ([{"kind": "gigpo", "anchor": "observation"}, "gigpo"], "algo.advantage.anchor"),
    ],
)
def test_terms_that_do_not_go_together_are_refused(terms, key):
    assert refusal(decode, {"algo": {"preset": "grpo", "advantage": terms}}).key == key
