"""The policy and the critic as functions of parameters.

For others: `decoder` (forward pass), `cached_decoder` (the same with a KV cache), `actor_critic` (both as one tree, for
the learner), `lora`, `shape` (sizes of a decoder), `published` (sizes of known models) and `io` (weights in and
out).
"""
