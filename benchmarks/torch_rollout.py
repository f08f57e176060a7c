"""This project's multi-turn rollout against agent loops in PyTorch; prints seconds, tokens and ratios of one run.

    python benchmarks/torch_rollout.py --torch-python VENV/bin/python
    python benchmarks/torch_rollout.py --torch-python VENV/bin/python --models smollm2 --environments 16
    python benchmarks/torch_rollout.py --torch-python VENV/bin/python --tunix-python VENV/bin/python --models demo
    JAX_NUM_CPU_DEVICES=2 python benchmarks/torch_rollout.py --torch-python VENV/bin/python --models demo --devices 1 2

The same on all sides: SimpleSokoban on the same levels, RAGEN's prompt, the whole conversation as context, 5 turns and
exactly 64 sampled tokens per turn: torch may not end a response earlier, and here no token ends one. The action budget
is so large that no episode ends early. (a) renders the whole chat again every turn and calls `generate`, with the cache
of transformers and with one that is not copied as it grows; (b) keeps its cache over the turns; both step Python
environments. (c) is Tunix's sampler in the loop of (a), with greedy decoding, which is cheaper than sampling.
"""

import argparse
import dataclasses
import functools
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from worker import Worker, seconds

from agentrl_jax.config import Config, decode
from agentrl_jax.models import actor_critic
from agentrl_jax.models.io.hf_config_out import describe
from agentrl_jax.models.io.load import save_pretrained
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.engine_config import cache_length
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.rng import level_key
from agentrl_jax.setup import build, build_inputs, build_model
from agentrl_jax.setup.programs import Programs, total_stats
from envs_jax.sokoban.text import SYMBOLS

TURNS, TOKENS, ACTIONS = 5, 64, 5
MODELS: dict[str, dict[str, Any]] = {
    "smollm2": {"pretrained": "smollm2-135m"},
    "demo": {"layers": 3, "embed_dim": 64, "heads": 2, "kv_heads": 2, "mlp_width": 192, "rope_theta": 100.0},
    "0.5b": {"layers": 24, "embed_dim": 896, "heads": 14, "kv_heads": 2, "mlp_width": 4864, "rope_theta": 1e6},
}
"""0.5b has the layers of Qwen2.5-0.5B and the vocabulary of the shipped tokenizer; weights but smollm2's are random."""
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Chat template of the shipped tokenizer, for transformers."""


class Ours:
    """The compiled rollout of one model, and the data that the other sides need."""

    def __init__(self, name: str, environments: int, precision: str, devices: Sequence[int]):
        self.config = configuration(name, environments, precision)
        pretrained = build_model.load_model(self.config.model)
        tokenizer = build_model.load_tokenizer(self.config.model, pretrained)
        self.batched_env: CompiledEnv = build.build_compiled_env(self.config, tokenizer)
        self.model = build_model.build_model(self.config, tokenizer, pretrained)
        engine = build_inputs.engine_config(self.config, tokenizer, group_size=1, slots=0)
        # A token outside the vocabulary is never sampled, so no response ends early.
        self.engine = dataclasses.replace(engine, end_of_turn=(self.model.decoder.vocab_size,))
        self.params = (
            {"policy": pretrained.params} if pretrained else actor_critic.init_params(jax.random.key(0), self.model)
        )
        self.pretrained, self.tokenizer = pretrained, tokenizer
        self.ids = build_inputs.training_ids(self.config)
        self.settings = build_inputs.rollout_settings(self.config, self.batched_env, environments, 1.0)
        self.programs = {
            count: Programs(make_mesh(count)).rollout("rollout", self.model, self.batched_env, self.engine)
            for count in devices
        }

    def play(self, devices: int, number: int) -> dict[str, Any]:
        """Plays one rollout on so many devices."""
        kept: list[Any] = []
        program = self.programs[devices]

        def run() -> None:
            kept.extend(jax.block_until_ready(program(self.params, jax.random.key(number), self.ids, self.settings)))

        took = seconds(run)
        trajectory, stats = kept
        read = int(jnp.sum(trajectory.prompt_length)) + int(
            jnp.sum(jnp.where(trajectory.turn_mask, trajectory.observation_length, 0))
        )
        return {"seconds": took, "read": read, "sampled": total_stats(stats)["sampled_tokens"]}

    def levels(self, number: int) -> list[str]:
        """Returns the levels of rollout `number`, as text."""
        task = self.batched_env.tasks[0]
        keys = level_key(jax.random.key(number), self.ids)
        drawn = jax.vmap(lambda key: task.env.sample_level(key, task.env_params))(keys)
        boards = np.array(SYMBOLS)[np.asarray(drawn)].tolist()
        return ["\n".join(map("".join, board)) for board in boards]

    def task(self) -> dict[str, Any]:
        """Returns the texts and limits of the task for the Python side, in RAGEN's style."""
        env, prompt = self.batched_env.tasks[0].env, self.config.prompt
        legend = ", ".join(f"{symbol} is {meaning}" for symbol, meaning in env.legend)
        opening = (
            f"{env.instruction}\nSymbols in the state: {legend}.\nAvailable actions: {', '.join(env.actions)}.\n"
            f"You can make at most {prompt.max_actions} actions in all. Put || between actions when you give several."
        )
        return {"opening": opening, "actions": prompt.max_actions, "per_turn": ACTIONS, "words": TOKENS}

    def save(self, folder: str) -> None:
        """Saves the same weights and tokenizer for transformers."""
        if self.pretrained:
            save_pretrained(folder, self.pretrained.params, self.pretrained.config, files=self.pretrained.files)
            return
        tokenizer = self.tokenizer
        described = describe(
            self.model.decoder,
            max_positions=cache_length(self.batched_env, self.engine),
            eos_token_id=tokenizer.end_of_turn_id,
            pad_token_id=tokenizer.pad_id,
        )
        files = dict(build_model.tokenizer_files(self.config.model)) | {
            "tokenizer_config.json": json.dumps(
                {
                    "tokenizer_class": "PreTrainedTokenizerFast",
                    "eos_token": tokenizer.special_name(tokenizer.end_of_turn_id),
                    "pad_token": tokenizer.special_name(tokenizer.pad_id),
                    "chat_template": TEMPLATE,
                }
            ).encode()
        }
        save_pretrained(folder, self.params["policy"], described, files=files)


def configuration(name: str, environments: int, precision: str) -> Config:
    return decode(
        {
            "tasks": [{"env": "SimpleSokoban", "groups": environments}],
            "prompt": {
                "style": "ragen",
                "think": True,
                "max_turns": TURNS,
                "max_actions_per_turn": ACTIONS,
                "max_actions": TURNS * ACTIONS + 1,
                "max_response_tokens": TOKENS,
            },
            "model": {**MODELS[name], "precision": precision},
            "rollout": {"group_size": 1},
            "algo": {"preset": "starpo_grpo"},
        }
    )


def measure(name: str, options: argparse.Namespace) -> None:
    """Plays rollouts with all sides alternately and prints a table."""
    ours = Ours(name, options.environments, options.precision, options.devices)
    loops = {"(a) chat rebuilt": "rebuild", "(a) cache not copied": "rebuild, roomy", "(b) cache kept": "cached"}
    labels = {count: f"here, {count} devices" if count > 1 else "here" for count in options.devices}
    sides: dict[str, Callable[[int], dict[str, Any]]]
    sides = {label: functools.partial(ours.play, count) for count, label in labels.items()}
    with tempfile.TemporaryDirectory() as folder:
        ours.save(f"{folder}/model")
        shared = {"folder": f"{folder}/model", "task": ours.task(), "turns": TURNS, "tokens": TOKENS}
        shared["dtype"] = ours.model.decoder.dtype
        torch = Worker(options.torch_python, "torch_agent.py")
        workers = [torch]

        def of_torch(loop: str, number: int) -> dict[str, Any]:
            return torch.ask("rollout", **shared, levels=ours.levels(number), loop=loop, seed=number)

        sides |= {label: functools.partial(of_torch, loop) for label, loop in loops.items() if loop in options.loops}
        if options.tunix_python:
            tunix = Worker(options.tunix_python, "tunix_agent.py")
            workers.append(tunix)

            def of_tunix(number: int) -> dict[str, Any]:
                asked = {key: value for key, value in shared.items() if key != "dtype"}
                return tunix.ask("rollout", **asked, levels=ours.levels(number), batch=options.tunix_batch)

            sides["(c) Tunix's sampler"] = of_tunix
        print(f"\n{name}, {options.environments} environments, load {os.getloadavg()[0]:.1f}", flush=True)
        for play in sides.values():
            play(0)  # loads weights and kernels, or compiles; at the full shape, so that no side does it later
        times: dict[str, list[float]] = {side: [] for side in sides}
        last: dict[str, dict[str, Any]] = {}
        for number in range(options.repeats):
            for side, play in sides.items():
                last[side] = play(1 + number)
                times[side].append(last[side]["seconds"])
                print(f"  {side}: {times[side][-1]:.1f} s", flush=True)
        for worker in workers:
            worker.close()
    first = labels[options.devices[0]]
    print(f"{'':22s} {'seconds':>8s} {'read':>8s} {'sampled':>8s} {'sampled/s':>9s}  {first} is faster by")
    for side, took in times.items():
        least, counts = min(took), last[side]
        ratio = least / min(times[first])
        speed = counts["sampled"] / least
        print(f"{side:22s} {least:8.1f} {counts['read']:8d} {counts['sampled']:8d} {speed:9.1f}  {ratio:.2f}")
    print(f"load {os.getloadavg()[0]:.1f} at the end", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", required=True, help="interpreter that has torch and transformers")
    parser.add_argument("--tunix-python", help="interpreter that has google-tunix")
    parser.add_argument("--tunix-batch", type=int, default=64, help="episodes that Tunix's sampler gets at once")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--loops", nargs="+", default=["rebuild", "rebuild, roomy", "cached"])
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument(
        "--devices", type=int, nargs="+", default=[1], help="of this project's sides, among those that JAX finds"
    )
    parser.add_argument("--repeats", type=int, default=2, help="counted; one before them is not")
    parser.add_argument(
        "--precision", choices=["float32", "mixed"], default="float32", help="mixed: bfloat16 on both sides"
    )
    options = parser.parse_args()
    if options.tunix_python and options.precision != "float32":
        parser.error(f"--tunix-python computes in float32, but --precision is {options.precision}")
    device = jax.devices()[0]
    reduced = device.platform == "gpu" and options.precision == "float32"
    products = ", products in TF32 on both sides" if reduced else ""
    print(f"jax {jax.__version__}, {device.device_kind}, {options.precision}{products}")
    for name in options.models:
        measure(name, options)


if __name__ == "__main__":
    main()
