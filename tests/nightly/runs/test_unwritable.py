"""Folders that cannot be written, and full disks: one sentence, exit code 2, and nothing is lost."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys

import orbax.checkpoint as ocp
import pytest
import tiny_run
import yaml

from agentrl_jax.runs.run_folder import RunFolder

LONGER = ("--train.iterations", "5")


@pytest.fixture
def read_only():
    with contextlib.ExitStack() as stack:

        def make(path):
            _mount("--bind", path, path) or pytest.skip("mounting is not allowed here")
            stack.callback(subprocess.run, ["umount", "-l", path], check=True)
            assert _mount("-o", "remount,ro,bind", path)

        yield make


def _mount(*words):
    return subprocess.run(["mount", *map(str, words)], capture_output=True, check=False).returncode == 0


def refused(*words, path, advice):
    err = tiny_run.refusal(*words)
    assert err.startswith(f"agentrl: {path}: cannot be "), err
    assert ("expected" in err, advice in err) == (True, True), err


@pytest.fixture
def variants(tmp_path):
    run = yaml.safe_load(tiny_run.CONFIG.replace("levels: LEVELS", "levels: ''"))
    run["train"] = {key: run["train"][key] for key in ("iterations", "validate_every", "validation_episodes")}
    file = tmp_path / "variants.yaml"
    file.write_text(yaml.safe_dump({"seeds": 1, "run": run, "variants": {"one": {}}}))
    return str(file)


def test_a_folder_that_cannot_be_made(finished, variants):
    """No user can create a folder in /proc, not even root."""
    refused("train", finished.file, "--run_dir", "/proc/new", path="/proc/new", advice="--run_dir")
    refused("compare", variants, "--out", "/proc/new", path="/proc/new", advice="--out")
    refused("export", str(finished.folder), "/proc/new", path="/proc/new", advice="give another")


def test_a_run_on_a_read_only_disk_can_be_read_and_not_gone_on_with(finished, variants, tmp_path, read_only):
    disk = tmp_path / "disk"
    run = shutil.copytree(finished.folder, disk / "run")
    expected = tiny_run.command("eval", str(run), "--json", "--episodes", "2")
    read_only(disk)
    assert tiny_run.command("eval", str(run), "--json", "--episodes", "2") == expected
    assert tiny_run.command("export", str(run), str(tmp_path / "model"))[0] == 0
    refused("train", finished.file, "--run_dir", str(run), *LONGER, path=run, advice="--run_dir")
    refused("train", finished.file, "--run_dir", str(disk / "new"), path=disk / "new", advice="--run_dir")
    refused("compare", variants, "--out", str(disk), path=disk, advice="--out")
    refused("export", str(finished.folder), str(disk / "new"), path=disk / "new", advice="give another")
    refused("scaling", str(run), "--samples", "2", path=run, advice="--out")
    code, out, err = tiny_run.command("diagnose", str(run))
    assert (code, err.count("\n"), "too few to tell" in out, "--figure" in err) == (2, 1, True, True)
    assert f"{run / 'diagnosis.png'}: the figure cannot be written" in err


@pytest.mark.parametrize("part", ["checkpoints", "tensorboard", "metrics.jsonl"])
def test_a_part_of_a_run_that_cannot_be_written_is_found_before_anything_is_played(finished, tmp_path, part, read_only):
    run = shutil.copytree(finished.folder, tmp_path / "run")
    files = lambda: {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}  # noqa: E731
    before = files()
    read_only(run / part)
    words = ("train", finished.file, "--run_dir", str(run), *LONGER)
    refused(*words, path=run / part, advice="make it writable")
    assert files() == before


UNWRITTEN = """
import pathlib, sys, jax.numpy as jnp
from agentrl_jax.runs.checkpoint import CheckpointError, Checkpoints
path = pathlib.Path(sys.argv[1])
checkpoints = Checkpoints(path, keep=1)
path.rmdir()
path.touch()
try:
    checkpoints.save(1, {"a": jnp.ones(3)})
except CheckpointError as error:
    print(error)
"""


def test_a_process_ends_where_the_folder_of_a_checkpoint_could_not_be_made(tmp_path):
    """Orbax threads that wait for such a folder would keep the process alive for 20 minutes."""
    words = [sys.executable, "-c", UNWRITTEN, str(tmp_path / "checkpoints")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=True)
    assert "there is none before it: make the folder writable, and the same command goes on" in done.stdout


@pytest.fixture
def disk(tmp_path):
    """The folder of a small disk, and a function that fills it, or raises the error if mounting is not allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = _mount("-t", "tmpfs", "-o", "size=32m", "none", folder)

    def fill():
        if not mounted:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        with contextlib.suppress(OSError), open(folder / "ballast", "wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))

    yield folder, fill
    if mounted:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_disk_that_fills_up_costs_nothing(finished, disk, monkeypatch):
    """While the row of an iteration, a checkpoint, and the summary are written; then the run ends like any other."""
    folder, fill = disk
    words = ("train", finished.file, "--run_dir", str(folder / "run"))
    moments = (RunFolder, "log", 5), (ocp.CheckpointManager, "save", 2), (RunFolder, "write_summary", 1)
    for owner, name, nth in moments:
        with monkeypatch.context() as patched:
            method, left = getattr(owner, name), [nth]

            def when_full(*arguments, method=method, left=left, **options):
                left[0] -= 1
                if left[0] == 0:
                    fill()
                return method(*arguments, **options)

            patched.setattr(owner, name, when_full)
            err = tiny_run.refusal(*words)
        assert left[0] <= 0, name
        for part in (str(folder), "the disk is full", "the same command goes on"):
            assert part in err
        (folder / "ballast").unlink(missing_ok=True)
    assert tiny_run.command(*words)[::2] == (0, "")
    tiny_run.assert_same(folder / "run", finished.folder)
