import json
import random

import pytest
import tiny_run
import yaml
from damage import ODD, damaged, ends_in_one_line, with_odd_values

from agentrl_jax.cli import main as cli
from agentrl_jax.config import Config, load_config, to_dict
from agentrl_jax.config.comparison import load_comparison
from agentrl_jax.config.load import leaves
from agentrl_jax.errors import MAX_ERROR, UserError

RUN = tiny_run.CONFIG.replace("levels: LEVELS", "levels: ''")
GRPO = {"algo": {"preset": "grpo", "minibatches": 1, "epochs": 1}}
RLOO = {"algo": {"preset": "rloo"}, "optim": {"lr": 0.001}}
COMPARED = yaml.safe_load(RUN) | {"algo": {"filter": "none"}, "train": {"iterations": 2}}
COMPARISON = {"seeds": 2, "run": COMPARED, "variants": {"grpo": GRPO, "rloo": RLOO}, "pairs": [["grpo", "rloo"]]}
FILES = {"configuration": (RUN, load_config), "comparison": (yaml.safe_dump(COMPARISON), load_comparison)}
WORDS = [*b"&a |*a|<<: |!!int |!!timestamp |? |- |: |'|\"\\U|2020-01-01".split(b"|"), b"1" * 5000]


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
