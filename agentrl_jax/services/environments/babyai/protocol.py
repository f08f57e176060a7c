"""What AgentGym's server and client of this environment say to each other."""

from agentrl_jax.services.action_parsing import single_line_action
from agentrl_jax.services.protocol import SCORED, RouteSpec

ROUTES = RouteSpec(
    title="BabyAI",
    create_fields=("id",),
    reset_fields=(*SCORED, "deleted"),
    step_fields=SCORED,
    post_views=("render",),
    screenshot=("POST", "render"),
    cumulative_score=True,
)
READ = single_line_action
