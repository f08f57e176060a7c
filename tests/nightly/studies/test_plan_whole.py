"""Slow checks of what the quick tests of the same name check."""

import json

import pytest

from agentrl_jax.config import decode
from agentrl_jax.parallel.topology import described_devices
from agentrl_jax.studies.plan import TOKEN_LOOP, make_plan
from agentrl_jax.studies.plan_report import as_json, as_table


def test_a_plan_on_the_devices_that_are_here():
    config = decode(
        {
            "tasks": [{"env": "Bandit", "groups": 4}],
            "prompt": {"max_turns": 1, "max_response_tokens": 8},
            "rollout": {"group_size": 2},
            "model": {"layers": 2, "embed_dim": 16, "heads": 4, "kv_heads": 2, "mlp_width": 32},
            "mesh": {"fsdp": 2, "tensor": 2},
        }
    )
    plan = make_plan(config, described_devices("local")[0][:4])
    assert plan.mesh == {"data": 1, "fsdp": 2, "sequence": 1, "tensor": 2}
    assert plan.rows == 4
    # Two f32 moments per parameter; norms and heads are small.
    assert plan.optimizer == pytest.approx(2 * plan.update_parameters, rel=0.01)
    assert plan.update_parameters < plan.rollout_parameters
    # 2 layers, keys and values of one of two heads of four numbers of four bytes. The prefix is shared; each of 4 rows
    # has a response and one position more, each of 2 groups a first observation, and its length.
    positions, rest = divmod(plan.cache - 2 * 4, 2 * 2 * 4 * 4)
    assert rest == 0
    read, rest = divmod(positions - 4 * (8 + 1), 2)
    assert rest == 0
    assert 0.5 * plan.context < read + 8 < plan.context
    assert plan.peaks["rollout"] > plan.update_parameters + plan.optimizer + plan.cache
    # Held-out episodes are more than those of a rollout, and are played without groups that share an observation.
    assert list(plan.programs) == ["rollout", "update", "evaluation"]
    assert plan.programs["evaluation"].temporaries > 2 * plan.programs["rollout"].temporaries
    assert plan.playing_peak == plan.peaks["evaluation"]
    between = (plan.peaks["rollout"] + plan.peaks["evaluation"]) // 2
    assert "DOES NOT FIT" in str(as_table(plan, between).renderables[0].caption)
    data = json.loads(json.dumps(as_json(plan, None), allow_nan=False))
    assert data["update"]["operations"]
    assert data["evaluation_peak"] == plan.peaks["evaluation"]
    operations = plan.programs["rollout"].operations
    gathered = [one for one in operations if one.kind == "all-gather" and one.depth == TOKEN_LOOP]
    assert max((one.size for one in gathered), default=0) < plan.rollout_parameters / 4
