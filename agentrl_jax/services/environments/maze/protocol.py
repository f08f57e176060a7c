"""What AgentGym's server and client of this environment say to each other."""

import dataclasses

from agentrl_jax.services.action_parsing import first_action
from agentrl_jax.services.protocol import LMRL

ROUTES = dataclasses.replace(LMRL, prefix="/maze")
READ = first_action
