"""TextCraft on a server that numbers its goals differently, as AgentGym's does by the order of files on its disk."""

import dataclasses
import random

import pytest

from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.services.client import ServiceError
from agentrl_jax.services.environments.textcraft.env import GOALS, SERVICE, TextCraft
from agentrl_jax.services.environments.textcraft.recipes import load_book
from agentrl_jax.services.protocol import ROUTES
from agentrl_jax.services.shadow_env import local_item, start_shadow

MOVED = random.Random(7).sample(range(GOALS), GOALS)


class Elsewhere(TextCraft):
    """TextCraft with other numbers, and the commands in another order."""

    def reset(self, item):
        answer = super().reset(MOVED[item % GOALS])
        head, goal = answer.observation.split("\n\n")
        first, *commands = head.split("\n")
        return dataclasses.replace(answer, observation="\n".join([first, *commands[::-1]]) + "\n\n" + goal)


def test_every_goal_is_found_by_its_text():
    for item in (3, GOALS + 3, 5 * GOALS + 40):  # on a server of ours, an item is itself
        assert local_item(SERVICE, item, TextCraft().reset(item).observation) == item
    env, numbers = Elsewhere(), range(0, GOALS, 5)
    assert [local_item(SERVICE, item, env.reset(item).observation) for item in numbers] == [MOVED[i] for i in numbers]
    assert start_shadow(SERVICE, 0, Elsewhere().reset(0).observation).goal() == load_book().goals[MOVED[0]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Crafting commands:\ncraft 1 stick using 1 log\n\nGoal: craft perpetual motion.", "which no item has here"),
        ("Crafting commands:\ncraft 1 a using 1 b\n\nGoal: craft stick.", "do not allow the plan"),
        ("Let's start Wordle!", "no goal"),
    ],
)
def test_what_cannot_be_mapped_is_refused_with_the_reason(serve, text, reason):
    class Odd(TextCraft):
        def reset(self, item):
            return dataclasses.replace(super().reset(item), observation=text)

    with pytest.raises(ServiceError, match=reason):
        local_item(SERVICE, 2, text)
    url = serve(dataclasses.replace(SERVICE, make=lambda upstream: Odd()), ROUTES["textcraft"])
    with pytest.raises(UserError, match=reason):
        evaluate_scripted("textcraft", "oracle", items="2", url=url)


def test_scripted_players_play_what_is_shown(serve):
    url = serve(dataclasses.replace(SERVICE, make=lambda upstream: Elsewhere()), ROUTES["textcraft"])
    book = load_book()
    depths = [book.depth[book.goals[MOVED[item]]] for item in range(4)]
    for policy in ("oracle", "random"):
        found = evaluate_scripted("textcraft", policy, items="0-3", turns=40, url=url)
        sizes = {kind: row["success"]["n"] for kind, row in found["categories"].items()}
        assert sizes == {f"depth {depth}": depths.count(depth) for depth in set(depths)}
        assert policy == "random" or found["success"]["mean"] == 1
