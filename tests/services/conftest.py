"""A server that lives as long as a test."""

import contextlib

import pytest
from serving import running

from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import Limits


@pytest.fixture
def serve():
    """A function (service, wire, limits, upstream) to the address of a server that lives as long as the test."""
    with contextlib.ExitStack() as stack:

        def start(service, routes, limits=None, upstream=False):
            return stack.enter_context(running(create_app(service, routes, limits or Limits(), upstream=upstream)))

        yield start
