"""A second start of a run compiles nothing, as the command keeps programs; and a replay has the devices of its run."""

import json
import os
import subprocess
import sys

import tiny_run

WORDS = ("--devices", "2", "--imitation.levels", "0", "--imitation.steps", "0", "--train.iterations", "1")


def test_programs_are_kept_for_the_next_start(tmp_path):
    file = tiny_run.write_config(tmp_path)
    unset = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    kept = []
    for name in ("one", "two"):
        command = [sys.executable, "-m", "agentrl_jax", "train", file, "--run_dir", str(tmp_path / name), *WORDS]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        kept.append({entry.name for entry in (tmp_path / "cache").rglob("*-cache")})
    assert len(kept[0]) > 10
    assert kept[1] == kept[0]
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["devices"] == 2
    assert tiny_run.metrics(tmp_path / "one") == tiny_run.metrics(tmp_path / "two")
    assert (tmp_path / "cache" / "agentrl_jax" / "compiled").stat().st_mode & 0o077 == 0
    command = [sys.executable, "-m", "agentrl_jax", "replay", str(tmp_path / "one"), "--iteration", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "equal to the record bit for bit: every field" in done.stdout
