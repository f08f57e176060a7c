"""What AgentGym's server and client of this environment say to each other."""

from agentrl_jax.services.action_parsing import last_action
from agentrl_jax.services.protocol import SCORED, RouteSpec

ROUTES = RouteSpec(
    title="ScienceWorld",
    create_fields=("id",),
    reset_fields=("task_name", "var_num", "task_description", *SCORED, "deleted"),
    step_fields=SCORED,
    step_variants={"step_visual": (*SCORED, "info", "object_tree", "inventory", "moves")},
    shown_fields=("task_description",),
    cumulative_score=True,
)
READ = last_action
