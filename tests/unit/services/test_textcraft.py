import collections
import dataclasses
import random

import pytest

from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.services.client import ServiceError
from agentrl_jax.services.environments.textcraft.env import GOALS, SERVICE, TextCraft, goal_table
from agentrl_jax.services.environments.textcraft.recipes import book_of, display_name, item_id, load_book, make_book
from agentrl_jax.services.environments.textcraft.scripted import Oracle, Random
from agentrl_jax.services.environments.wordle import env as wordle
from agentrl_jax.services.protocol import routes_of
from agentrl_jax.services.shadow_env import NoisyOracle, local_item, start_shadow


@pytest.fixture(scope="module")
def book():
    return load_book()


def at(book, goal):
    env = TextCraft(book)
    env.reset(book.goals.index(item_id(goal)))
    return env


def texts(env, *actions):
    return [env.step(action).observation for action in actions]


def test_the_book_has_what_agentgym_counts(book):
    plain = [recipe for name, known in book.recipes.items() if name not in book.tags for recipe in known]
    assert (len(book.goals), len(book.items), len(book.tags), len(plain)) == (544, 676, 23, 613)
    depths = [book.depth[goal] for goal in book.goals]
    assert depths == sorted(depths)
    assert collections.Counter(depths) == {1: 125, 2: 291, 3: 117, 4: 11}
    assert [row["goal"] for row in goal_table()] == list(book.goals)


def test_every_goal_is_crafted_by_the_oracle(book):
    for item, goal in enumerate(book.goals):
        env = TextCraft(book)
        shown = env.reset(item).observation
        actions = Oracle(book, item).actions
        answers = [env.step(action) for action in actions]
        assert shown.endswith(f"\n\nGoal: craft {display_name(goal)}.")
        assert [answer.done for answer in answers] == [False] * (len(actions) - 1) + [True]
        assert answers[-1].reward == 1.0
        assert SERVICE.solved(answers[-1])
        own, needed = set(env.commands().splitlines()), {str(recipe) for recipe in book.tree(goal)}
        assert (needed <= own, len(own) <= len(needed) + 10) == (True, True)


def test_progress_counts_what_the_oracle_would_still_do(book):
    env = at(book, "chest")  # eight planks of any kind, from two logs: four actions
    planks = "craft 4 oak planks using 1 oak logs"
    told = [env.progress()]
    for action in ("get 5 stone", planks, "get 1 oak logs", planks, "get 1 oak logs", planks, "get 9 oak logs"):
        env.step(action)
        told.append(env.progress())
    assert told == [0, 0, 0, 0, 0.25, 0.5, 0.75, 0.75]
    assert env.step("craft 1 chest using 8 oak planks").done
    assert env.progress() == 1


def test_a_noisy_oracle_goes_on_from_where_chance_has_left_it():
    noise = [True, False, True, True, *[False] * 16]
    strayed = 0
    for item in range(0, 544, 40):
        player, env = NoisyOracle(SERVICE, item, noise, seed=item), SERVICE.make(False)
        answer, best = env.reset(item), Oracle(book_of(item), item).actions
        actions = []
        while not answer.done:
            expected = env.advice()
            actions.append(player.act(answer.observation))
            assert noise[len(actions) - 1] or actions[-1] == expected
            answer = env.step(actions[-1])
        assert len(actions) <= len(best) + 3
        strayed += actions[: len(best)] != best
    assert strayed > 7
    with pytest.raises(ServiceError, match=r"item 0 of textcraft is another task .* no item has here"):
        NoisyOracle(SERVICE, 0, [False], seed=0).act("Goal: craft nothing.")


MISSING = "Could not find enough items to craft minecraft:stick"
STICK = "ItemTagWithCount(item_tag=ItemTag(tag=None, item_id='minecraft:stick'), count=4)"
PLANKS = "ItemTagWithCount(item_tag=ItemTag(tag='minecraft:planks', item_id=None), count=4)"
MESSAGES = {
    "inventory": "Inventory: You are not carrying anything.",
    "craft 4 stick using 2 oak planks": MISSING,
    "get 1 oak planks": "Could not find oak planks",
    "get 1 planks": "Could not find planks",
    "get 1 unobtainium": "Could not find unobtainium",
    "get oak logs": "Could not execute get oak logs",
    "": "Could not execute ",
    "Get 1 oak logs": "Could not execute Get 1 oak logs",
    "get 0 coal": "Got 0 coal",
    "get 2 oak logs": "Got 2 oak logs",
    " inventory": "Could not execute  inventory",
    "craft 4 oak planks using 1 oak logs": "Crafted 4 minecraft:oak_planks",
    "craft 4 planks using 1 oak logs": f"Could not find a valid recipe for {PLANKS}",
    "craft 4 stick using 3 oak planks": f"Could not find a valid recipe for {STICK}",
    "craft 4 stick using two oak planks": "Wrong item format: two oak planks",
    "craft 4 stick using 2 planks": MISSING,  # the inventory only has items, no kinds of them
    "craft 4 stick using 3 oak planks, 3 oak planks": MISSING,  # a thing named twice has to be there twice
    "inventory ": "Inventory: [coal] (0) [oak logs] (1) [oak planks] (4) ",
    "craft 7 stick using 2 oak planks": "Crafted 4 minecraft:stick",
}


def test_messages_also_to_long_numbers_and_names(book):
    env = at(book, "stick")
    answers = {action: env.step(action) for action in MESSAGES}
    assert {action: answer.observation for action, answer in answers.items()} == MESSAGES
    *before, last = answers.values()
    assert not any(answer.done or answer.reward for answer in before)
    assert (last.reward, last.done) == (1.0, True)
    assert texts(env, "inventory") == ["Inventory: [coal] (0) [oak logs] (1) [oak planks] (2) [stick] (4) "]
    env, digits = at(book, "stick"), "9" * 5000
    refusals = {
        f"get {digits} coal": "Could not execute",
        f"craft 1 stick using {digits} coal": "Wrong item format",
        "get 1 " + "x" * 1_000_000: "Could not execute get 1 xxx",
        "get 1 " + "x" * 5000: "Could not find xxx",
        "craft  using \ud800": "Wrong item format: \ud800",
    }
    told = texts(env, *refusals)
    assert all(text.startswith(start) for text, start in zip(told, refusals.values()))
    assert max(map(len, told)) < 600


def test_items_beyond_the_goals_are_the_same_in_other_words_that_belong_together(book):
    for number in (book.goals.index("minecraft:mossy_stone_bricks"), 3, 200, 500):
        env = TextCraft()
        first, again, other = (env.reset(number + 544 * k) for k in (0, 0, 1))
        assert first == again
        assert other.observation.splitlines()[-1] != first.observation.splitlines()[-1]
        plain, worded = (SERVICE.oracle(number + 544 * k).actions for k in (0, 1))
        assert len(plain) == len(worded)
        assert [env.step(action) for action in worded][-1].done
        assert TextCraft(upstream=True).reset(number + 544).observation == first.observation
    plain, other = load_book(), book_of(544)
    assert (len(other.goals), len(other.items)) == (544, 676)
    assert [other.depth[goal] for goal in other.goals] == [plain.depth[goal] for goal in plain.goals]
    assert book_of(543) is plain
    assert book_of(544 * 2).goals != other.goals

    kin, of_other = ([item.endswith(tag[10:]) for item, tag in book.tag_of.items()] for book in (plain, other))
    assert of_other == kin
    assert sum(kin) > 50


def test_episodes_do_not_depend_on_what_others_draw(book):
    random.seed(1)
    first = TextCraft(book).reset(400)
    random.seed(2)
    busy = TextCraft(book)
    busy.reset(3)
    state = random.getstate()
    assert busy.reset(400) == first
    assert random.getstate() == state
    assert texts(busy, "inventory") == ["Inventory: You are not carrying anything."]


def test_the_random_player_acts_on_what_is_shown(book):
    env = TextCraft(book)
    shown = env.reset(300).observation
    player = Random(0)
    assert {*env.commands().splitlines(), "inventory", "get 1 vine"} <= {player.act(shown) for _ in range(300)}


def test_of_two_recipes_that_make_a_circle_the_second_is_left_out():
    def shaped(item, *parts):
        keys = {letter: {"item": part} for letter, part in zip("abc", parts)}
        return {"type": "minecraft:crafting_shaped", "pattern": list(keys), "key": keys, "result": {"item": item}}

    made = make_book([shaped("m:nugget", "m:ingot", "m:x"), shaped("m:ingot", "m:nugget", "m:x"), {"type": "smelting"}])
    assert made.goals == ("m:nugget",)
    assert made.items == {"m:nugget", "m:ingot", "m:x"}


def test_thousands_of_entries_are_refused_at_once(book):
    """Matching entries in every order would take hours."""
    env = at(book, "stick")
    goal = next(name for name, ways in book.recipes.items() if len(ways[0].ingredients) == 3 and name in book.items)
    named = [each.name for each in book.recipes[goal][0].ingredients]
    env._inventory |= dict.fromkeys(named, 10**6)
    taken = ", ".join(f"1 {display_name(name)}" for name in named * 40)
    (told,) = texts(env, f"craft 1 {display_name(goal)} using {taken}")
    assert told.startswith("Could not find a valid recipe")


# A server that numbers its goals differently, as AgentGym's does by the order of files on its disk.
MOVED = random.Random(7).sample(range(GOALS), GOALS)


class Elsewhere(TextCraft):
    """TextCraft with other numbers, and the commands in another order."""

    def reset(self, item):
        answer = super().reset(MOVED[item % GOALS])
        first, *commands, empty, goal = answer.observation.split("\n")
        return dataclasses.replace(answer, observation="\n".join([first, *commands[::-1], empty, goal]))


def test_every_goal_is_found_by_its_text_and_others_are_refused_with_the_reason(serve):
    for item in (3, GOALS + 3, 5 * GOALS + 40):  # on a server of ours, an item is itself
        assert local_item(SERVICE, item, TextCraft().reset(item).observation) == item
    env, numbers = Elsewhere(), range(0, GOALS, 5)
    assert [local_item(SERVICE, item, env.reset(item).observation) for item in numbers] == [MOVED[i] for i in numbers]
    assert start_shadow(SERVICE, 0, Elsewhere().reset(0).observation).goal() == load_book().goals[MOVED[0]]
    for text, reason in (
        ("Crafting commands:\ncraft 1 stick using 1 log\n\nGoal: craft perpetual motion.", "which no item has here"),
        ("Crafting commands:\ncraft 1 a using 1 b\n\nGoal: craft stick.", "do not allow the plan"),
        ("Let's start Wordle!", "no goal"),
    ):
        with pytest.raises(ServiceError, match=reason):
            local_item(SERVICE, 2, text)
    url = serve(dataclasses.replace(SERVICE, make=wordle.SERVICE.make), routes_of("textcraft"))
    with pytest.raises(UserError, match="no goal"):
        evaluate_scripted("textcraft", "oracle", items="2", url=url)


def test_scripted_players_play_what_is_shown(serve):
    url = serve(dataclasses.replace(SERVICE, make=lambda upstream: Elsewhere()), routes_of("textcraft"))
    book = load_book()
    depths = [book.depth[book.goals[MOVED[item]]] for item in range(4)]
    for policy in ("oracle", "random"):
        found = evaluate_scripted("textcraft", policy, items="0-3", turns=40, url=url)
        sizes = {kind: row["success"]["n"] for kind, row in found["categories"].items()}
        assert sizes == {f"depth {depth}": depths.count(depth) for depth in set(depths)}
        assert policy == "random" or found["success"]["mean"] == 1
