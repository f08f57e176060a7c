"""Games of TextArena itself, where it is installed (the extra `textarena`)."""

import random

import pytest

from agentrl_jax.environments.loading import load
from agentrl_jax.environments.pool import open_pool
from agentrl_jax.environments.start_check import check_start
from agentrl_jax.errors import BadValue

textarena = pytest.importorskip("textarena", reason="needs the extra textarena")

GUESS, FEW = "textarena:GuessTheNumber-v0", {"min_number": 1, "max_number": 8}


def test_new_messages_alone_are_shown_and_the_last_step_tells_the_reward():
    env = load(GUESS)(**FEW)
    first = env.reset(3)
    assert "between 1 and 8" in first
    number = dict(env._game.state.game_state)["game_number"]
    lower = env.step("", [f"[{1 if number > 1 else 2}]"])
    assert (lower.reward, lower.terminated, lower.valid) == (0.0, False, True)
    assert "between" not in lower.observation
    right = env.step("", [f"[{number}]"])
    assert (right.reward, right.terminated, right.success, right.valid) == (1.0, True, True, True)
    again = env.reset(3)
    assert again == first, "the history is not kept over a reset"


def test_an_invalid_end_is_no_success_whatever_it_pays():
    env = load(GUESS)(**FEW)
    env.reset(3)
    assert not env.step("", []).valid
    steps = [env.step("", ["no number"]) for _ in range(2)]
    assert [step.valid for step in steps] == [False, False]
    assert [step.terminated for step in steps] == [False, True]
    assert not steps[1].success


def test_levels_are_told_apart_by_what_is_hidden():
    kind = load(GUESS)
    env, other = kind(**FEW), kind(**FEW)
    first = env.reset(1)
    contents = {env.content(seed) for seed in range(40)}
    assert 4 <= len(contents) <= 8
    assert all(text.startswith(first) for text in contents)
    assert env.content(5) == other.content(5)


@pytest.mark.parametrize("processes", [0, 1])
def test_games_that_are_played_together_do_not_share_random_numbers(processes):
    pool = open_pool("textarena:2048-v0", {}, processes=processes)

    def alone(seed):
        env = pool.open()
        texts = [env.reset(seed), *(env.step("", [f"[{move}]"]).observation for move in ("left", "up") * 3)]
        env.close()
        return texts

    expected = [alone(seed) for seed in (1, 2)]
    envs = [pool.open() for _ in range(2)]
    random.seed(9)
    outside = random.getstate()
    found = [[env.reset(seed)] for env, seed in zip(envs, (1, 2))]
    for move in ("left", "up") * 3:
        for env, texts in zip(envs, found):
            texts.append(env.step("", [f"[{move}]"]).observation)
    assert found == expected
    assert random.getstate() == outside
    check_start(pool, (7,), 3)
    pool.close()


@pytest.mark.parametrize(("name", "why"), [("TicTacToe-v0", "not a game for one player"), ("Nope-v0", "cannot make")])
def test_what_is_no_game_for_one_is_refused(name, why):
    with pytest.raises(BadValue, match=why):
        load(f"textarena:{name}")
