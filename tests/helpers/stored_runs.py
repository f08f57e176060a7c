"""Folders that an earlier version wrote, as `golden/formats/test_stored_runs.py` describes them."""

import re
import shutil
import tarfile

import tiny_run
from paths import GOLDEN

from agentrl_jax.runs.run_folder import read_config


def unpacked(home):
    with tarfile.open(GOLDEN / "formats" / "fedfada.tar.xz") as archive:
        archive.extractall(home, filter="data")
    file = home / "fedfada" / "lora" / "config.yaml"
    file.write_text(re.sub("(?<=pretrained: ).*", str(home / "fedfada" / "model"), file.read_text()))
    return home / "fedfada"


def check_it_goes_on(stored, run):
    shutil.copytree(stored, run)
    before = tiny_run.metrics(run)
    more = str(read_config(run).train.iterations + 1)
    tiny_run.done("train", str(run), "--train.iterations", more)
    after = tiny_run.metrics(run)
    assert after[:-1] == before
    assert (after[-1]["iteration"], tiny_run.summary(run)["iterations"]) == (int(more), int(more))
    assert {row["stage"] for row in before} == {"imitation", "rl"}
