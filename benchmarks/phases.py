"""Prefill, decode, score and update of a configuration on one device: tokens/s, turns/s and share of the roofline.

    python benchmarks/phases.py experiments/ragen_sokoban.yaml --rows 16 --microbatch 4
    python benchmarks/phases.py FILE.yaml --shape qwen2.5-0.5b --model.precision mixed
    python benchmarks/phases.py FILE.yaml --torch-python VENV/bin/python --tunix-python VENV/bin/python

Runs on the device that JAX finds first, with random parameters. The phases are those of `agentrl_jax.studies.phases`,
at a cache that is filled by playing half of the turns. The roofline is the larger of operations / peak operations and
bytes / peak bandwidth, for a full cache, as `agentrl_jax.studies.costs` counts them. Peaks are in
`agentrl_jax.parallel.peaks`; on a device without an entry, like a CPU, those of a large matrix product and a large copy
in the same run. Bytes count as if no cache of the processor held them, so the share of a small model can exceed 1.

torch, eagerly, computes the same shapes with the same weights; its prefill has no tokens before it, its scores are of
all tokens, and its update is the gradient of the mean token loss. Tunix, for Llama shapes, has its own
sampler: the time of one token more. Further words change keys of the configuration.
"""

import argparse
import functools
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from worker import Worker, seconds

from agentrl_jax.config import Config, load_config
from agentrl_jax.models import actor_critic, cached_decoder
from agentrl_jax.models.io.hf_config_out import describe
from agentrl_jax.models.io.load import save_pretrained
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.peaks import PEAKS, Peaks, chip_name
from agentrl_jax.parallel.topology import TopologyError
from agentrl_jax.setup import build_inputs, build_model
from agentrl_jax.studies.abstract_run import AbstractRun
from agentrl_jax.studies.costs import Cost, CostModel
from agentrl_jax.studies.phases import DECODE, PREFILL, SCORE, UPDATE, PhaseBuilder
from agentrl_jax.studies.sweep import score_passes

MEASURED = (PREFILL, DECODE, SCORE, UPDATE)
STEPS = 16
"""Decode steps of one repetition, in one program, so that its start does not count."""
MATRIX, COPIED = 2048, 2**26


class Ours:
    """The phases of one configuration with arrays; `times` are functions from nothing to seconds of one call."""

    def __init__(self, config: Config, shape: str | None, rows: int, microbatch: int):
        device = jax.devices()[0]
        config = config.replace(devices=1, mesh=config.mesh.replace(fsdp=1, sequence=1, tensor=1, rollout="rows"))
        self.run = AbstractRun(config, make_mesh([device]), shape)
        microbatches = config.algo.minibatches * config.algo.grad_accum_steps
        self.rows = rows or config.rollout.slots or self.run.episodes
        self.microbatch = microbatch or self.run.trained // microbatches
        self.builder = PhaseBuilder(self.run, [device])
        self.phases = {
            name: self.builder.phase(name, self.rows if name in (PREFILL, DECODE) else self.microbatch)
            for name in MEASURED
        }
        self.costs = CostModel(self.run, [device], report=lambda line: None)
        self.state = jax.jit(self._init)(jax.random.key(0))
        self.policy = actor_critic.policy_decoder(self.state.merged_params(), self.run.model)

    def _init(self, key: jax.Array) -> Any:
        """Random numbers for a state, as large as those of initial parameters."""
        return jax.tree.map(
            lambda x: (0.02 * jax.random.normal(key, x.shape)).astype(x.dtype), self.run.state.replace(opt_state=None)
        )

    def times(self) -> dict[str, Callable[[], float]]:
        """Seconds of one call of each phase."""
        return {PREFILL: self._rollout(PREFILL), DECODE: self._rollout(DECODE), **self._learner()}

    def cost(self, name: str) -> Cost:
        """What a call of a phase costs."""
        return self.costs.cost(name, self.rows if name in (PREFILL, DECODE) else self.microbatch)

    def turns(self, name: str) -> float:
        """Turns that a call of a phase is for."""
        engine = self.run.engine
        if name == DECODE:
            return self.rows / engine.max_response_tokens
        of_row = engine.bounds.longest
        return self.rows if name == PREFILL else self.microbatch * of_row

    def calls(self) -> dict[str, float]:
        """Calls of an iteration with these rows, if every turn is played with the longest response."""
        config, engine = self.run.config, self.run.engine
        # What a filter leaves out is neither scored nor learned from.
        waves, rows = self.run.episodes / self.rows, self.run.trained / self.microbatch
        return {
            PREFILL: waves * engine.max_turns,
            DECODE: waves * engine.max_turns * engine.max_response_tokens,
            SCORE: rows * score_passes(self.run),
            UPDATE: rows * config.algo.epochs,
        }

    def _rollout(self, name: str) -> Callable[[], float]:
        engine_of, _ = self.builder.engine(self.rows)
        key, model, turns = jax.random.key(1), self.builder.model.decoder, self.run.engine.max_turns
        ids = build_inputs.evaluation_ids(np.arange(self.rows), task=0)
        settings = build_inputs.rollout_settings(self.run.config, self.run.batched_env, self.rows, 1.0)
        prepared = jax.jit(cached_decoder.prepare_for_decode, static_argnums=1)(self.policy, model)

        @jax.jit
        def half_played(policy, ids, settings):
            engine = engine_of(policy, key, ids, settings)

            def turn(_, state):
                state = jax.lax.while_loop(engine.may_decode, engine.decode, state)
                state, pending = engine.step_environments(state)
                return engine.prefill(state, pending)

            state = jax.lax.fori_loop(0, turns // 2, turn, engine.start())
            # Episodes that are over go on, so that every row counts.
            return engine.prefixes, state.replace(
                active=jnp.ones_like(state.active), waiting=jnp.zeros_like(state.waiting)
            )

        program, steps = self.phases[name].program, STEPS if name == DECODE else 1

        # The state is donated, as the loop of a rollout takes over its memory: otherwise the cache would be copied.
        @functools.partial(jax.jit, donate_argnums=4)
        def several(prepared, prefixes, ids, settings, state):
            return jax.lax.fori_loop(0, steps, lambda _, s: program(prepared, prefixes, key, ids, settings, s), state)

        prefixes, state = jax.block_until_ready(half_played(self.policy, ids, settings))

        def time() -> float:
            donated = jax.block_until_ready(jax.tree.map(jnp.copy, state))
            return seconds(lambda: jax.block_until_ready(several(prepared, prefixes, ids, settings, donated))) / steps

        return time

    def _learner(self) -> dict[str, Callable[[], float]]:
        shapes, vocab = self.phases[UPDATE].arguments[1], self.run.model.decoder.vocab_size
        batch = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        length, scored = batch.tokens.shape[1], batch.mask.shape[1]
        batch = batch.replace(
            tokens=jax.random.randint(jax.random.key(2), batch.tokens.shape, 0, vocab),
            position=jnp.broadcast_to(1 + jnp.arange(scored) % (length - 1), batch.position.shape),
            mask=jnp.ones_like(batch.mask),
            advantage=jnp.ones_like(batch.advantage),
            temperature=jnp.ones_like(batch.temperature),
        )
        recorded = (batch.tokens, batch.position, batch.temperature, batch.mask)
        settings = build_inputs.update_settings(self.run.config, 1.0)
        arguments = {SCORE: (self.state.merged_params(), *recorded), UPDATE: (self.state, batch, settings)}
        programs = {name: jax.jit(self.phases[name].program) for name in arguments}

        def time(name: str) -> float:
            return seconds(lambda: jax.block_until_ready(programs[name](*arguments[name])))

        return {name: functools.partial(time, name) for name in arguments}

    def save(self, folder: str) -> None:
        """Saves the weights for transformers."""
        tokenizer = build_model.load_tokenizer(self.run.config.model)
        shape = self.run.model.decoder
        described = describe(
            shape,
            max_positions=self.run.batch.tokens.shape[1],
            eos_token_id=tokenizer.end_of_turn_id,
            pad_token_id=tokenizer.pad_id,
        )
        files = dict(build_model.tokenizer_files(self.run.config.model))
        special = {"eos_token": tokenizer.end_of_turn_id, "pad_token": tokenizer.pad_id}
        names = {name: tokenizer.special_name(number) for name, number in special.items()}
        files["tokenizer_config.json"] = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}).encode()
        save_pretrained(
            folder, actor_critic.plain_decoder(self.state.merged_params(), self.run.model), described, files=files
        )

    def of_torch(self, worker: Worker) -> dict[str, Callable[[], float]]:
        """Seconds of the same phases in torch."""
        dtype = self.run.model.decoder.dtype
        observed, length = self.run.batched_env.observation_tokens, self.run.batch.tokens.shape[1]
        options, half = {"dtype": dtype, "mode": "eager"}, max(1, length // 2)
        learner = {"rows": self.microbatch, "length": length}

        def decode() -> float:
            cache = {"length": half, "cache": half + STEPS, "steps": STEPS}
            return worker.ask("decode", **options, batch=self.rows, **cache) / STEPS

        return {
            PREFILL: lambda: worker.ask("prefill", **options, batch=self.rows, length=observed),
            DECODE: decode,
            SCORE: lambda: worker.ask("score", **options, **learner),
            UPDATE: lambda: worker.ask("train", **options, **learner, part=self.microbatch),
        }


def peaks_of(device: jax.Device, dtype: str) -> tuple[Peaks, str]:
    """The peak rates of a device and where they are from; measured if it has no entry."""
    try:
        name = chip_name(device)
        return PEAKS[name], f"peaks of {name}"
    except TopologyError:
        pass
    a = jnp.ones((MATRIX, MATRIX), dtype)
    product = jax.jit(functools.partial(jnp.matmul, preferred_element_type=jnp.float32))
    x = jnp.ones(COPIED, jnp.float32)
    copy = jax.jit(lambda x: x + 1)

    def least(function: Callable[..., Any], *arrays: jax.Array) -> float:
        return min(seconds(lambda: jax.block_until_ready(function(*arrays))) for _ in range(5))

    peaks = Peaks(flops=2 * MATRIX**3 / least(product, a, a), bandwidth=2 * x.nbytes / least(copy, x), link=1.0)
    return peaks, f"peaks measured: {peaks.flops / 1e9:.0f} GFLOP/s, {peaks.bandwidth / 1e9:.1f} GB/s"


def least(times: Sequence[float | Sequence[float]]) -> float:
    """The least of the repetitions' times; if each is a pair, the least second one minus the least first one.

    The least difference would be too small, since both are noisy. NaN if the noise is larger than the difference.
    """
    each = np.min(times, axis=0)
    if each.ndim == 0:
        return float(each)
    return float(each[1] - each[0]) if each[1] > each[0] else math.nan


def measure(
    ours: Ours, sides: dict[str, dict[str, Callable[[], float | Sequence[float]]]], peaks: Peaks, repeats: int
) -> None:
    """Times the phases of all sides alternately, and prints a line for each."""
    print(
        f"{'':9s}{'side':7s}{'ms':>10s}{'tokens/s':>12s}{'turns/s':>10s}{'roofline':>10s}  {'limited by':13s}"
        "here is faster by"
    )
    best: dict[str, float] = {}
    for name in MEASURED:
        runs = {side: of_side[name] for side, of_side in sides.items() if name in of_side}
        times: dict[str, list[float | Sequence[float]]] = {side: [] for side in runs}
        for _ in range(repeats + 1):
            for side, run in runs.items():
                times[side].append(run())
        took = {side: least(found[1:]) for side, found in times.items()}  # the first one compiles
        best[name], cost = took["here"], ours.cost(name)
        compute, memory = cost.flops / peaks.flops, cost.accessed / peaks.bandwidth
        for side, best_time in took.items():
            line = f"{name:9s}{side:7s}{best_time * 1e3:10.2f}{ours.phases[name].tokens / best_time:12.0f}"
            line += f"{ours.turns(name) / best_time:10.1f}"
            if side == "here":
                line += f"{max(compute, memory) / best_time:10.2f}  {'compute' if compute > memory else 'memory'}"
            else:
                line += f"{'':10s}  {'':13s}{best_time / took['here']:.2f}"
            print(line, flush=True)
    calls = ours.calls()
    whole = sum(calls[name] * best[name] for name in MEASURED)
    turns = ours.run.episodes * ours.run.engine.max_turns
    print(
        f"these phases of an iteration: {whole:.2f} s, {turns / whole:.1f} turns/s, without environments and optimizer"
    )


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="YAML file with the configuration")
    parser.add_argument("--shape", help="published model to use instead of the configuration's, with random parameters")
    parser.add_argument("--rows", type=int, default=0, help="slots; by default those of the configuration")
    parser.add_argument("--microbatch", type=int, default=0, help="rows of a microbatch; by default as configured")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--torch-python", help="interpreter that has torch and transformers")
    parser.add_argument("--tunix-python", help="interpreter that has google-tunix")
    options, overrides = parser.parse_known_args(words)
    config = load_config(options.file, [*overrides, "--devices", "1"])
    if options.tunix_python and config.model.precision != "float32":
        parser.error(f"--tunix-python computes in float32, but model.precision is {config.model.precision}")
    ours, device = Ours(config, options.shape, options.rows, options.microbatch), jax.devices()[0]
    shape = ours.run.model.decoder
    peaks, where = peaks_of(device, shape.dtype)
    print(f"jax {jax.__version__}, {device.device_kind}, {shape.dtype}; {where}")
    print(
        f"{ours.rows} rows of {ours.run.engine.max_turns} turns, microbatches of {ours.microbatch} rows of "
        f"{ours.run.batch.tokens.shape[1]} tokens"
    )
    sides, workers = {"here": ours.times()}, []
    with tempfile.TemporaryDirectory() as folder:
        if options.torch_python or options.tunix_python:
            ours.save(folder)
        if options.torch_python:
            workers.append(Worker(options.torch_python, "torch_side.py"))
            versions = workers[-1].ask("start", folder=folder)
            precision = f"products of float32 in precision {versions['float32']}"
            print(f"torch {versions['torch']}, {versions['threads']} threads, {versions['device']}, {precision}")
            sides["torch"] = ours.of_torch(workers[-1])
        if options.tunix_python:
            workers.append(Worker(options.tunix_python, "tunix_agent.py"))
            half_filled = {"batch": ours.rows, "length": ours.run.batch.tokens.shape[1], "steps": STEPS}
            sides["tunix"] = {DECODE: lambda: workers[-1].ask("decode", folder=folder, **half_filled)}
        measure(ours, sides, peaks, options.repeats)
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
