"""Devices: `mesh`, `layout` (which axis splits which tensor), `shards` and `fsdp` (inside `jax.shard_map`),
`topology` (devices that need not be there) and `hlo` (what a compiled program does).
"""
