"""Causal attention of whole rows: one function, and the implementations behind it.

Shapes: as in `attention`; the queries are those of the last `C` of `S` positions.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.extend
from jaxtyping import Array, Int

from agentrl_jax.errors import BadValue
from agentrl_jax.models import block_attention
from agentrl_jax.models.attention import Keys, Query
from agentrl_jax.models.attention_kernels import attend_cudnn, attend_splash
from agentrl_jax.models.block_attention import attend_in_blocks
from agentrl_jax.models.shape import Attention


def attention(
    query: Query,
    key: Keys,
    value: Keys,
    *,
    window: int = 0,
    segment_ids: Int[Array, "B S"] | None = None,
    implementation: Attention = "auto",
) -> Query:
    """Causal grouped-query attention of the last C of S positions; the softmax is computed in f32.

    A query sees its own position and those before it: with a `window` the latest `window` positions only, its own
    included; with `segment_ids`, for rows packed with several sequences, only positions of the same segment. Segment 0
    is padding, whose results are finite but otherwise arbitrary. The backward pass recomputes the scores.

    Implementations: `blocks` in plain JAX, for every platform; `cudnn`, a kernel for NVIDIA GPUs; `splash`, a kernel
    for TPUs. `auto` leaves the choice to the platform that the program is compiled for; blocks are used where a kernel
    does not serve, see `refusal`, and for rows of a single block.

    Raises:
        ValueError: the implementation does not serve these arrays.
    """
    of: dict[str, Callable[..., Query]] = {
        "blocks": partial(attend_in_blocks, window=window, segment_ids=segment_ids),
        "cudnn": partial(attend_cudnn, window=window),
        "splash": partial(attend_splash, window=window, segment_ids=segment_ids),
    }

    def reason(name: Attention, platform: str = "") -> str:
        packed = segment_ids is not None
        return refusal(name, dtype=query.dtype.name, head_dim=query.shape[-1], packed=packed, platform=platform)

    if implementation != "auto":
        if reason(implementation):
            raise BadValue(reason(implementation), key="attention", value=implementation)
        return of[implementation](query, key, value)
    kernels: dict[str, Callable[..., Query]] = {}
    if query.shape[1] > block_attention.BLOCK and not reason("splash"):
        kernels["tpu"] = of["splash"]
    # cuDNN can be asked for only where it is installed, so a program for a GPU is compiled on a machine that has one.
    if query.shape[1] > block_attention.BLOCK and not reason("cudnn") and has_cuda():
        kernels["cuda"] = of["cudnn"]
    if not kernels:
        return of["blocks"](query, key, value)
    # Inside a checkpoint, because the backward pass would keep what each of the implementations needs.
    chosen = partial(jax.lax.platform_dependent, default=of["blocks"], **kernels)
    return jax.checkpoint(chosen)(query, key, value)


def has_cuda() -> bool:
    """Whether this process computes on NVIDIA GPUs."""
    return "cuda" in jax.extend.backend.get_backend().platform_version


def refusal(implementation: Attention, *, dtype: str, head_dim: int, packed: bool = False, platform: str = "") -> str:
    """Why an implementation does not serve a model on a platform, in a sentence; empty if it does.

    `packed`: rows have segment ids. An empty `platform` is not compared.
    """
    named, instead = f"model.attention is {implementation}", "use auto or blocks"
    needed = {"cudnn": "gpu", "splash": "tpu"}.get(implementation)
    if needed and platform and platform != needed:
        return f"{named}, which needs a {needed.upper()}, but the platform is {platform}; {instead}"
    if implementation != "cudnn":
        return ""
    if dtype != "bfloat16":
        return (
            f"{named}, which computes in bfloat16, but activations are {dtype}; set model.precision mixed, or {instead}"
        )
    if head_dim % 8 or head_dim > 128:
        return f"{named}, whose heads have a multiple of 8 and at most 128 dimensions, but here {head_dim}; {instead}"
    return f"{named}, which cannot separate the sequences of packed rows; {instead}" if packed else ""
