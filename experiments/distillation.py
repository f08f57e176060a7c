"""Self-distillation from plans beside RL alone, a wrong plan, DAgger and more imitation, at equal wall time.

    python experiments/distillation.py --out runs/distillation [--seed 0] [--seconds 600]

A run of imitation is the start of all arms. Each arm then learns for so many seconds from its first row of
metrics.jsonl on, so that compilation and the search for demonstrations do not count, and is stopped. Its last
checkpoint is played on the test levels, --samples times each. report.json has the success of start and arms.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

FILE = str(Path(__file__).with_name("sokoban_distillation.yaml"))
NO_IMITATION = {"imitation.levels": 0, "imitation.steps": 0, "imitation.hinted": 0.0}
ONLY_IMITATION = {"algo.distillation": "none", "train.iterations": 0, "imitation.hinted": 0.0}
ARMS = {
    "rl": {**NO_IMITATION, "algo.distillation": "none"},
    "mixed": NO_IMITATION,
    "gated": {**NO_IMITATION, "algo.distillation.gate": "sdar"},
    "pure": {**NO_IMITATION, "algo.distillation.rl_coef": 0.0, "algo.entropy_coef": 0.0},
    "wrong_plan": {
        **NO_IMITATION,
        "algo.distillation.context": "wrong_plan",
        "algo.distillation.accept_weak_teacher": True,
    },
    # Both see new levels, as the teacher's students do.
    "imitation": {**ONLY_IMITATION, "imitation.levels": 8192, "imitation.steps": 20000, "imitation.lr": 1e-3},
    "dagger": {**ONLY_IMITATION, "imitation.steps": 1000, "imitation.lr": 1e-3}
    | {"imitation.dagger_rounds": 16, "imitation.dagger_levels": 256},
}
"""What each arm changes in the configuration. DAgger may not reach all of its steps and rounds."""


def command(*words: object) -> list[str]:
    """A command of agentrl."""
    return [sys.executable, "-m", "agentrl_jax", *map(str, words)]


def train(run: Path, seed: int, changes: dict[str, object], *, start: Path | None, seconds: float | None) -> float:
    """Trains a run to its end, or stops it so many seconds after its first row; returns these seconds."""
    words = [word for key, value in changes.items() for word in (f"--{key}", value)]
    words += ["--from", start] if start else []
    with open(run.with_suffix(".log"), "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command("train", FILE, "--seed", seed, "--run_dir", run, *words), stdout=log, stderr=subprocess.STDOUT
        )
        rows, began = run / "metrics.jsonl", None
        while process.poll() is None:
            time.sleep(0.5)
            if began is None and rows.exists() and rows.stat().st_size:
                began = time.monotonic()
            if seconds is not None and began is not None and time.monotonic() - began >= seconds:
                process.send_signal(signal.SIGTERM)
                process.wait()
        code = process.wait()
    if code and code != 128 + signal.SIGTERM:
        raise SystemExit(f"{run} ended with {code}: see {run.with_suffix('.log')}")
    return time.monotonic() - began if began is not None else 0.0


def evaluate(run: Path, samples: int) -> dict[str, object]:
    """Success of the last checkpoint on the test levels."""
    done = subprocess.run(
        command("eval", run, "--samples", samples, "--json"), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def main() -> None:
    """Runs all arms, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--start", type=Path, help="a run to start from, in place of a new imitation")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    start = given.start or given.out / "start"
    if not given.start and not (start / "summary.json").exists():
        train(start, given.seed, {"algo.distillation": "none", "train.iterations": 0}, start=None, seconds=None)
    file = given.out / "report.json"
    report = json.loads(file.read_text()) if file.exists() else {}
    for name in ("start", *given.arms):
        if name in report:
            continue
        run, seconds = start if name == "start" else given.out / name, None
        if name != "start":
            seconds = train(run, given.seed, ARMS[name], start=start, seconds=given.seconds)
        found = evaluate(run, given.samples)
        report[name] = {"seconds": seconds, **found}
        file.write_text(json.dumps(report, indent=1))
        print(name, seconds, found["success"], found["success_greedy"], found.get("pass_at"), flush=True)


if __name__ == "__main__":
    main()
