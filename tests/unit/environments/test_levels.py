from types import SimpleNamespace

import pytest

from agentrl_jax.environments import levels
from agentrl_jax.environments.levels import SEEDS, divide, training_seed
from agentrl_jax.environments.protocol import Traits, traits_of


class Numbered:
    """What says a content: that of a seed, out of so many."""

    def __init__(self, number):
        self.number, self.asked = number, 0

    def content(self, item):
        self.asked += 1
        return f"content {item % self.number}"


def contents(env, items):
    return [env.content(item) for item in items]


def test_contents_are_divided_exactly_where_they_are_few():
    env = Numbered(200)
    found = divide(Traits(has_content=True), env, 512, 128)
    held_out, validation = contents(env, found.held_out), contents(env, found.validation)
    assert (len(held_out), len(validation)) == (20, 20) == (len(set(held_out)), len(set(validation)))
    drawn = {env.content(training_seed(seed, env.content, found.bounds)) for seed in range(0, 4000, 7)}
    assert len(drawn) == 160
    assert not drawn & {*held_out, *validation}


def test_many_contents_are_held_out_until_there_are_enough():
    env = Numbered(10**9)
    found = divide(Traits(has_content=True), env, 20, 10)
    assert (len(found.held_out), len(found.validation), found.training) == (20, 10, SEEDS)
    assert env.asked < 1000
    drawn = {env.content(training_seed(seed, env.content, found.bounds)) for seed in range(1000)}
    assert not drawn & {*contents(env, found.held_out), *contents(env, found.validation)}


def test_items_with_equal_contents_are_one_level():
    env = Numbered(100)
    found = divide(Traits(items=300, has_content=True), env, 512, 128)
    parts = found.training, found.validation, found.held_out
    assert list(map(len, parts)) == [80, 10, 10]
    assert len({env.content(item) for part in parts for item in part}) == 100


def test_seeds_and_items_without_contents_are_divided_by_number():
    found = divide(Traits(), None, 3, 2)
    assert (found.held_out, found.validation, found.training[0]) == ((0, 1, 2), (3, 4), 5)
    found = divide(Traits(items=100), None, 3, 2)
    assert (found.training[-1], found.validation, found.held_out) == (79, tuple(range(80, 90)), tuple(range(90, 100)))


@pytest.mark.parametrize("traits", [Traits(items=20), Traits(has_content=True)])
def test_too_few_levels_are_not_divided(traits):
    found = divide(traits, Numbered(20), 512, 128)
    assert found.undivided
    assert len(found.training) == len(found.held_out) == 20


def test_splits_of_the_class_win():
    class Own:
        items, splits = 9, {"train": [0, 1], "test": (8,)}
        reset = step = close = print

    found = divide(traits_of(Own), None, 5, 5)
    assert (found.training, found.validation, found.held_out) == ((0, 1), (), (8,))


@pytest.mark.parametrize(
    "wrong",
    [
        {"items": "3"},
        {"items": -1},
        {"actions": "up"},
        {"splits": {"train": [1]}},
        {"splits": {"train": [0], "test": [5]}},
        {"close": None},
        {"reuse": 1},
    ],
)
def test_wrong_traits_are_refused(wrong):
    kind = type("Own", (), {"items": 5, "reset": print, "step": print, "close": print, **wrong})
    with pytest.raises(TypeError, match=f"Own.*{next(iter(wrong))}"):
        traits_of(kind)


def test_neighbors_of_one_content_do_not_hide_training_levels():
    def content(seed):
        return str(seed // 1000)

    found = divide(Traits(has_content=True), SimpleNamespace(content=lambda seed: str(seed)), 10, 10)
    drawn = {training_seed(seed, content, found.bounds) for seed in range(0, 50_000, 1000)}
    assert len(drawn) == 50


def test_no_seed_of_training():
    with pytest.raises(ValueError, match=f"{levels.TRIES} seeds"):
        training_seed(0, lambda item: "one", (0.0, 0.0))
