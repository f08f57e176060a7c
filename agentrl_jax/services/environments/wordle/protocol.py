"""What AgentGym's server and client of this environment say to each other."""

import dataclasses

from agentrl_jax.services.action_parsing import first_action
from agentrl_jax.services.protocol import LMRL

ROUTES = dataclasses.replace(LMRL, prefix="/wordle", item_field="seed", reset_fields=("id", "observation"))
READ = first_action
