"""Supervised learning against the update of reinforcement learning: trained tokens a second, in one run.

    python benchmarks/sft.py [--steps 100] [--iterations 12]

The first run plays FrozenLake once and records its episodes; the second learns from them by a stage sft, then by
reinforcement learning on episodes of the same kind. Of each stage the first row is left out, in which programs are
compiled. Printed are the medians, their ratio, and the share of a step's time in which rows are made.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from agentrl_jax.config import load_config
from agentrl_jax.train.run import train

BASE = {
    "tasks": [{"env": "FrozenLake", "groups": 64}],
    "prompt": {"max_turns": 4, "max_actions_per_turn": 2, "max_response_tokens": 16},
    "model": {"layers": 4, "embed_dim": 128, "heads": 4, "kv_heads": 2, "mlp_width": 384},
    "rollout": {"group_size": 8},
    "algo": {"preset": "grpo", "filter": "none", "minibatches": 8},
    "train": {"iterations": 1, "validate_every": 0, "trajectories_every": 1, "trajectories": 512},
    "evaluation": {"episodes": 16},
}


def rows_of(run: Path, stage: str) -> list[dict[str, float]]:
    """The rows of a stage without the first one."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["stage"] == stage][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="supervised steps")
    parser.add_argument("--iterations", type=int, default=12, help="of reinforcement learning")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        teacher, run = Path(folder, "teacher"), Path(folder, "run")
        train(load_config({**BASE, "run_dir": str(teacher)}))
        stage = {"kind": "sft", "data": [str(teacher)], "batch": 64, "steps": args.steps}
        numbers = {"iterations": args.iterations, "trajectories_every": 0}
        train(
            load_config(
                {**BASE, "run_dir": str(run), "stages": [stage, "rl"]}, {f"train.{k}": v for k, v in numbers.items()}
            )
        )
        sft, rl = rows_of(run, "sft"), rows_of(run, "rl")
    supervised = statistics.median(row["sft/tokens"] / row["time/step"] for row in sft)
    update = statistics.median(row["update/trained_tokens"] / row["time/update"] for row in rl)
    share = statistics.median(row["time/data"] / row["time/step"] for row in sft)
    print(f"sft {supervised:,.0f} trained tokens/s, update {update:,.0f}, ratio {supervised / update:.2f}")
    print(f"rows are made in {share:.1%} of a step")


if __name__ == "__main__":
    main()
