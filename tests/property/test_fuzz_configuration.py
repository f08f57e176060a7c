"""Configurations, overrides, comparisons and run folders that are damaged, odd, or made to exhaust memory."""

import json
import random

import pytest
import tiny_run
import yaml
from damage import ODD, damaged, ends_in_one_line, with_odd_values

from agentrl_jax import safe_yaml
from agentrl_jax.cli import main as cli
from agentrl_jax.config import Config, load_config, save_resolved, to_dict
from agentrl_jax.config.comparison import load_comparison
from agentrl_jax.config.load import leaves
from agentrl_jax.errors import MAX_ERROR, UserError
from agentrl_jax.evaluate.diagnose import diagnose

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefghi", "bcdefghij")
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, f"more than {safe_yaml.MAX_NODES} values"),
        (BOMB.replace(": &", ": &").replace("[*", "[{<<: &m {k: 1}}, *"), "not valid YAML"),
        ("a: [" + "x," * 60_000 + "]", "more than"),
        ("a: " + "x" * safe_yaml.MAX_BYTES, "bytes"),
        ("seed: " + "1" * 5000, "a number of 5000 characters"),
        ("seed: 0x" + "f" * 5000, "a number of 5002 characters"),
        ("2020-01-01: 1", "unknown key 2020-01-01"),
        ("run_dir: !!timestamp x", "is not that of a plain value"),
        ('run_dir: "a\\0b"', "a NUL character"),
        ('run_dir: "\\ud800"', "no Unicode text"),
        ('run_dir: "\\UFFFFFFFF"', "cannot be read"),
        ("seed: 0x_", "cannot be read"),
        ("? [a]\n: 1", "a key is a list"),
    ],
)
def test_what_fills_the_memory_or_cannot_be_read(text, message, tmp_path, bounded_memory):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as refused:
        load_config(tmp_path / "a.yaml")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) <= MAX_ERROR


def test_an_alias_is_a_copy(tmp_path):
    (tmp_path / "a.yaml").write_text("tasks: [&t {env: Bandit, groups: 4}, {<<: *t, name: b}]")
    tasks = load_config(tmp_path / "a.yaml", ["--tasks.0.groups", "8"]).tasks
    assert [task.groups for task in tasks] == [8, 4]


@pytest.mark.parametrize("odd", ["x", True, [1], 10**400])
def test_a_metric_that_is_no_number(odd, tmp_path):
    save_resolved(Config(run_dir="x"), tmp_path / "config.yaml")
    rows = [{"step": i, "stage": "rl", "iteration": i, "train/success": value} for i, value in enumerate((0.5, odd))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="as train/success of its iteration 2, expected a number"):
        diagnose(tmp_path)


RUN = tiny_run.CONFIG.replace("levels: LEVELS", "levels: ''")
GRPO = {"algo": {"preset": "grpo", "minibatches": 1, "epochs": 1}}
RLOO = {"algo": {"preset": "rloo"}, "optim": {"lr": 0.001}}
COMPARED = yaml.safe_load(RUN) | {"algo": {"filter": "none"}, "train": {"iterations": 2}}
COMPARISON = {"seeds": 2, "run": COMPARED, "variants": {"grpo": GRPO, "rloo": RLOO}, "pairs": [["grpo", "rloo"]]}
FILES = {"configuration": (RUN, load_config), "comparison": (yaml.safe_dump(COMPARISON), load_comparison)}
WORDS = [*b"&a |*a|<<: |!!int |!!timestamp |? |- |: |'|\"\\U|2020-01-01".split(b"|"), b"1" * 5000]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("seed", range(3))
def test_damaged_configurations_and_comparisons(seed, kind, tmp_path, bounded_memory):
    rng, file = random.Random(seed), tmp_path / "a.yaml"
    text, load = FILES[kind]
    file.write_text(text)
    load(file)
    for number in range(250):
        tree = json.dumps(with_odd_values(yaml.safe_load(text), rng)).encode()
        file.write_bytes(damaged(text.encode(), rng, WORDS) if number % 2 else tree)
        ends_in_one_line(lambda: load(file), UserError)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_odd_overrides(seed, tmp_path, bounded_memory):
    rng = random.Random(seed)
    keys = [key for key, _ in leaves(to_dict(Config()))]
    keys += ["tasks", "tasks.²", "tasks." + "9" * 5000, ".", "a" * 5000, "tasks.0.options.x.y", "\ud800"]
    texts = [*map(str, ODD), "1" * 5000, "&a [*a]", "{", "2020-01-01", "none", "NaN", "1e999", "\udcff", "--", ""]
    (tmp_path / "a.yaml").write_text(RUN)
    for _ in range(300):
        words = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            key = rng.choice(keys)
            words += rng.choice([[f"--{key}", rng.choice(texts)], [f"--{key}={rng.choice(texts)}"], [key]])
        ends_in_one_line(lambda words=words: load_config(tmp_path / "a.yaml", words), UserError)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2))
def test_odd_command_lines(seed, tmp_path, capsys, monkeypatch, bounded_memory):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(bytes(range(256)))
    (tmp_path / "folder").mkdir()
    rng = random.Random(seed)
    commands = ["train", "compare", "eval", "play", "chat", "export", "presets", "diagnose", "plan"]
    values = ["file", "folder", "absent", "a\0b", "\udcff", "x" * 5000, "-1", "1" * 5000, "", "folder/none/x", "\n"]
    options = ["seed", "levels", "out", "figure", "episodes", "temperature", "env", "run_dir", "length"]
    for _ in range(60):
        words = [rng.choice(commands), rng.choice(values)]
        for _ in range(rng.randrange(3)):
            words += [f"--{rng.choice(options)}", rng.choice(values)]
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        err = capsys.readouterr().err
        assert (end.value.code, err.count("\n")) == (2, 1), words
        assert len(err) <= MAX_ERROR + len("agentrl: \n")
