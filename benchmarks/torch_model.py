"""The decoder against torch with transformers, on the same weights: prefill, decode, gradient; prints ratios.

    python benchmarks/torch_model.py --torch-python VENV/bin/python
    python benchmarks/torch_model.py --torch-python VENV/bin/python --dtypes float32 --phases decode --repeats 5

The two sides alternate, repetition by repetition, and the shortest time of each counts. torch runs both eagerly and
compiled. Here decoding uses a cache in the dtype of the activations and one in f32, and the gradient (without an
optimizer step) is computed for all rows with `remat: dots` and row by row with `remat: none`. The best variant of each
side counts. Shares of the peak refer to the fastest product of square matrices of either side in the same dtype, shares
of the bandwidth to one pass over 512 MiB.
"""

import argparse
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax_side import CACHE, LENGTH, PROMPT, Ours
from worker import Worker, seconds

from agentrl_jax.models.io.load import load_pretrained, save_pretrained

SIZE = 2048
BYTES = {"float32": 4, "bfloat16": 2}


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        name: name shown in the table.
        tokens: tokens that one repetition computes.
        flops: FLOPs of its matrix products; attention counts only the positions that are not masked.
        moved: bytes that it must read at least: the parameters at each step, and the filled cache.
        ours: variants of this project, (dtype) -> seconds of one repetition.
        torch: the worker's function and its arguments, without the dtype.
        ways: variants of torch, each as further arguments.
    """

    name: str
    tokens: int
    flops: float
    moved: Callable[[int], float]
    ours: dict[str, Callable[[str], float]]
    torch: tuple[str, dict[str, Any]]
    ways: dict[str, dict[str, Any]]


def cases(ours: Ours, options: argparse.Namespace) -> list[Case]:
    c = ours.shape
    heads, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    matrices = c.num_layers * (2 * c.embed_dim * heads + 2 * c.embed_dim * kv + 3 * c.embed_dim * c.mlp_width)
    table = c.vocab_size * c.embed_dim
    ways = {"eager": {"mode": "eager"}}
    if not options.no_compile:
        ways |= {"compiled": {"mode": "compiled"}}

    def attention(seen: float) -> float:
        return 4 * c.num_layers * heads * seen

    made = []
    if "prefill" in options.phases:
        for batch in options.batches:
            tokens = batch * PROMPT
            flops = tokens * (2 * matrices + attention(PROMPT / 2)) + batch * 2 * table
            made.append(
                Case(
                    f"prefill {batch} x {PROMPT}",
                    tokens,
                    flops,
                    lambda size: size * (matrices + table),
                    {"": functools.partial(ours.prefill, batch)},
                    ("prefill", {"batch": batch, "length": PROMPT}),
                    ways,
                )
            )
    if "decode" in options.phases:
        for batch in options.batches:
            steps = max(8, 32 // batch)
            seen = PROMPT + steps / 2
            kept = 2 * c.num_layers * kv * seen * batch
            made.append(
                Case(
                    f"decode batch {batch}",
                    batch * steps,
                    batch * steps * (2 * (matrices + table) + attention(seen)),
                    lambda size, steps=steps, kept=kept: steps * size * (matrices + table + kept),
                    {kind: functools.partial(ours.decode, batch, steps, kind) for kind in ("", "float32")},
                    ("decode", {"batch": batch, "length": PROMPT, "cache": CACHE, "steps": steps}),
                    ways,
                )
            )
    if "gradient" in options.phases:
        rows = options.rows
        parts = [part for part in (1, 4) if rows % part == 0]
        made.append(
            Case(
                f"gradient {rows} x {LENGTH}",
                rows * LENGTH,
                3 * rows * LENGTH * (2 * (matrices + table) + attention(LENGTH / 2)),
                lambda size: 3 * size * (matrices + table),
                {
                    "all, products kept": functools.partial(ours.gradient, rows, "dots", 1),
                    "row by row": functools.partial(ours.gradient, rows, "none", rows),
                },
                ("train", {"rows": rows, "length": LENGTH}),
                {f"{name}, {part} rows": {**way, "part": part} for part in parts for name, way in ways.items()},
            )
        )
    return made


def machine(worker: Worker, dtypes: list[str]) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Returns GFLOP/s of square matrix products by dtype and side, and GB/s of one pass over 512 MiB by side."""
    product = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
    ones = jnp.ones(2**27)
    total = jax.jit(jnp.sum)
    peaks: dict[str, dict[str, float]] = {}
    for dtype in dtypes:
        a = jax.random.normal(jax.random.key(0), (SIZE, SIZE)).astype(dtype)
        times: dict[str, list[float]] = {"jax": [], "torch": []}
        small = SIZE if dtype == "float32" else SIZE // 4
        for _ in range(5):
            times["jax"].append(seconds(lambda a=a: jax.block_until_ready(product(a, a))))
            times["torch"].append(worker.ask("matmul", size=small, dtype=dtype))
        peaks[dtype] = {
            "jax": 2 * SIZE**3 / min(times["jax"]) / 1e9,
            "torch": 2 * small**3 / min(times["torch"]) / 1e9,
        }
    reads = {
        "jax": min(seconds(lambda: jax.block_until_ready(total(ones))) for _ in range(5)),
        "torch": min(worker.ask("read") for _ in range(5)),
    }
    return peaks, {side: ones.nbytes / took / 1e9 for side, took in reads.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", required=True, help="interpreter that has torch and transformers")
    parser.add_argument("--model", default="smollm2-135m", help="as load_pretrained takes it")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--phases", nargs="+", default=["prefill", "decode", "gradient"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64], help="of prefill and decode")
    parser.add_argument("--rows", type=int, default=8, help="of the gradient")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    parser.add_argument(
        "--limit", type=float, default=20.0, help="leave out what must take longer by the peak, seconds"
    )
    options = parser.parse_args()

    pretrained = load_pretrained(options.model)
    ours = Ours(pretrained)
    worker = Worker(options.torch_python, "torch_side.py")
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(f"{folder}/model", pretrained.params, pretrained.config)
        versions = worker.ask("start", folder=f"{folder}/model")
        load = os.getloadavg()
        print(f"jax {jax.__version__}, {versions}, load {load[0]:.1f} {load[1]:.1f} {load[2]:.1f} at the start")
        peaks, reads = machine(worker, options.dtypes)
        bandwidth = max(reads.values())
        for dtype in options.dtypes:
            print(f"{dtype} product of {SIZE}: " + ", ".join(f"{k} {v:.1f} GF/s" for k, v in peaks[dtype].items()))
        print("one pass over 512 MiB: " + ", ".join(f"{side} {value:.1f} GB/s" for side, value in reads.items()))
        print(
            f"\n{'':18s} {'type':9s} {'here tok/s':>10s} {'torch':>8s} {'ratio':>6s} {'peak':>5s} {'(torch)':>7s} "
            f"{'bandw.':>6s}  best ways"
        )
        for case in cases(ours, options):
            for dtype in options.dtypes:
                measure(case, dtype, worker, options, peaks[dtype], bandwidth)
    worker.close()
    print(f"load {os.getloadavg()[0]:.1f} at the end")


def measure(case: Case, dtype: str, worker: Worker, options, peaks: dict[str, float], bandwidth: float) -> None:
    """Measures and prints one line."""
    function, arguments = case.torch
    runs: dict[tuple[str, str], Callable[[], float]] = {}
    least = {side: case.flops / peak / 1e9 for side, peak in peaks.items()}
    if least["jax"] < options.limit:
        runs |= {("jax", name): functools.partial(way, dtype) for name, way in case.ours.items()}
    if least["torch"] < options.limit:
        runs |= {
            ("torch", name): functools.partial(worker.ask, function, dtype=dtype, **arguments, **way)
            for name, way in case.ways.items()
        }
    for warm in runs.values():
        warm()
    times: dict[tuple[str, str], float] = dict.fromkeys(runs, float("inf"))
    for _ in range(options.repeats):
        for key, run in runs.items():
            times[key] = min(times[key], run())
    best = {side: min(((t, k[1]) for k, t in times.items() if k[0] == side), default=None) for side in least}
    cells = f"{case.name:18s} {dtype:9s}"
    for side, embed_dim in (("jax", 10), ("torch", 8)):
        found = best[side]
        cells += (
            f" {case.tokens / found[0]:{embed_dim}.1f}"
            if found
            else f" {'> ' + format(least[side], '.0f') + ' s':>{embed_dim}s}"
        )
    jax_best, torch_best = best["jax"], best["torch"]
    peak = max(peaks.values())
    if jax_best and torch_best:
        cells += f" {torch_best[0] / jax_best[0]:6.2f}"
    if jax_best:
        shares = [f"{case.flops / found[0] / 1e9 / peak:.0%}" if found else "" for found in (jax_best, torch_best)]
        cells += f" {shares[0]:>5s} {shares[1]:>7s}"
        cells += f" {case.moved(BYTES[dtype]) / jax_best[0] / 1e9 / bandwidth:6.0%}  {jax_best[1]}"
        cells += f" / {torch_best[1]}" if torch_best else ""
    print(cells, flush=True)


if __name__ == "__main__":
    main()
