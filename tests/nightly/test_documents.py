import json
import os
import re
import subprocess
import sys
from pathlib import Path

from paths import ROOT

CELLS = json.loads((ROOT / "docs" / "notebooks" / "first_steps.ipynb").read_text(encoding="utf-8"))["cells"]
TINY = """
devices: 2
tasks: [{env: FrozenLake, groups: 2}]
prompt: {max_turns: 2, max_actions_per_turn: 2, max_actions: 10, max_response_tokens: 6}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
rollout: {group_size: 4}
algo: {preset: starpo_s, filter: {ratio: 0.5}}
train: {iterations: 2}
evaluation: {episodes: 8}
"""
"""Replaces experiments/demo.yaml."""


def run_script(source: str, folder: Path, probe: str) -> tuple[str, list]:
    """Runs Python code in a separate process; returns its output and the value of the expression `probe`."""
    script = f'{source}\nimport json as _json\nprint("\\nPROBE" + _json.dumps({probe}))\n'
    (folder / "script.py").write_text(script, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    words = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "timeout": 1200}
    done = subprocess.run([sys.executable, "script.py"], **words)
    assert done.returncode == 0, done.stderr[-3000:]
    printed, _, found = done.stdout.rpartition("\nPROBE")
    return printed, json.loads(found)


def test_the_ten_lines_of_the_readme_train_and_evaluate_after_the_demo(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 10
    code = code.replace('load_config("demo"', 'load_config("experiments/demo.yaml"')
    code = code.replace('"train.iterations": 75', '"train.iterations": 2')
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "demo.yaml").write_text(TINY)
    demo = [sys.executable, "-m", "agentrl_jax", "train", "experiments/demo.yaml"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(demo, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=1200)
    assert (tmp_path / "runs" / "demo" / "summary.json").is_file()
    counts = 'summary["iterations"], policy.iteration, len(trajectory.num_turns), result["episodes"]'
    printed, found = run_script(code, tmp_path, f'[config.seed, {counts}, result["success"]["n"]]')
    assert found == [1, 2, 2, 4, 64, 64]
    assert (tmp_path / "runs" / "python" / "summary.json").is_file()
    assert "'observation'" in printed


def test_the_notebook_plays_trains_reads_and_plots(tmp_path):
    folder = tmp_path / "docs" / "notebooks"
    folder.mkdir(parents=True)
    (tmp_path / "experiments").mkdir()
    file = ROOT / "experiments" / "frozen_lake.yaml"
    (tmp_path / "experiments" / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    code = "\n\n".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code")
    probe = (
        '[summary["success"]["trained"]["mean"] > summary["success"]["imitation"]["mean"], summary["iterations"],'
        ' result["seen"]["seen_levels"], episode["success"], [len(line.get_xdata()) for line in axes.lines]]'
    )
    printed, found = run_script(code, folder, probe)
    assert found == [True, 60, 0, True, [60, 6, 2]]
    assert "Down: reward 0" in printed
    # What is learned depends on how the machine rounds; the held-out levels and random play on them do not.
    stored = "".join(text for cell in CELLS for output in cell.get("outputs", []) for text in output.get("text", []))
    (random,) = re.findall("^random .*", stored, re.MULTILINE)
    assert random in printed.splitlines(), "run the notebook again and store its outputs"
