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
    apart = "mean |log ratio| 0.076, KL 0.0046 a token, 4% outside 0.8 to 1.28"
    assert told[0] == f"groups are sampled by another policy: {apart}"
    assert told[1:] == ["1/2 2 members, reinforce, drift ignored", "2/2 2 members, rloo, drift ignored"]
    first, second = json.loads(capsys.readouterr().out)
    assert first["name"] == "reinforce, drift ignored"
    assert second["correction"] == "none"
    assert second["log_ratio"] == pytest.approx(0.0760, abs=1e-4)
    assert second["bias"] > 0.05


def test_a_narrow_table_shows_whole_names(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    run(**OPTIONS, format="table", report=lambda line: None)
    out = capsys.readouterr().out
    assert "…" not in out
    rows = [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")]
    assert "".join("".join(rows).split()) == "reinforce,driftignoredrloo,driftignored"


def test_another_direction_is_another_drift():
    one, other = (
        run(**OPTIONS | {"direction": direction, "only": "rloo, drift"}, format="markdown", report=lambda line: None)
        for direction in (0, 1)
    )
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
