"""Compiled text environments: gymnax environments with text observations and named actions."""

from envs_jax.environment import NO_PIECE, EnvParams, EnvState, TextEnvironment
from envs_jax.registry import Registry, baselines, make, register, registered, spec

__all__ = [
    "NO_PIECE",
    "EnvParams",
    "EnvState",
    "Registry",
    "TextEnvironment",
    "baselines",
    "make",
    "register",
    "registered",
    "spec",
]
