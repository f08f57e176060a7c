"""Slow checks of what the quick tests of the same name check."""

import dataclasses
import random

import pytest

from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.services.environments.textcraft.env import GOALS, SERVICE, TextCraft
from agentrl_jax.services.environments.textcraft.recipes import load_book
from agentrl_jax.services.protocol import ROUTES

MOVED = random.Random(7).sample(range(GOALS), GOALS)


class Elsewhere(TextCraft):
    """TextCraft with other numbers, and the commands in another order."""

    def reset(self, item):
        answer = super().reset(MOVED[item % GOALS])
        head, goal = answer.observation.split("\n\n")
        first, *commands = head.split("\n")
        return dataclasses.replace(answer, observation="\n".join([first, *commands[::-1]]) + "\n\n" + goal)


ELSEWHERE = dataclasses.replace(SERVICE, make=lambda upstream: Elsewhere())


@pytest.mark.parametrize("policy", ["oracle", "random"])
def test_scripted_players_play_what_is_shown(serve, policy):
    url = serve(ELSEWHERE, ROUTES["textcraft"])
    found = evaluate_scripted("textcraft", policy, items="0-19", turns=40, url=url)
    depths = [load_book().depth[load_book().goals[MOVED[item]]] for item in range(20)]
    assert {kind: row["success"]["n"] for kind, row in found["categories"].items()} == {
        f"depth {depth}": depths.count(depth) for depth in set(depths)
    }
    if policy == "oracle":
        assert found["success"]["mean"] == 1
