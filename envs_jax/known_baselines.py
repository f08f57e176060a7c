"""Success of random and of optimal play in the environments of this package, stored because it takes long to compute.

`python -m envs_jax.known_baselines` computes and prints the table; tests compare it with this one.
"""

import jax

from envs_jax import registry
from envs_jax.budget import Budget

SEED, LEVELS = 0, 512
"""The levels are those of `jax.random.split(jax.random.key(SEED), LEVELS)`."""

BASELINES: dict[str, tuple[float, float]] = {
    "Bandit": (0.5, 1.0),
    "BanditTest": (0.5, 1.0),
    "BanditRev": (0.5, 1.0),
    "BanditRevTest": (0.5, 1.0),
    "BanditPhoenix": (0.5, 1.0),
    "FrozenLake": (0.213689, 0.496361),
    "FrozenLake-v2": (0.254515, 0.960826),
    "FrozenLake-deterministic": (0.213689, 1.0),
    "CoordFrozenLake": (0.213689, 0.496361),
    "SimpleSokoban": (0.188954, 0.996094),
    "LargerSokoban": (0.025763, 0.988281),
    "SokobanDifferentGridVocab": (0.188954, 0.996094),
    "CoordSokoban": (0.188954, 0.996094),
}
"""(random, optimal) as means over these levels, within `Budget.one_per_turn(spec(name).max_actions)`.

BabyAI is not in the table: its optimum is searched, and on the harder levels not always found.
"""


def compute(name: str) -> tuple[float, float]:
    """Returns the entry of an environment, to six decimals."""
    budget = Budget.one_per_turn(registry.spec(name).max_actions)
    random, optimal = registry.baselines(name, jax.random.key(SEED), LEVELS, budget)
    return round(random, 6), round(optimal, 6)


if __name__ == "__main__":
    for name in BASELINES:
        print(f'    "{name}": {compute(name)},', flush=True)
