"""The environments that can be served, by name."""

import difflib

from agentrl_jax.environments.loading import is_path
from agentrl_jax.errors import BadValue
from agentrl_jax.service_names import TEXT_SERVICES, text_service
from agentrl_jax.services.environment import Service
from agentrl_jax.services.environments.python import PYTHON_RULE, python_service
from agentrl_jax.services.environments.remote_only import INSTRUCTIONS, remote_service

NAMES = (*TEXT_SERVICES, *INSTRUCTIONS)
"""Names of services that are not environments of `envs_jax`."""


def success_rule(name: str) -> str:
    """When an episode of an environment or a service counts as solved, in words; errors are those of `get_service`."""
    if is_path(name):
        return PYTHON_RULE
    if name not in NAMES:
        from envs_jax import registry

        if registry.knows(name):
            return registry.spec(name).success_rule
    return get_service(name).success_rule


def get_service(name: str) -> Service:
    """The service of this name, also of `envs_jax`, or of a Python environment by its import path, which is imported.

    `ValueError` if there is none, or a package it needs is missing.
    """
    if is_path(name):
        return python_service(name)
    if own := text_service(name, "env"):
        found: Service = own.SERVICE
        return found
    if name in INSTRUCTIONS:
        return remote_service(name)
    from agentrl_jax.services.environments.compiled import compiled_service  # needs JAX, the others do not
    from envs_jax import registry

    if registry.knows(name):
        return compiled_service(name)
    local = (*TEXT_SERVICES, *registry.registered())
    near = difflib.get_close_matches(name, (*local, *INSTRUCTIONS), n=1)
    known = f"known are {', '.join(local)}; and, at the address of AgentGym's server only, {', '.join(INSTRUCTIONS)}"
    hint = f"did you mean {near[0]}?" if near else known
    raise BadValue(f"no environment is called {name!r}; {hint}", key="environment", value=name)
