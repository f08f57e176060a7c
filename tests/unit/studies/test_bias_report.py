"""Output and refusals of `agentrl bench estimators`."""

import json

import pytest

from agentrl_jax.errors import UserError
from agentrl_jax.studies.estimator_bias.report import run

OPTIONS = {
    "group_size": (2,),
    "policy": "table",
    "drift": "small",
    "direction": 0,
    "num_groups": 0,
    "only": "drift ignored",
    "seed": 0,
    "figure": None,
}


def test_off_policy_it_says_how_far_the_policies_are_apart(capsys):
    told = []
    run(**OPTIONS, format="json", report=told.append)
    assert "mean |log ratio| 0.076, KL 0.0046 a token, 4% outside 0.8 to 1.28" in told[0]
    assert len(told) == 1 + 2
    first, second = json.loads(capsys.readouterr().out)
    assert first["name"] == "reinforce, drift ignored"
    assert second["correction"] == "none"
    assert second["log_ratio"] == pytest.approx(0.0760, abs=1e-4)
    assert second["bias"] > 0.05


def test_another_direction_is_another_drift(capsys):
    one, other = (
        run(**OPTIONS | {"direction": direction, "only": "rloo, drift"}, format=format, report=lambda line: None)
        for direction, format in ((0, "markdown"), (1, "table"))
    )
    assert "rloo" in capsys.readouterr().out
    assert one[0].drift_size != other[0].drift_size
    assert one[0].bias != other[0].bias


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"only": "gigpo"}, "--only"),
        ({"drift": "none", "only": "truncated"}, "--only"),
        ({"direction": -1}, "--direction"),
        ({"drift": "none", "only": "rloo", "direction": 1}, "--direction"),
        ({"group_size": (4,)}, "--group_size"),
        ({"seed": 1}, "--seed"),
        ({"num_groups": 1001}, "--draws"),
        ({"num_groups": 10}, "--draws"),
        ({"figure": "bias.foo"}, "--figure"),
        ({"figure": "nowhere/bias.png"}, "--figure"),
    ],
)
def test_what_is_of_no_use_is_refused(wrong, key):
    with pytest.raises(UserError) as refused:
        run(**OPTIONS | wrong, format="table", report=lambda line: None)
    assert refused.value.key == key
    given = wrong[key[2:]] if key != "--draws" else wrong["num_groups"]
    assert refused.value.value == (given[0] if isinstance(given, tuple) else given)
