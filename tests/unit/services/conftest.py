"""A server that runs for the duration of a test."""

import contextlib

import pytest
from serving import running

from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import Limits


@pytest.fixture
def serve():
    """Function (service, wire, limits, upstream) -> address of a server that runs for the duration of the test."""
    with contextlib.ExitStack() as stack:

        def start(service, routes, limits=None, upstream=False):
            return stack.enter_context(running(create_app(service, routes, limits or Limits(), upstream=upstream)))

        yield start
