"""The environments that can be served, by name."""

import difflib

from agentrl_jax.environments.kinds import Kind, kind_of, listed_names
from agentrl_jax.errors import BadValue
from agentrl_jax.service_names import REMOTE_ONLY, TEXT_SERVICES
from agentrl_jax.services.environment import Service

NAMES = (*TEXT_SERVICES, *REMOTE_ONLY)
"""Names of services that are not environments of `envs_jax`."""


def success_rule(name: str) -> str:
    """When an episode of an environment or a service counts as solved, in words; errors are those of `get_service`."""
    rule = _known(name).success_rule
    return get_service(name).success_rule if rule is None else rule(name)


def get_service(name: str) -> Service:
    """The service of this name, which any environment is too; a class that the name is the path of is imported.

    `ValueError` if there is none, or a package it needs is missing.
    """
    found: Service = _known(name).service(name)
    return found


def _known(name: str) -> Kind:
    kind = kind_of(name)
    if kind.knows(name):
        return kind
    local = listed_names()
    lowered = {each.lower(): each for each in (*local, *REMOTE_ONLY)}
    near = [lowered[each] for each in difflib.get_close_matches(name.lower(), lowered)]
    known = f"known are {', '.join(local)}; and, at the address of AgentGym's server only, {', '.join(REMOTE_ONLY)}"
    hint = f"did you mean {' or '.join(near)}?" if near else known
    raise BadValue(f"no environment is called {name!r}; {hint}", key="environment", value=name)
