"""Environments written in Python: what they are (`protocol`), and where they run.

`pool` opens them by their import path, in threads of this process (`threads`) or in processes of their own
(`processes`, `worker_main`); `watchdog` ends what hangs. Nothing here imports JAX, and a user's file needs this only:

    from agentrl_jax.environments import HostStep
"""

from agentrl_jax.environments.protocol import HostEnvironment as HostEnvironment
from agentrl_jax.environments.protocol import HostStep as HostStep
