"""Encodes pieces on the device as the tokenizer encodes their whole text: `encoder`, with `splitting` into words."""

from agentrl_jax.text.canonical.encoder import CanonicalTable, build_canonical, encode_prefix, encode_row

__all__ = ["CanonicalTable", "build_canonical", "encode_prefix", "encode_row"]
