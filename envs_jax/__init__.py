"""Compiled text environments: gymnax environments with text observations and named actions."""

from envs_jax.environment import NO_PIECE, EnvParams, EnvState, TextEnvironment
from envs_jax.registry import Registry, baselines, make, register, registered, spec
from envs_jax.token_environment import Command, TokenEnvironment

__all__ = [
    "NO_PIECE",
    "Command",
    "EnvParams",
    "EnvState",
    "Registry",
    "TextEnvironment",
    "TokenEnvironment",
    "baselines",
    "make",
    "register",
    "registered",
    "spec",
]
