"""Regression test: compares every number of a few small runs bit for bit with golden.json, on one machine.

    python tests/golden/hold.py           # compares with golden.json, and prints the differences
    python tests/golden/hold.py --write   # writes golden.json: only on a commit whose numbers are right

The runs: the demo shrunk (imitation, reinforcement learning, evaluation), also on four simulated devices, with whole
conversations as contexts, refilled slots, packed rows, replay, and adapters; an environment on the host, and one that
fails; evaluations of a scripted policy, of an API model, and with retries; SmolLM2's greedy responses, and
`agentrl bench estimators`. Compared are all values of every metric that does not depend on a clock, the summary, and
the bits of the last checkpoint. Another processor rounds differently, so on another machine the file is written first,
on the commit before the change. Takes about forty minutes on two cores.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "helpers"))
GOLDEN = HERE / "golden.json"

GONE: tuple[str, ...] = ()
"""Regular expressions of names that were removed or renamed since golden.json was written.

Each is added in the commit that changes the name, and leaves with the next golden.json.
"""
RENAMED: tuple[tuple[str, str], ...] = ()
"""Renamed names: a regular expression for the name in golden.json, and its replacement."""

CLOCK = ("time/", "env/wait_share", "seconds", "machine", "programs", "python", "jax", "cpu", "cores")
"""Prefixes of the names of values that depend on a clock or on the machine."""

OF_A_RUN = r"(^|\.)(seconds|date|path|folder|base_url|unfinished|version|commit)(\.|$)"
"""Names of values of a report that differ from run to run."""

FULL = ("--rollout.context", "full")
FOUR_DEVICES = "--xla_force_host_platform_device_count=4"


def digest(value: Any) -> str:
    """Returns twelve digits of the SHA-256 of plain data; floats are compared bit for bit."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def run_command(*words: str, flags: str = "") -> str:
    """Runs `agentrl` in a separate process and returns its output."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    done = subprocess.run(
        [sys.executable, "-m", "agentrl_jax", *words], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"agentrl {' '.join(words)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of nested mappings, with their names joined by dots."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from leaves(value, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix, node


def state_digest(folder: Path) -> str:
    """Returns the digest of all arrays of the newest checkpoint, independent of their names."""
    import numpy as np
    import orbax.checkpoint as ocp

    newest = max((entry for entry in folder.iterdir() if entry.name.isdigit()), key=lambda entry: int(entry.name))
    with ocp.StandardCheckpointer() as reader:
        state = reader.restore(newest.absolute() / "state")
    arrays = (np.asarray(x) for _, x in leaves(_plain(state)) if x is not None)
    return digest(sorted(digest([str(x.dtype), x.shape, x.tobytes().hex()]) for x in arrays if x.ndim))


def _plain(node: Any) -> Any:
    if isinstance(node, list | tuple):
        node = dict(enumerate(node))
    if isinstance(node, dict):
        return {str(name): _plain(value) for name, value in node.items()}
    return node


def trained(config: str, *overrides: str, flags: str = "") -> dict[str, str]:
    """Trains a run and returns digests of each metric's values over all rows, the summary and the last checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run_command("train", str(HERE / config), "--run_dir", str(run), *overrides, flags=flags)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        found: dict[str, list[Any]] = {}
        for row in rows:
            for name, value in row.items():
                if not name.startswith(CLOCK):
                    found.setdefault(name, []).append(value)
        for name, value in leaves(json.loads((run / "summary.json").read_text())):
            if not name.startswith(CLOCK):
                found[f"summary.{name}"] = value
        return {name: digest(value) for name, value in found.items()} | {"state": state_digest(run / "checkpoints")}


def values(report: Any) -> dict[str, str]:
    """Returns a digest of each value of a report, but for those that differ from run to run."""
    found = {name: value for name, value in leaves(report) if not name.startswith(CLOCK)}
    return {name: digest(value) for name, value in found.items() if not re.search(OF_A_RUN, name)}


def failures() -> dict[str, str]:
    """Returns digests of a rollout on the host whose episodes fail in `reset`, in `step`, by a wrong answer, or not."""
    import host_stage
    import jax

    from agentrl_jax.parallel.mesh import make_mesh

    class Failing(host_stage.Courier):
        def reset(self, seed: int) -> str:
            self.fault = seed % 4
            if self.fault == 1:
                raise RuntimeError("a fault")
            return super().reset(seed)

        def step(self, response: str, actions: Any) -> Any:
            if self.fault == 2:
                raise RuntimeError("a fault")
            return "no step" if self.fault == 3 else super().step(response, actions)

    stage = host_stage.Stage()
    trajectory, calls = stage.run(stage.program(make_mesh(1)), kind=Failing)
    failed = sorted(map(list, stage.batched_env.host_episodes.take_report().failures))
    arrays = {field: [x.tolist() for x in jax.tree.leaves(x)] for field, x in vars(trajectory).items()}
    return values({"trajectory": arrays, "calls": calls, "failures": failed})


def lora() -> dict[str, str]:
    """Returns digests of the shrunk demo with adapters of a small pretrained model, as `trained` does."""
    import made_run
    import yaml

    with tempfile.TemporaryDirectory() as folder:
        model = made_run.write_model(Path(folder) / "model")
        settings = {"pretrained": str(model), "lora": {"rank": 2}}
        file = Path(folder) / "lora.yaml"
        file.write_text(yaml.safe_dump({**yaml.safe_load((HERE / "demo.yaml").read_text()), "model": settings}))
        return trained(str(file))


def scripted() -> dict[str, str]:
    """Returns digests of the records of scripted policies, on compiled levels and on items of a service."""
    asked = {"FrozenLake": ("--policy", "random"), "maze": ("--policy", "oracle", "--items", "0-9")}
    return values(
        {env: json.loads(run_command("eval", "--env", env, *words, "--json")) for env, words in asked.items()}
    )


def retries() -> dict[str, str]:
    """Returns digests of an evaluation of the shrunk demo by attempts."""
    with tempfile.TemporaryDirectory() as folder:
        run = f"{folder}/run"
        run_command("train", str(HERE / "demo.yaml"), "--run_dir", run, "--train.iterations", "1")
        return values(json.loads(run_command("scaling", run, "--attempts", "1,2", "--episodes", "16", "--json")))


def api_model() -> dict[str, str]:
    """Returns digests of the episodes and the summary of an API model whose server is in this process."""
    import api_folders

    with tempfile.TemporaryDirectory() as folder:
        found = api_folders.write_folder(Path(folder) / "api")
        episodes = [json.loads(line) for line in (found / "episodes.jsonl").read_text().splitlines()]
        return values({"summary": json.loads((found / "summary.json").read_text()), "episodes": episodes})


def replies() -> dict[str, str]:
    """Returns digests of SmolLM2's greedy responses to two messages."""
    from agentrl_jax.evaluate import chat
    from agentrl_jax.models.io.load import SMOLLM2

    speaker = chat.speaker(SMOLLM2)
    found = {}
    for message in ("What is the capital of France?", "Count from one to ten."):
        talk = chat.Conversation(speaker.params, speaker.shape, speaker.tokenizer, length=128, system="")
        found[message] = digest([int(token) for token in talk.respond(message, 32)])
    return found


def estimators() -> dict[str, str]:
    """Returns a digest of each row of `agentrl bench estimators` for groups of two."""
    report = json.loads(run_command("bench", "estimators", "--group_size", "2", "--format", "json"))
    return {name: digest(value) for name, value in leaves(_plain(report))}


RUNS = {
    "demo": lambda: trained("demo.yaml"),
    "four_devices": lambda: trained("demo.yaml", "--devices", "4", "--mesh.fsdp", "2", flags=FOUR_DEVICES),
    "tensor": lambda: trained(
        "demo.yaml", "--devices", "4", "--mesh.tensor", "2", "--imitation.steps", "4", flags=FOUR_DEVICES
    ),
    "full": lambda: trained("demo.yaml", *FULL),
    "slots": lambda: trained("demo.yaml", *FULL, "--rollout.slots", "8", "--rollout.prefill_threshold", "0.5"),
    "packing": lambda: trained("demo.yaml", *FULL, "--algo.packing", "true", "--rollout.prefill_rows", "8"),
    "replay": lambda: trained("demo.yaml", *FULL, "--algo.mismatch.kind", "replay"),
    "lora": lora,
    "host": lambda: trained("host.yaml"),
    "failures": failures,
    "scripted": scripted,
    "retries": retries,
    "api_model": api_model,
    "replies": replies,
    "estimators": estimators,
}


def machine() -> str:
    """Describes the machine and library versions on which the bits depend."""
    import jax

    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return (
        f"{names[0].split(': ')[1]}, {os.cpu_count()} cores, Python {platform.python_version()}, jax {jax.__version__}"
    )


def renamed(name: str) -> str:
    """Returns the current name of `name` in golden.json."""
    for old, new in RENAMED:
        name = re.sub(old, new, name)
    return name


def differences(known: dict[str, str], now: dict[str, str]) -> list[str]:
    """Returns the differences between the digests of one run."""
    known, now = (
        {name: value for name, value in digests.items() if not any(re.search(gone, name) for gone in GONE)}
        for digests in (known, now)
    )
    known = {renamed(name): value for name, value in known.items()}
    return [
        f"{name}: {'new' if name not in known else 'gone' if name not in now else 'other bits'}"
        for name in sorted(known.keys() | now.keys())
        if known.get(name) != now.get(name)
    ]


def main() -> None:
    """Compares with golden.json, or writes it."""
    parser = argparse.ArgumentParser(description="Hold every number of a few small runs.")
    parser.add_argument("--write", action="store_true", help="write golden.json instead of comparing with it")
    parser.add_argument("--only", nargs="*", choices=list(RUNS), default=list(RUNS))
    options = parser.parse_args()
    import jax

    jax.config.update("jax_num_cpu_devices", 4)  # a checkpoint of four devices is read on four devices
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"machine": machine(), "runs": {}}
    if known["machine"] != machine() and not options.write:
        raise SystemExit(f"{GOLDEN} is of {known['machine']}, this is {machine()}: write it here first")
    failed = False
    for name in options.only:
        now = RUNS[name]()
        if options.write:
            known["runs"][name] = now
        else:
            found = differences(known["runs"].get(name, {}), now)
            failed |= bool(found)
            print(f"{name}: {len(now)} numbers, {len(found)} differ", *found, sep="\n  ", flush=True)
    if options.write:
        GOLDEN.write_text(json.dumps({"machine": machine(), "runs": known["runs"]}, indent=1, sort_keys=True) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
