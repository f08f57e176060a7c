"""Cost and effect of replayed log-probabilities: the updates with and without them, measured in one run.

    python benchmarks/replay.py experiments/demo.yaml
    python benchmarks/replay.py experiments/demo.yaml --tasks.0.groups 16 --model.precision mixed

A freshly initialized agent plays one batch; each update learns from it, starting from the same parameters. Temporary
memory is what the compiled program requests. The gradient of the last minibatch is compared with that of mismatch none.
"""

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agentrl_jax.config import load_config
from agentrl_jax.config.mismatch import IcePop, NoCorrection, Replay, Tis
from agentrl_jax.learner.state import init_state, with_reference
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.envs.batched_env import shared_prefix_len
from agentrl_jax.setup import build, build_inputs, build_model
from agentrl_jax.setup.programs import Programs

REPEATS = 5
MODES = {"none": NoCorrection(), "replay": Replay(), "tis": Tis(), "icepop": IcePop()}


def main(path: str, *overrides: str) -> None:
    config = load_config(path, overrides)
    tokenizer = build_model.load_tokenizer(config.model)
    batched_env = build.build_compiled_env(config, tokenizer)
    model = build_model.build_model(config, tokenizer, shared_prefix_len=shared_prefix_len(batched_env))
    engine = build_inputs.engine_config(
        config, tokenizer, group_size=config.rollout.group_size, slots=config.rollout.slots
    )
    programs = Programs(make_mesh(1))
    key = jax.random.key(config.seed)
    state = init_state(key, model, keep_gradient(), build_model.needs_reference(config))
    state = with_reference(state) if build_model.needs_reference(config) else state
    ids = build_inputs.training_ids(config)
    settings = build_inputs.rollout_settings(config, batched_env, ids.group.shape[0], config.rollout.temperature)

    numbers = build_inputs.update_settings(config, 1.0).replace(max_grad_norm=jnp.float32(1e30))
    playing = state.merged_params(), key, ids, settings
    compiled = {"rollout": programs.rollout("rollout", model, batched_env, engine).lower(*playing).compile()}
    trajectory, _ = compiled["rollout"](*playing)
    learning = trajectory, settings.temperature, key, numbers
    for mode in MODES:
        rule = build_inputs.learner_config(config).replace(mismatch=MODES[mode])
        program = programs.update(model, rule, keep_gradient(), engine)
        compiled[mode] = program.lower(state, *learning).compile()

    # The programs alternate, so that a busy machine slows all of them down.
    times: dict[str, list[float]] = {name: [] for name in compiled}
    results: dict[str, Any] = {}
    for _ in range(REPEATS):
        for name, program in compiled.items():
            # An update donates its state.
            inputs = playing if name == "rollout" else (jax.tree.map(jnp.copy, state), *learning)
            jax.block_until_ready(inputs)
            began = time.perf_counter()
            results[name] = jax.block_until_ready(program(*inputs))
            times[name].append(time.perf_counter() - began)

    device = jax.devices()[0].device_kind
    print(f"{ids.group.shape[0]} episodes, {config.model.precision}, {device}, least of {REPEATS} times")
    names = (
        f"{'':10s} {'seconds':>8s} {'times':>6s} {'temp MiB':>9s} {'bit-equal':>9s} {'gap mean':>9s} {'gap max':>9s}"
    )
    print(f"{names} {'gradient change':>16s} {'1 - cosine':>11s}")
    plain = gradient_of(results["none"])
    for name, program in compiled.items():
        took, memory = min(times[name]), program.memory_analysis().temp_size_in_bytes / 2**20
        cells = f"{name:10s} {took:8.2f} {took / min(times['none']):6.2f} {memory:9.1f}"
        if name in MODES:
            gradient, metrics = gradient_of(results[name]), results[name][1]
            change = np.linalg.norm(gradient - plain) / np.linalg.norm(plain)
            cosine = gradient @ plain / (np.linalg.norm(plain) * np.linalg.norm(gradient))
            equal, mean, greatest = (metrics[f"rollout/logprob_{x}"] for x in ("bit_equal", "gap_mean", "gap_max"))
            cells += f" {equal:9.1%} {mean:9.1e} {greatest:9.1e} {change:16.1e} {1 - cosine:11.1e}"
        print(cells, flush=True)


def keep_gradient() -> optax.GradientTransformation:
    """Returns an optimizer that changes no parameter; its state is the last gradient."""
    return optax.GradientTransformation(
        init=lambda params: jax.tree.map(jnp.zeros_like, params),
        update=lambda grads, state, params=None: (jax.tree.map(jnp.zeros_like, grads), grads),
    )


def gradient_of(result: Any) -> np.ndarray:
    """Returns the gradient of the last minibatch, f64[parameters]."""
    state, _ = result
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(state.opt_state)]).astype(np.float64)


if __name__ == "__main__":
    main(*sys.argv[1:])
