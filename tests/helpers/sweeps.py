"""A small configuration to sweep, and costs in place of a compiler's."""

from agentrl_jax.config import decode
from agentrl_jax.parallel.peaks import Peaks
from agentrl_jax.studies.costs import Cost
from agentrl_jax.studies.phases import PHASES

LAYERS, EMBED, MLP, HEADS, KV_HEADS = 4, 64, 128, 4, 2

CONFIG = decode(
    {
        "tasks": [{"env": "Bandit", "groups": 8}],
        "prompt": {"max_turns": 2, "max_response_tokens": 8},
        "rollout": {"group_size": 2},
        "model": {"layers": LAYERS, "embed_dim": EMBED, "heads": HEADS, "kv_heads": KV_HEADS, "mlp_width": MLP},
        "algo": {
            "preset": "grpo",
            "filter": {"kind": "none"},
            "kl": {"kind": "none"},
            "minibatches": 1,
            "grad_accum_steps": 2,
        },
        # As few held-out episodes at a time as training episodes, so that these decide what fits.
        "evaluation": {"episodes": 16},
    }
)

MACHINE = Peaks(flops=1e11, bandwidth=1e10, link=1e9)


class GivenCosts:
    """Costs that grow with rows and are shared by devices, in place of a compiler's."""

    compiled = 0

    def cost(self, name, rows, *, tensor=1, remat=None):
        of_phase, share = 1 + PHASES.index(name), (1 + rows) / tensor
        kept = {"none": 4, "dots": 2, "full": 1, None: 4}[remat]
        sent = 1e3 * rows * (tensor - 1)
        return Cost(1e9 * of_phase * share, 1e8 * of_phase * share, sent, 1e5 * share, 1e5 * kept * share)
