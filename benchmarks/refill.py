"""Slots that are refilled, compared with one slot per episode, on episodes of uneven length; prints ratios of one run.

    python benchmarks/refill.py runs/demo
    python benchmarks/refill.py runs/babyai --episodes 256 --slots 128

The agent of a finished run plays episodes of its first task. It solves easy levels in one turn and uses every turn on
others, so the lengths are as uneven as in training. All programs play the same episodes, in alternation, and have the
other settings of the run, such as `rollout.prefill_chunk`. In the last one the observations of 16 rows at a time are
prefilled (`rollout.prefill_rows`).
"""

import argparse
import dataclasses
import time

import jax
import numpy as np

from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.setup import build, build_inputs
from agentrl_jax.setup.policy import load_policy
from agentrl_jax.setup.programs import Programs, total_stats


def main(run: str, episodes: int, slots: int, repeats: int) -> None:
    variants = {
        "one slot an episode": {"slots": 0, "prefill_threshold": 1.0, "prefill_rows": 0},
        f"{slots} slots, barrier": {"slots": slots, "prefill_threshold": 1.0, "prefill_rows": 0},
        f"{slots} slots, share 0.5": {"slots": slots, "prefill_threshold": 0.5, "prefill_rows": 0},
        f"{slots} slots, share 0.5, 16 rows": {"slots": slots, "prefill_threshold": 0.5, "prefill_rows": 16},
    }
    config = read_config(run)
    policy = load_policy(run, config)
    batched_env = build.build_compiled_env(config, policy.tokenizer)
    ids = build_inputs.evaluation_ids(np.arange(episodes), 0)
    settings = build_inputs.rollout_settings(config, batched_env, episodes, 1.0)
    programs = Programs(make_mesh(1))
    key = jax.random.key(1)

    played, active = {}, {}
    engine = build_inputs.engine_config(config, policy.tokenizer, group_size=1, slots=0)
    for name, changes in variants.items():
        program = programs.rollout(name, policy.model, batched_env, dataclasses.replace(engine, **changes))
        _, stats = jax.block_until_ready(program(policy.params, key, ids, settings))
        counters = total_stats(stats)
        played[name], active[name] = program, counters["sampled_tokens"] / counters["slot_steps"]
    seconds = {name: [] for name in played}
    for _ in range(repeats):
        for name, program in played.items():
            began = time.perf_counter()
            jax.block_until_ready(program(policy.params, key, ids, settings))
            seconds[name].append(time.perf_counter() - began)
    base = np.median(next(iter(seconds.values())))
    for name, times in seconds.items():
        median = np.median(times)
        print(f"{name:30s} {median:6.2f} s   {base / median:.2f} x the speed   active token share {active[name]:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run")
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    main(**vars(parser.parse_args()))
