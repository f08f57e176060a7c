"""How often the collapse alarms are raised: in runs whose success stays constant, and in runs whose success falls.

    python benchmarks/collapse_alarms.py [--runs 1000]

The runs are simulated and have 200 iterations, or 120 where success falls; nothing is trained. Every iteration draws
groups of episodes, one level per group; the probability of success has a Beta distribution over levels. `spread` is the
share of the variance of an episode's success that is between levels. Every ten iterations, 128 fixed levels are
validated.
"""

import argparse

import numpy as np

from agentrl_jax.algos import collapse

ITERATIONS, VALIDATE_EVERY, VALIDATION_LEVELS = 200, 10, 128
SHAPES = ((8, 8), (8, 16), (16, 8), (32, 16))
"""Number of groups and group size of an iteration."""
RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
FALLS = ((0.2, 0.05), (0.2, 0.0), (0.5, 0.1), (0.05, 0.0))
"""Success rate before and from iteration 60."""
FALLS_AT = 60
STOPS = tuple(alarm for alarm in collapse.ALARMS if alarm.collapse)


def chances(random: np.random.Generator, rate: np.ndarray, spread: float, shape: tuple[int, ...]) -> np.ndarray:
    """Samples success probabilities f64[shape] from a Beta distribution with variance spread * rate * (1 - rate)."""
    if spread == 0:
        return np.broadcast_to(rate, shape)
    weight = 1 / spread - 1
    rate = np.clip(rate, 1e-6, 1 - 1e-6)
    return random.beta(rate * weight, (1 - rate) * weight, shape)


def simulate(
    random: np.random.Generator, rates: np.ndarray, groups: int, group_size: int, spread: float
) -> list[dict[str, float]]:
    """Returns the rows of metrics of one run whose success rate at each iteration is `rates` f64[n]."""
    n = len(rates)
    solved = random.binomial(group_size, chances(random, rates[:, None], spread, (n, groups)))
    mean = solved / group_size
    std = np.sqrt(group_size / (group_size - 1) * mean * (1 - mean))
    quantiles = random.random(VALIDATION_LEVELS)  # the same levels in each validation
    rows = []
    for i in range(n):
        row = {
            "iteration": i + 1,
            "train/success": mean[i].mean(),
            "rollout/episodes": groups * group_size,
            "rollout/in_group_std": std[i].mean(),
            "rollout/zero_std_share": (std[i] <= 1e-6).mean(),
        }
        if (i + 1) % VALIDATE_EVERY == 0:
            if spread:
                weight = 1 / spread - 1
                rate = max(rates[i], 1e-6)
                levels = beta_quantiles(quantiles, rate * weight, (1 - rate) * weight)
            else:
                levels = np.full(VALIDATION_LEVELS, rates[i])
            row["validation/success"] = random.binomial(1, levels).mean()
            row["validation/episodes"] = VALIDATION_LEVELS
        rows.append(row)
    return rows


def beta_quantiles(quantiles: np.ndarray, a: float, b: float) -> np.ndarray:
    """Returns the quantiles `quantiles` of the Beta distribution with parameters `a` and `b`."""
    from scipy.special import betaincinv

    return np.clip(betaincinv(a, b, quantiles), 0.0, 1.0)


def alarms(rows: list[dict[str, float]]) -> dict[str, int]:
    """Returns the collapse alarms of a run and the iteration at which each was first raised."""
    found = {alarm.name: collapse.examine(alarm, rows).raised for alarm in STOPS}
    return {name: raised[0] for name, raised in found.items() if raised}


def table(cases: dict[str, tuple[np.ndarray, int]], runs: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Returns the share of runs in which each alarm, and any alarm, is raised at or after an iteration.

    Args:
        cases: by name, the success rate f64[n] of each iteration and the iteration from which alarms count.
        runs: number of runs per case; they alternate between the shapes and the spreads 0, 0.3 and 0.6.
        seed: seed of the random numbers.
    """
    result = {}
    for index, (name, (rates, since)) in enumerate(cases.items()):
        random = np.random.default_rng([seed, index])
        counts = dict.fromkeys([*(alarm.name for alarm in STOPS), "any", "any, early"], 0)
        for run in range(runs):
            groups, group_size = SHAPES[run % len(SHAPES)]
            raised = alarms(simulate(random, rates, groups, group_size, (0.0, 0.3, 0.6)[run // len(SHAPES) % 3]))
            for alarm, iteration in raised.items():
                counts[alarm] += iteration >= since
            counts["any"] += any(iteration >= since for iteration in raised.values())
            counts["any, early"] += any(iteration < since for iteration in raised.values())
        result[name] = {key: count / runs for key, count in counts.items()}
    return result


def unchanged(rates: tuple[float, ...] = RATES) -> dict[str, tuple[np.ndarray, int]]:
    """Cases with a constant success rate."""
    return {f"{rate:.1%}": (np.full(ITERATIONS, rate), 0) for rate in rates}


def fallen() -> dict[str, tuple[np.ndarray, int]]:
    """Cases whose success rate falls, with 60 iterations after the fall."""
    return {
        f"{high:.0%} to {low:.0%}": (np.where(np.arange(FALLS_AT + 60) < FALLS_AT, high, low), FALLS_AT + 1)
        for high, low in FALLS
    }


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    for title, cases in (("success, unchanged", unchanged()), ("success, falling", fallen())):
        names = [*(alarm.name for alarm in STOPS), "any", "any, early"]
        print(f"| {title} | {' | '.join(names)} |\n| --- |{' ---: |' * len(names)}")
        for name, shares in table(cases, runs).items():
            print(f"| {name} | {' | '.join(f'{shares[column]:.1%}' for column in names)} |", flush=True)
        print()


if __name__ == "__main__":
    main()
