import subprocess
import sys

import pytest

from agentrl_jax.cli import main

NAMED = {
    "train own.yaml": True,
    "train run": False,
    "train run --tasks.0.env own:Guess": True,
    "eval run": False,
    "eval run --env own:Guess": True,
    "envs --check=own.part:Guess": True,
    "eval run --url http://127.0.0.1:8000": False,
    "train run --hosts.coordinator host:8476": False,
    "view run": False,
}


@pytest.mark.parametrize("words", NAMED)
def test_which_commands_find_modules_of_the_working_directory(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").touch()
    (tmp_path / "run").mkdir()
    assert main._names_own_code(words.split()) == NAMED[words]


def test_python_m_does_not_find_them_by_itself(tmp_path):
    (tmp_path / "tyro.py").write_text("raise SystemExit('code of the folder')")
    done = subprocess.run(
        [sys.executable, "-m", "agentrl_jax", "--version"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
