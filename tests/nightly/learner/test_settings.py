"""Rules whose parts are drawn at random: either they are refused, or the update reads every field of them."""

import random

import pytest
from changed_settings import UNIONS, accepted, read_by_the_update, unread


@pytest.mark.parametrize("seed", range(40))
def test_an_update_reads_every_field_of_a_rule(seed):
    draw = random.Random(seed)
    while True:
        rule = {name: draw.choice(members) for name, members in UNIONS.items()}
        if accepted({f"algo.{name}": part.model_dump() for name, part in rule.items()}):
            break
    assert unread(rule, *read_by_the_update(rule, draw.choice(["full", "single_turn"]))) == []
