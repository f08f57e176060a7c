"""What strict log-probabilities cost and change: the three updates side by side, measured in one run.

    python benchmarks/replay.py experiments/demo.yaml
    python benchmarks/replay.py experiments/demo.yaml --tasks.0.groups 16 --model.dtype bfloat16

A fresh agent of the given configuration plays one batch; each update learns from it at unchanged parameters. Temporary
memory is what the compiled program asks for; the gradient, that of the last minibatch, is compared with the parallel
one.
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agentrl_jax.config import load_config
from agentrl_jax.parallel.shards import data_mesh
from agentrl_jax.train import build
from agentrl_jax.train.programs import Programs
from agentrl_jax.train.state import init_state, with_reference

REPEATS = 3
MODES = ("parallel", "strict", "truncated")


def main(path: str, *overrides: str) -> None:
    config = load_config(path, overrides)
    tokenizer = build.load_tokenizer(config.model)
    world = build.build_world(config, tokenizer)
    model = build.build_model(config, tokenizer, common=world.common_prefix)
    engine = build.engine_config(config, tokenizer, members=config.rollout.members, slots=config.rollout.slots)
    programs = Programs(data_mesh(1))
    key = jax.random.key(config.seed)
    state = init_state(key, model, keep_gradient(), build.needs_reference(config))
    state = with_reference(state) if build.needs_reference(config) else state
    ids = build.training_ids(config)
    settings = build.rollout_settings(config, world, ids.group.shape[0], config.rollout.temperature)

    rollout = programs.rollout("rollout", model, world, engine)
    arguments = state.whole(), key, ids, settings
    compiled = rollout.lower(*arguments).compile()
    trajectory, _ = compiled(*arguments)
    print(f"{ids.group.shape[0]} episodes, {config.model.dtype}, {jax.devices()[0].device_kind}, {REPEATS} repeats")
    names = (
        f"{'':10s} {'seconds':>8s} {'times':>6s} {'temp MiB':>9s} {'bit-equal':>9s} {'gap mean':>9s} {'gap max':>9s}"
    )
    print(f"{names} {'gradient change':>16s} {'1 - cosine':>11s}")
    show("rollout", seconds(compiled, [arguments] * REPEATS), compiled)

    numbers = build.update_settings(config, 1.0).replace(max_grad_norm=jnp.float32(1e30))
    first: tuple[float, np.ndarray] | None = None
    for mode in MODES:
        rule = dataclasses.replace(build.learner_config(config), logprobs=mode)
        arguments = state, trajectory, settings.temperature, key, numbers
        compiled = programs.update(model, rule, keep_gradient(), engine).lower(*arguments).compile()
        # The program donates its state.
        after, metrics = compiled(jax.tree.map(jnp.copy, state), *arguments[1:])
        took = seconds(compiled, [(jax.tree.map(jnp.copy, state), *arguments[1:]) for _ in range(REPEATS)])
        gradient = np.concatenate([np.ravel(x) for x in jax.tree.leaves(after.opt_state)]).astype(np.float64)
        first = first or (took, gradient)
        size = np.linalg.norm(first[1])
        change = np.linalg.norm(gradient - first[1]) / size
        cosine = gradient @ first[1] / (size * np.linalg.norm(gradient))
        gaps = [float(metrics[f"rollout/logprob_{name}"]) for name in ("bit_equal", "gap_mean", "gap_max")]
        show(mode, took, compiled, took / first[0], *gaps, change, 1.0 - cosine)


def keep_gradient() -> optax.GradientTransformation:
    """An optimiser that moves nothing; its state is the last gradient."""
    return optax.GradientTransformation(
        init=lambda params: jax.tree.map(jnp.zeros_like, params),
        update=lambda grads, state, params=None: (jax.tree.map(jnp.zeros_like, grads), grads),
    )


def seconds(run: Callable[..., Any], inputs: Sequence[tuple[Any, ...]]) -> float:
    """Median time of a run over its inputs."""
    times = []
    for arguments in jax.block_until_ready(inputs):
        began = time.perf_counter()
        jax.block_until_ready(run(*arguments))
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def show(name: str, took: float, compiled: Any, times: float | None = None, *rest: float) -> None:
    memory = compiled.memory_analysis().temp_size_in_bytes / 2**20
    cells = [f"{name:10s} {took:8.2f} {'' if times is None else f'{times:.2f}':>6s} {memory:9.1f}"]
    if rest:
        equal, mean, greatest, change, angle = rest
        cells += [f"{equal:9.1%} {mean:9.1e} {greatest:9.1e} {change:16.1e} {angle:11.1e}"]
    print(*cells, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
