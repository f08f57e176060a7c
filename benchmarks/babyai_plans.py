"""Plans for levels of BabyAI: as for imitation, beside a breadth-first search that gives up, in one run.

    python benchmarks/babyai_plans.py [--levels N] [--max_nodes M] [--numbers NUMBERS]

The levels are training levels of the mixture in experiments/babyai.yaml, or of the level numbers that are given. Plans
for imitation are the shortest where 100 situations are enough to find one, and otherwise those of `babyai.guided`. Both
sides are compiled before they are timed, and run in alternation. Last come the published test items that are solved by
looking around first (`babyai.explore`) and a plan after it.
"""

import argparse
import collections
import statistics
import time
from pathlib import Path

import jax
import numpy as np

from agentrl_jax.config import load_config
from envs_jax import registry
from envs_jax.babyai import baselines, items
from envs_jax.babyai.env import BabyAI
from envs_jax.babyai.explore import explorations
from envs_jax.babyai.search import shortest_plans
from envs_jax.splits import Split

EXPERIMENT = Path(__file__).parents[1] / "experiments" / "babyai.yaml"
REPEATS, LIMIT = 3, 20


def main() -> None:
    """Prints how many levels each side has a plan for, how long the plans are, and the seconds."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--levels", type=int, default=512)
    options.add_argument("--max_nodes", type=int, default=2000, help="situations after which breadth-first gives up")
    options.add_argument("--numbers", default="", help="level numbers, such as 12-18,22")
    given = options.parse_args()
    task = load_config(EXPERIMENT).tasks[0]
    env, params = registry.make(task.env, **task.options | ({"numbers": given.numbers} if given.numbers else {}))
    levels = registry.sample_levels(env, params, jax.random.split(jax.random.key(0), given.levels), Split.TRAIN)
    numbers = levels[:, env.shape.height :].reshape(len(levels), -1)[:, 0]

    def breadth_first(some):
        return [plan.actions for plan in shortest_plans(env, params, some, LIMIT, max_nodes=given.max_nodes)]

    sides = {
        f"breadth-first, {given.max_nodes} situations": breadth_first,
        "for imitation": lambda some: registry.spec(task.env).plan(env, params, some, LIMIT),
    }
    found, seconds = {}, collections.defaultdict(list)
    for make in sides.values():
        make(levels[:64])
    for _ in range(REPEATS):
        for name, make in sides.items():
            begin = time.perf_counter()
            found[name] = [None if plan is None else len(plan) for plan in make(levels)]
            seconds[name].append(time.perf_counter() - begin)
    first, second = found.values()
    both = np.array([(a, b) for a, b in zip(first, second) if a and b])
    print(f"{given.levels} levels, seed 0, plans of at most {LIMIT} actions; medians of {REPEATS}")
    for name, lengths in found.items():
        without = collections.Counter(int(number) for number, length in zip(numbers, lengths) if length is None)
        count, middle = sum(length is not None for length in lengths), statistics.median(seconds[name])
        print(f"{name}: {count} plans in {middle:.1f} s; without one by number {dict(sorted(without.items()))}")
    equal = np.mean(both[:, 0] == both[:, 1])
    lost = sum(a is not None and b is None for a, b in zip(first, second))
    print(
        f"of {len(both)} levels with both {equal:.1%} are equally long (means {both[:, 0].mean():.2f} and "
        f"{both[:, 1].mean():.2f}); {lost} have only the first"
    )
    env = BabyAI(items.SHAPE, **{name: task.options[name] for name in ("mode", "objects_shown")})
    panel = items.load(items.panel())
    looked = explorations(env, env.default_params, panel, np.zeros((len(panel), 0), np.int32), LIMIT)
    after = baselines.plan_after(env, env.default_params, panel, LIMIT, looked)
    fitting = sum(plan is not None for plan in after)
    print(f"published items solved within {LIMIT} actions by looking around first: {fitting} of {len(panel)}")


if __name__ == "__main__":
    main()
