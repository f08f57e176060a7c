"""The update on rows of different lengths: padded to the longest, cut to buckets, packed into bins; ratios of one run.

    python benchmarks/packing.py [--only VARIANT ...]

The rows are episodes of TextCraft, played by its scripted oracle on training items, so that they are as different in
length as those of an agent that solves the items. A small decoder with random parameters learns from them by GRPO;
every variant takes the same gradient step. "packed, all keys" reads the keys of the other rows of a bin too, as
platforms other than CPUs do. Ratios are to the first variant.
"""

import argparse
import statistics
import time
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.config import load_config
from agentrl_jax.learner import state as states
from agentrl_jax.models import block_attention
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.setup import build_inputs, build_model
from agentrl_jax.setup.programs import Programs
from agentrl_jax.setup.service_demonstrations import service_demonstrations
from agentrl_jax.setup.service_tasks import Services

REPEATS, EPISODES = 5, 64
WORDS = (
    "--model {layers: 4, embed_dim: 256, heads: 4, kv_heads: 2, mlp_width: 768}",
    "--algo {preset: grpo, minibatches: 1, grad_accum_steps: 16, filter: none, kl: none}",
    "--env {url: local, observation_tokens: 272}",
    "--rollout {group_size: 8, context_tokens: 0}",
    "--prompt {style: bare, max_turns: 10, max_response_tokens: 64}",
    f"--imitation {{levels: {4 * EPISODES}, steps: 1}}",
)
VARIANTS = {
    "padded": {},
    "4 buckets": {"length_buckets": 4},
    "packed": {"packing": True},
    "packed, all keys": {"packing": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=[*VARIANTS])
    names = parser.parse_args().only
    config = load_config("experiments/textcraft.yaml", [word for words in WORDS for word in words.split(" ", 1)])
    tokenizer = build_model.load_tokenizer(config.model)
    services = Services(config, lambda: Path())
    batched_env = services.batched_env(tokenizer, held_out=False)
    trajectory, _ = service_demonstrations(config, services, batched_env, tokenizer, jax.random.key(0))
    services.close()
    trajectory = jax.tree.map(lambda x: x[:EPISODES], trajectory)
    # Groups of unequal returns, so that every row has an advantage.
    reward = trajectory.turn.reward.at[::2].add(-1.0)
    trajectory = trajectory.replace(turn=trajectory.turn.replace(reward=reward))
    lengths = np.asarray(pack_trajectories(trajectory, FULL).length)
    print(f"{len(lengths)} rows of {lengths.min()} to {lengths.max()} tokens, {lengths.mean():.0f} in the mean")

    model, tx = build_model.build_model(config, tokenizer), build_model.build_optimizer(config)
    programs, settings = Programs(make_mesh(1)), build_inputs.update_settings(config, 1.0)
    start = states.init_state(jax.random.key(1), model, tx, reference=False)
    arguments = trajectory, jnp.ones(EPISODES), jax.random.key(2), settings
    updates = {
        name: programs.update(model, build_inputs.learner_config(config).replace(**VARIANTS[name]), tx)
        for name in names
    }
    times: dict[str, list[float]] = {name: [] for name in updates}
    norms = {}
    for repeat in range(REPEATS + 1):
        for name, update in updates.items():
            state = jax.block_until_ready(jax.tree.map(jnp.copy, start))
            block = 2**30 if name == "packed, all keys" else block_attention.PACKED_BLOCK
            began = time.perf_counter()
            with mock.patch.object(block_attention, "PACKED_BLOCK", block):  # read when the program is traced
                _, metrics = jax.block_until_ready(update(state, *arguments))
            norms[name] = float(metrics["actor/grad_norm"])
            if repeat:  # the first one compiles
                times[name].append(time.perf_counter() - began)
    base = statistics.median(times[names[0]])
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
        print(f"{name:16s} {middle:6.2f} s ({spread})   {base / middle:.2f} x the speed   {norms[name]:.6f} norm")


if __name__ == "__main__":
    main()
