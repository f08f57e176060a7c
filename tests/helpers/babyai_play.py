"""Play of the service babyai."""

from agentrl_jax.services.catalog import get_service

SERVICE = get_service("babyai")
LOST_ITEM, LOST_ACTION = 12, "toggle and go through red closed door 1"
"""The action opens the door that the item asks for, which by AgentGym's rules does not count: the agent walks on."""


def play(item, actions, *, upstream):
    instance = SERVICE.make(upstream)
    return [instance.reset(item), *(instance.step(action) for action in actions)]
