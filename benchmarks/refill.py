"""Slots that are refilled, compared with one slot per episode, on episodes of uneven length; prints ratios of one run.

    python benchmarks/refill.py runs/demo

The agent of a finished run plays 1,024 episodes of its first task. It solves easy levels in one turn and uses every
turn on others, so the lengths are as uneven as in training. All programs play the same episodes.
"""

import dataclasses
import sys
import time

import jax
import numpy as np

from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.setup import build
from agentrl_jax.setup.policy import load_policy
from agentrl_jax.setup.programs import Programs, total_stats

REPEATS = 5
EPISODES = 1024
VARIANTS = (
    ("one slot an episode", 0, 1.0),
    ("256 slots, barrier", 256, 1.0),
    ("256 slots, share 0.5", 256, 0.5),
)


def main(run: str) -> None:
    config = read_config(run)
    policy = load_policy(run, config)
    batched_env = build.build_compiled_env(config, policy.tokenizer)
    ids = build.evaluation_ids(0, EPISODES, 0, 0)
    settings = build.rollout_settings(config, batched_env, EPISODES, 1.0)
    programs = Programs(make_mesh(1))
    key = jax.random.key(1)

    base = None
    for name, slots, share in VARIANTS:
        engine = build.engine_config(config, policy.tokenizer, group_size=1, slots=slots)
        program = programs.rollout(
            name, policy.model, batched_env, dataclasses.replace(engine, prefill_threshold=share)
        )
        _, stats = jax.block_until_ready(program(policy.params, key, ids, settings))
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            jax.block_until_ready(program(policy.params, key, ids, settings))
            times.append(time.perf_counter() - began)
        seconds = float(np.median(times))
        base = base or seconds
        counters = total_stats(stats)
        active = counters["sampled_tokens"] / counters["slot_steps"]
        print(f"{name:22s} {seconds:6.2f} s   {base / seconds:.2f} x the speed   active token share {active:.2f}")


if __name__ == "__main__":
    main(sys.argv[1])
