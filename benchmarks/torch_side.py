"""The side of torch and transformers in `torch_model.py`: one repetition of one measurement per request."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache
from worker import seconds as wall_seconds
from worker import serve

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(DEVICE)
if DEVICE == "cuda":
    torch.set_float32_matmul_precision("high")  # TF32, as JAX's default is on a GPU
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__}
FOLDER: list[str] = []


def seconds(function: Callable[[], Any]) -> float:
    """Returns how many seconds a call takes until the device has done its work."""

    def finished() -> None:
        function()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return wall_seconds(finished)


def start(folder: str) -> dict[str, Any]:
    """Sets the folder of the model; returns versions, the number of threads and the precision of products."""
    FOLDER[:] = [folder]
    return VERSIONS | {
        "threads": torch.get_num_threads(),
        "device": DEVICE,
        "float32": torch.get_float32_matmul_precision(),
    }


def threads(count: int) -> None:
    torch.set_num_threads(count)


@functools.cache
def model(dtype: str):
    return (
        AutoModelForCausalLM.from_pretrained(FOLDER[0], dtype=TYPES[dtype], attn_implementation="sdpa")
        .to(DEVICE)
        .eval()
    )


@functools.cache
def compiled(dtype: str):
    return torch.compile(model(dtype), dynamic=False)


def random_tokens(dtype: str, rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, min(1000, model(dtype).config.vocab_size), (rows, length))


@functools.cache
def operands(size: int, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, size).to(TYPES[dtype]), torch.randn(size, size).to(TYPES[dtype])


def matmul(size: int, dtype: str) -> float:
    a, b = operands(size, dtype)
    return seconds(lambda: a @ b)


@functools.cache
def stream() -> torch.Tensor:
    return torch.ones(2**27)


def read() -> float:
    """Returns the seconds of one pass over 512 MiB."""
    x = stream()
    return seconds(lambda: x.sum())


@torch.inference_mode()
def prefill(dtype: str, mode: str, batch: int, length: int) -> float:
    """Seconds to compute the last token's logits and the cache of `batch` rows of `length` tokens."""
    tokens = random_tokens(dtype, batch, length)
    run = compiled(dtype) if mode == "compiled" else model(dtype)
    cache = DynamicCache(config=model(dtype).config)
    return seconds(lambda: run(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits)


@functools.cache
def static_cache(dtype: str, length: int, batch: int) -> StaticCache:
    """Returns one cache per batch size, because a new cache would cause another compilation."""
    return StaticCache(config=model(dtype).config, max_cache_len=length)


@torch.inference_mode()
def decode(dtype: str, mode: str, batch: int, length: int, cache: int, steps: int) -> float:
    """Seconds of `steps` greedy tokens of `batch` rows, at positions from `length` on; compiled with a static cache."""
    plain = model(dtype)
    kept = static_cache(dtype, cache, batch) if mode == "compiled" else DynamicCache(config=plain.config)
    if mode == "compiled":
        kept.reset()
    tokens = random_tokens(dtype, batch, length)
    state = {"token": plain(tokens, past_key_values=kept, use_cache=True, logits_to_keep=1).logits[:, -1:].argmax(-1)}
    run = compiled(dtype) if mode == "compiled" else plain

    def step(position: int) -> None:
        where = {"position_ids": torch.full((batch, 1), position)}
        state["token"] = run(state["token"], past_key_values=kept, use_cache=True, **where).logits[:, -1:].argmax(-1)

    step(length)
    return seconds(lambda: [step(length + 1 + i) for i in range(steps)])


@torch.inference_mode()
def score(dtype: str, mode: str, rows: int, length: int) -> float:
    """Seconds of the log-probabilities of all tokens of `rows` rows."""
    run = compiled(dtype) if mode == "compiled" else model(dtype)
    tokens = random_tokens(dtype, rows, length)

    def of_tokens() -> torch.Tensor:
        logits = run(tokens, use_cache=False).logits[:, :-1].float()
        return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])

    return seconds(of_tokens)


def train(dtype: str, mode: str, rows: int, length: int, part: int) -> float:
    """Seconds of the gradient of the mean token loss of `rows` rows, accumulated over microbatches of `part` rows."""
    run = compiled(dtype) if mode == "compiled" else model(dtype)
    tokens = random_tokens(dtype, rows, length)

    def step() -> None:
        model(dtype).zero_grad(set_to_none=True)
        for first in range(0, rows, part):
            mine = tokens[first : first + part]
            logits = run(mine, use_cache=False).logits[:, :-1].float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten())
            (loss * part / rows).backward()

    took = seconds(step)
    model(dtype).zero_grad(set_to_none=True)
    return took


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    functions = (start, threads, matmul, read, prefill, decode, score, train)
    serve({function.__name__: function for function in functions})
