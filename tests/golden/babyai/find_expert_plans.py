"""Searches the plans that `export_fixtures.py traces` plays as expert sequences; runs with this repository's JAX.

    PYTHONPATH=. python tests/golden/babyai/find_expert_plans.py

`fixtures/expert_plans.json` has the action texts by data index, for each of the first five seeds of every level for
which a plan of at most 20 actions is found. By AgentGym's rules there is none for level 26, and for other items the key
is out of reach or the plan is longer.
"""

import json
from pathlib import Path

from envs_jax.babyai import items, macros
from envs_jax.babyai.env import BabyAI
from envs_jax.babyai.guided import guided_plans

SEEDS, LEVELS, ROUNDS = 5, 40, 20
FILE = Path(__file__).parent / "fixtures" / "expert_plans.json"


def main():
    env = BabyAI(items.SHAPE, mode="upstream")
    chosen = range(SEEDS * LEVELS)
    plans = guided_plans(env, env.default_params, items.load(tuple(chosen)), ROUNDS)
    names = macros.action_names()
    found = {index: [names[i] for i in plan.actions] for index, plan in zip(chosen, plans) if plan.actions is not None}
    rows = [f'"{index}": {json.dumps(actions)}' for index, actions in found.items()]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    for number in range(1, LEVELS + 1):
        lengths = [len(actions) for index, actions in found.items() if items.number_of(index) == number]
        print(f"level {number}: {len(lengths)} plans of {lengths} actions")


if __name__ == "__main__":
    main()
