"""Configurations, overrides, comparisons and run folders that are damaged, odd, or made to exhaust memory."""

import json

import pytest

from agentrl_jax import safe_yaml
from agentrl_jax.config import Config, load_config, save_resolved
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
