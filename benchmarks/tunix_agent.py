"""Tunix's sampler: in the chat-rebuilding agent loop for `torch_rollout.py`, and alone for `phases.py`."""

import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from python_sokoban import Episode
from transformers import AutoTokenizer
from tunix.generate.sampler import CacheConfig, Sampler
from tunix.models.llama3 import model as llama
from tunix.models.llama3 import params as weights
from worker import serve

SAMPLERS: dict[str, Any] = {}
GRAIN = 128
"""Prompts are padded to a multiple of this length, so that a turn has the same shape in every repetition."""


def load(folder: str, length: int) -> tuple[Any, Any]:
    """Loads sampler and tokenizer of a model; Tunix's Llama ignores `rope_theta`, which does not affect the cost."""
    if folder in SAMPLERS:
        return SAMPLERS[folder]
    raw = json.loads((Path(folder) / "config.json").read_text())
    shape = llama.ModelConfig(
        num_layers=raw["num_hidden_layers"],
        vocab_size=raw["vocab_size"],
        embed_dim=raw["hidden_size"],
        hidden_dim=raw["intermediate_size"],
        num_heads=raw["num_attention_heads"],
        head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        num_kv_heads=raw["num_key_value_heads"],
        rope_theta=int(raw.get("rope_theta") or 10_000),
        norm_eps=raw["rms_norm_eps"],
        weight_tying=raw["tie_word_embeddings"],
    )
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with mesh:
        model = weights.create_model_from_safe_tensors(folder, shape, mesh, dtype=jnp.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.bos_token = tokenizer.bos_token or tokenizer.eos_token
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    cache = CacheConfig(length, shape.num_layers, shape.num_kv_heads, shape.head_dim)
    SAMPLERS[folder] = Sampler(model, tokenizer, cache), tokenizer
    return SAMPLERS[folder]


def rollout(
    folder: str, levels: list[str], task: dict[str, Any], turns: int, tokens: int, batch: int
) -> dict[str, Any]:
    """Plays one episode per level, `batch` of them in one call of the sampler."""
    sampler, tokenizer = load(folder, 2048)
    episodes = [Episode(level, task) for level in levels]
    began = time.perf_counter()
    read = sampled = 0
    for _ in range(turns):
        for first in range(0, len(episodes), batch):
            playing = episodes[first : first + batch]
            texts = [
                tokenizer.apply_chat_template(episode.messages, add_generation_prompt=True, tokenize=False) + "<think>"
                for episode in playing
            ]
            lengths = [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
            padded = -(-(max(lengths) + 1) // GRAIN) * GRAIN
            out = sampler(texts, tokens, max_prompt_length=padded, eos_tokens=[-1])
            read += sum(lengths)
            sampled += sum(len(row) for row in out.tokens)
            for episode, response in zip(playing, out.text):
                episode.answer(response)
    return {"seconds": time.perf_counter() - began, "read": read, "sampled": sampled}


def decode(folder: str, batch: int, length: int, steps: int) -> list[float]:
    """Seconds of 1 and of 1 + `steps` greedy tokens of `batch` rows, after half of `length` tokens.

    Both are divided by `steps`, so that the difference is the time of one token.
    """
    sampler, _ = load(folder, length + 2 * GRAIN)
    padded = -(-(length // 2) // GRAIN) * GRAIN
    texts, took = ["the " * (length // 4)] * batch, []
    for tokens in (1, 1 + steps):
        began = time.perf_counter()
        sampler(texts, tokens, max_prompt_length=padded, eos_tokens=[-1])
        took.append((time.perf_counter() - began) / steps)
    return took


if __name__ == "__main__":
    serve({"rollout": rollout, "decode": decode})
