"""Slow checks of what the quick tests of the same name check."""

import pytest
from babyai_play import play

from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.protocol import ROUTES

SERVICE = get_service("babyai")


def test_the_oracle_opens_what_only_the_default_makes_possible():
    """No listed action of AgentGym's opens the box with the key (level 26); two doors in a strict order (level 16)."""
    for item in (25, 15):
        assert SERVICE.solved(play(item, SERVICE.oracle(item).actions, upstream=False)[-1])
    assert not SERVICE.upstream_oracle(25).actions


def test_scripted_policies_on_a_server(serve):
    url = serve(SERVICE, ROUTES["babyai"], upstream=True)
    found = {
        policy: evaluate_scripted("babyai", policy, items="1804-1808", plays=2, url=url)
        for policy in ("oracle", "random", "null")
    }
    same = evaluate_scripted("babyai", "constant", action="move forward", items="1804-1808", url=url)
    assert (
        same["success"] == evaluate_scripted("babyai", "constant", action="move forward", items="1804-1808")["success"]
    )
    assert [found[policy]["success"]["mean"] for policy in ("oracle", "null")] == [1, 0]
    assert found["oracle"]["strict_success"]["mean"] > 0
    assert found["random"]["plays"] == 2
    assert "compat" not in found["random"]
    assert "panel_digest" not in found["random"]
    with pytest.raises(UserError, match="2147483648"):
        evaluate_scripted("babyai", "oracle", items="2147483648")
