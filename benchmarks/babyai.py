"""BabyAI's actions per second, text consumed: compiled, AgentGym's Python wrapper, and navix's primitive steps.

    python benchmarks/babyai.py --python minigrid_venv/bin/python --wrapper AgentGym/.../environment.py
    python benchmarks/babyai.py --curve --figure curve.png    # 1 to 16,384 environments; other sides as above
    python benchmarks/babyai.py --navix-python navix_venv/bin/python

`tests/golden/babyai/README.md` names the packages of the first environment; the second one has the package
`navix`. All sides play the eighteen levels of AgentGym-RL with random listed actions, at most twenty an episode, in
alternation and in one run. Generating the levels counts on both sides. The compiled side and navix use one device a
core, the wrapper one process a core. navix is compared by primitive steps.
"""

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROUNDS = 20
STEPS, MEAN_ACTIONS, REPLACED = 192, 12.5, 16
"""Actions of an environment in one call of the compiled side, and mean actions of an episode, rounded down.

A call first generates the levels of all its environments. An environment whose episode ends goes on with the next
level; one in `REPLACED` is replaced at a time. Where no level is left it waits, which is not counted. The levels that
are left over at the end, and the episodes that are cut off there, count as work all the same.
"""

LEVELS_AT_ONCE = 512
"""On a CPU, levels that are generated together: what more of them need does not fit into its caches."""


def batched(function: Callable[..., Any], size: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A function of a batch of keys for `size` keys, shared by all devices if they divide it; and what places them."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    devices = len(jax.devices())
    if devices == 1 or size % devices:
        return jax.jit(function), jnp.asarray
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("data")
    shared = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(shared), functools.partial(jax.device_put, device=NamedSharding(mesh, spec))


def random_play() -> Callable[..., Any]:
    """Returns a function of a batch of keys that plays `STEPS` actions in an environment for each key.

    It returns the number of actions and of primitive steps, [1, 2], and a sum over the text.
    """
    import jax
    import jax.numpy as jnp

    import envs_jax
    from envs_jax.babyai.policies import random_policy

    env, params = envs_jax.make("BabyAI")
    reset = jax.vmap(lambda key: env.reset_env(key, params)[1])
    describe = jax.vmap(lambda state: jnp.sum(env.describe(state, params)))

    @jax.vmap
    def act(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        action = random_policy(key, env.candidates(state))
        return env.step_env(key, state, action, params)[1], ~env.is_done(state, params)

    def episodes(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = len(keys)
        levels = math.ceil(rows * (1 + STEPS / MEAN_ACTIONS) + 3 * math.sqrt(rows))
        level_key, play_key = jax.random.split(keys[0])
        parts = -(-levels // LEVELS_AT_ONCE) if jax.default_backend() == "cpu" else 1
        level_keys = jax.random.split(level_key, (parts, -(-levels // parts)))
        starts = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), jax.lax.map(reset, level_keys))
        some = -(-rows // REPLACED)

        def replace(state: Any, used: jax.Array) -> tuple[Any, jax.Array]:
            def turn(carry: tuple) -> tuple:
                done, state, used = carry
                ended = jnp.nonzero(done, size=some, fill_value=rows)[0]
                fresh = used + jnp.arange(some)
                ended = jnp.where(fresh < levels, ended, rows)
                state = jax.tree.map(
                    lambda old, new: old.at[ended].set(new.at[fresh].get(mode="clip"), mode="drop"), state, starts
                )
                return done.at[ended].set(False, mode="drop"), state, used + jnp.sum(ended < rows)

            done = jax.vmap(env.is_done, (0, None))(state, params)
            start = done, state, used
            return jax.lax.while_loop(lambda carry: jnp.any(carry[0]) & (carry[2] < levels), turn, start)[1:]

        def step(carry: tuple, key: jax.Array) -> tuple[tuple, jax.Array]:
            state, used, read = carry
            before = state.world.steps
            state, plays = act(state, jax.random.split(key, rows))
            counts = jnp.stack([jnp.sum(plays), jnp.sum(jnp.where(plays, state.world.steps - before, 0))])
            state, used = replace(state, used)
            return (state, used, read + describe(state)), counts

        first = jax.tree.map(lambda leaf: leaf[:rows], starts)
        carry = first, jnp.int32(rows), describe(first)
        (_, _, read), counts = jax.lax.scan(step, carry, jax.random.split(play_key, STEPS))
        return jnp.sum(counts, axis=0)[None], read

    return episodes


def compiled(sizes: list[int], seconds: float) -> dict[int, tuple[float, float]]:
    """Returns actions and primitive steps per second by the number of environments."""
    import jax
    import numpy as np

    episodes, rates = random_play(), {}
    for size in sizes:
        program, split = batched(episodes, size)
        make = jax.jit(lambda seed, size=size: jax.random.split(jax.random.key(seed), size))
        jax.block_until_ready(program(split(make(0))))
        taken, seed, began = np.zeros(2), 1, time.perf_counter()
        while time.perf_counter() - began < seconds:
            counts, read = program(split(make(seed)))
            taken, seed = taken + np.asarray(counts).sum(axis=0), seed + 1
            assert int(np.sum(read)) != 0
        actions, primitive = taken / (time.perf_counter() - began)
        rates[size] = float(actions), float(primitive)
    return rates


def wrapper(path: str, seconds: float) -> dict[str, float]:
    """Returns actions per second of AgentGym's wrapper in this process: with its layouts, and without."""
    import random

    sys.path.insert(0, str(HERE.parent / "tests" / "envs_jax" / "babyai"))
    from original import load_wrapper

    module = load_wrapper(Path(path))
    numbers = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 19, 20, 21, 30, 31, 33, 36)
    rng, taken, resetting, read = random.Random(0), 0, 0.0, 0
    began, seed = time.perf_counter(), rng.randrange(10**6)
    while time.perf_counter() - began < seconds:
        for number in numbers:
            before = time.perf_counter()
            env = module.BabyAI(game_name=module.all_levels[number], seed=seed)
            resetting += time.perf_counter() - before
            for _ in range(ROUNDS):
                listed = [name for name in env._get_action_space() if "check" not in name]
                env.step(rng.choice(listed))
                read += len(env._get_obs()) + sum(map(len, env._get_action_space()))
                taken += 1
                if env._is_done():
                    break
        seed += 1
    passed = time.perf_counter() - began
    return {"actions": taken / passed, "without layouts": taken / (passed - resetting), "read": read}


def navix(name: str, size: int, seconds: float) -> dict[str, float]:
    """Returns primitive steps per second of a navix environment, with its observation consumed."""
    import jax
    import jax.numpy as jnp
    import navix as nx

    env = nx.make(name)

    def play(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        first = env.reset(key)

        def step(carry: tuple, key: jax.Array) -> tuple[tuple, None]:
            timestep, read = carry
            action = jax.random.randint(key, (), 0, 7)
            timestep = env.step(timestep, action)
            return (timestep, read + jnp.sum(timestep.observation.astype(jnp.int32))), None

        (last, read), _ = jax.lax.scan(step, (first, jnp.int32(0)), jax.random.split(key, 128))
        return read, last.t

    program, split = batched(jax.vmap(play), size)
    jax.block_until_ready(program(split(jax.random.split(jax.random.key(0), size))))
    taken, seed, began = 0, 1, time.perf_counter()
    while time.perf_counter() - began < seconds:
        jax.block_until_ready(program(split(jax.random.split(jax.random.key(seed), size))))
        taken, seed = taken + 128 * size, seed + 1
    return {"steps": taken / (time.perf_counter() - began)}


def call(python: str, *arguments: str) -> list[dict]:
    """Runs this script in another interpreter, the wrapper once for each core; returns what each run prints."""
    number = (os.cpu_count() or 1) if arguments[0] == "wrapper" else 1
    command = [python, str(Path(__file__).resolve()), "--worker", *arguments]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(number)]
    return [json.loads(process.communicate()[0].splitlines()[-1]) for process in running]


def plot(rates: dict[int, float], others: dict[str, float], path: str) -> None:
    """Plots actions per second by the number of environments, and other sides as lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(list(rates), list(rates.values()), "o-", label="compiled")
    for number, (name, rate) in enumerate(others.items()):
        axes.axhline(rate, linestyle="--", color=f"C{number + 1}", label=name)
    axes.set(xlabel="environments", ylabel="actions a second")
    axes.set_xscale("log", base=4)
    axes.set_yscale("log", base=10)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measures in alternation and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=1024)
    parser.add_argument("--curve", action="store_true", help="1 to 16,384 environments")
    parser.add_argument("--python", help="interpreter with minigrid 2.3.1")
    parser.add_argument("--wrapper", help="environment.py of AgentGym's BabyAI server")
    parser.add_argument("--navix-python", help="interpreter with navix")
    parser.add_argument("--navix-env", default="Navix-GoToObject-8x8-N2-v0")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--figure", help="file for a figure of the curve")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        kind, *rest = options.worker
        functions = {
            "compiled": lambda sizes, seconds: compiled([int(size) for size in sizes.split(",")], float(seconds)),
            "wrapper": lambda path, seconds: wrapper(path, float(seconds)),
            "navix": lambda name, size, seconds: navix(name, int(size), float(seconds)),
        }
        print(json.dumps(functions[kind](*rest)))
        return
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(os.cpu_count() or 1))
    sizes = [4**k for k in range(8)] if options.curve else [options.environments]
    seconds, found = str(options.seconds), []
    for _ in range(1 if options.curve else options.repeats):
        row = {}
        (rates,) = call(sys.executable, "compiled", ",".join(map(str, sizes)), seconds)
        for size, (actions, primitive) in rates.items():
            row |= {f"compiled, {size} environments": actions, f"compiled, {size}, primitive": primitive}
        if options.wrapper:
            sides = call(options.python, "wrapper", options.wrapper, seconds)
            row["wrapper, all cores"] = sum(side["actions"] for side in sides)
            row["wrapper, one process"] = statistics.mean(side["actions"] for side in sides)
            row["wrapper, one process, without layouts"] = statistics.mean(side["without layouts"] for side in sides)
        if options.navix_python:
            (side,) = call(options.navix_python, "navix", options.navix_env, str(options.environments), seconds)
            row[f"{options.navix_env}, primitive steps"] = side["steps"]
        found.append(row)
        print(json.dumps({name: round(rate, 1) for name, rate in row.items()}), flush=True)
    if options.figure:
        rates = {size: found[0][f"compiled, {size} environments"] for size in sizes}
        others = {name: rate for name, rate in found[0].items() if "core" in name or name.endswith("one process")}
        plot(rates, others, options.figure)
    for name in found[0]:
        first = f"compiled, {sizes[-1]}" + (", primitive" if "primitive" in name else " environments")
        middle = statistics.median(row[name] for row in found)
        ratio = statistics.median(row[first] / row[name] for row in found)
        print(f"{name:45} {middle:12,.0f} a second   compiled is {ratio:8.1f} times")


if __name__ == "__main__":
    main()
