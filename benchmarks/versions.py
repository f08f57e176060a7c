"""The compiled rollout of this checkout against that of an earlier one, in alternation.

    git clone . ../before && git -C ../before checkout 63ed763
    python benchmarks/versions.py --before ../before --models demo --environments 64 --repeats 11
    JAX_NUM_CPU_DEVICES=2 python benchmarks/versions.py --before ../before --devices 2

The rollouts are those of `torch_rollout.py`, which the other checkout must have. Prints the least and the median of the
seconds, and refuses to compare if the numbers of tokens differ.
"""

import argparse
import statistics
import sys
from pathlib import Path

from worker import Worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, type=Path, help="folder of the other checkout")
    parser.add_argument("--models", nargs="+", default=["demo"])
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5, help="counted; one before them, which compiles, is not")
    parser.add_argument("--devices", type=int, default=1, help="of this checkout's side, and of the other's if it can")
    options = parser.parse_args()
    checkouts = {"before": options.before.resolve(), "now": Path(__file__).parents[1]}
    if not (checkouts["before"] / "benchmarks" / "torch_rollout.py").is_file():
        parser.error(f"--before {options.before} has no benchmarks/torch_rollout.py; expected a checkout that has it")
    for model in options.models:
        sides = {name: Worker(sys.executable, "checkout_side.py") for name in checkouts}
        for name, side in sides.items():
            chosen = {"environments": options.environments, "devices": options.devices}
            side.ask("start", checkout=str(checkouts[name]), model=model, **chosen)
            side.ask("play", number=0)
        times: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(1, 1 + options.repeats):
            played = {name: side.ask("play", number=number) for name, side in sides.items()}
            counts = {name: (one["read"], one["sampled"]) for name, one in played.items()}
            if counts["before"] != counts["now"]:
                raise SystemExit(f"rollout {number} reads and samples different numbers of tokens: {counts}")
            for name, one in played.items():
                times[name].append(one["seconds"])
        for side in sides.values():
            side.close()
        for name, took in times.items():
            print(f"{model:8s} {name:7s} least {min(took):6.2f} s, median {statistics.median(took):6.2f} s", flush=True)
        least, median = (of(times["before"]) / of(times["now"]) for of in (min, statistics.median))
        print(f"{model:8s} faster now by {least:.2f} (least), {median:.2f} (median)", flush=True)


if __name__ == "__main__":
    main()
