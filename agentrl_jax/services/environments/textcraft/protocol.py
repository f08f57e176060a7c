"""What AgentGym's server and client of this environment say to each other."""

from agentrl_jax.services.action_parsing import single_line_action
from agentrl_jax.services.protocol import RouteSpec

ROUTES = RouteSpec(
    title="TextCraft",
    create_body={"commands": False, "goal": False},
    create_fields=("id", "observation", "done", "reward"),
    reset_fields=("id", "observation", "done", "reward"),
    create_starts_episode=True,
    steps_after_done=True,
)
READ = single_line_action
