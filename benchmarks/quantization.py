"""What 8-bit rollouts change in the log-probabilities of a text, token by token as a rollout decodes.

    python benchmarks/quantization.py --pretrained smollm2-135m --text docs/concepts/*.md

Each token is scored after those before it, with the parameters and the cache of `rollout.quantization`. The text begins
without any token before it, so its first token is not scored.
"""

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.config import decode
from agentrl_jax.models import cached_decoder, decoder
from agentrl_jax.models.kv_cache import init_cache
from agentrl_jax.models.quantized import INTEGERS
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.setup import build_model


@functools.partial(jax.jit, static_argnums=1)
def scores(params: Any, shape: DecoderConfig, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The log-probability of each token but the first, and the most likely token in its place, both [N - 1]."""
    prepared = cached_decoder.prepare_for_decode(params, shape)

    def step(cache: Any, numbered: tuple[jax.Array, jax.Array]) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        at, token = (x[None] for x in numbered)
        hidden, cache = cached_decoder.decode_with_cache(
            prepared, shape, cache, token, at, at, jnp.ones(1, bool), lockstep=True
        )
        logprobs = jax.nn.log_softmax(decoder.logits(prepared, hidden)[0].astype(jnp.float32))
        return cache, (logprobs[tokens[numbered[0] + 1]], jnp.argmax(logprobs))

    count = len(tokens) - 1
    cache = init_cache(shape, 1, 1, response=count)
    return jax.lax.scan(step, cache, (jnp.arange(count), tokens[:-1]))[1]


def measure(pretrained: str, texts: Sequence[str], count: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """`scores` of the first tokens of the texts, for each value of `rollout.quantization`."""
    config = decode({"model": {"pretrained": pretrained}})
    loaded = build_model.load_model(config.model)
    assert loaded is not None
    tokenizer = build_model.load_tokenizer(config.model, loaded)
    model = build_model.build_model(config, tokenizer, loaded)
    tokens = tokenizer.encode("\n".join(texts))[:count]
    if len(tokens) < count:
        raise SystemExit(f"the texts have {len(tokens)} tokens, but --tokens is {count}; give more texts")
    found = {}
    for kind in INTEGERS:
        changed = config.replace(rollout=config.rollout.replace(quantization=kind))
        shape = build_model.rollout_model(changed, model).decoder
        logprobs, likeliest = scores(loaded.params, shape, jnp.asarray(tokens, jnp.int32))
        found[kind] = np.asarray(logprobs), np.asarray(likeliest)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrained", default="smollm2-135m", help="as model.pretrained")
    parser.add_argument("--text", nargs="+", required=True, metavar="FILE", help="read one after the other")
    parser.add_argument("--tokens", type=int, default=1024)
    options = parser.parse_args()
    texts = [Path(file).read_text(encoding="utf-8") for file in options.text]
    found = measure(options.pretrained, texts, options.tokens)
    reference, likeliest = found["none"]
    print(f"{options.pretrained}, {len(reference)} tokens, {jax.devices()[0].device_kind}")
    print(f"{'rollout.quantization':22s}{'-logprob, nats':>15s}{'mean change':>13s}{'largest':>9s}{'same argmax':>13s}")
    for kind, (logprobs, most_likely) in found.items():
        change = np.abs(logprobs - reference)
        same = np.mean(most_likely == likeliest)
        print(f"{kind:22s}{-logprobs.mean():15.4f}{change.mean():13.4f}{change.max():9.3f}{same:13.1%}")


if __name__ == "__main__":
    main()
