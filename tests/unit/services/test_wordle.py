"""Wordle against values recorded from AgentGym's server and a table of letters; how well its scripted policies do."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.services.action_parsing import react_response
from agentrl_jax.services.environment import ItemError
from agentrl_jax.services.environments.wordle import SERVICE, TRIES, WORDS, Oracle, best_guess, consistent, feedback


def begin(seed):
    wordle = SERVICE.make(False)
    return wordle, wordle.reset(seed)


def play(player, seed):
    wordle, answer = begin(seed)
    answers = [answer]
    while not answers[-1].done:
        answers.append(wordle.step(player.act(answers[-1].observation)))
    return answers


class Knowledge:
    """Knowledge about each letter as in LMRL-Gym: for each position here, not here, or unknown."""

    def __init__(self):
        self.letters = {}

    def learn(self, guess, target):
        for place, letter in enumerate(guess):
            known = self.letters.setdefault(letter, ["unknown"] * 5)
            if letter not in target:
                known[:] = ["not here"] * 5
            else:
                known[place] = "here" if target[place] == letter else "not here"

    def colors(self, guess):
        def color(place, known):
            if known[place] == "here":
                return "g"
            return "b" if set(known) == {"not here"} else "y"

        return " ".join(color(place, self.letters[letter]) for place, letter in enumerate(guess))

    def allows(self, word):
        for letter, known in self.letters.items():
            absent = set(known) == {"not here"}
            if absent == (letter in word):
                return False
            for place, state in enumerate(known):
                if not absent and state != "unknown" and (word[place] == letter) != (state == "here"):
                    return False
        return True


def test_the_game_of_seed_3_is_the_one_seen_upstream():
    wordle, answer = begin(3)
    answers = [answer, *(wordle.step(action) for action in ("panic", "knoll", "mount"))]
    assert [(each.observation, each.reward, each.score, each.done, SERVICE.solved(each)) for each in answers] == [
        ("Let's start Wordle!", 0.0, 0.0, False, False),
        ("b b y b b\n", 0.0, 0.0, False, False),
        ("b y y b b\n", 0.0, 0.0, False, False),
        ("g g g g g\n", 1.0, 1.0, True, True),
    ]


def test_the_vocabulary_is_forty_words_in_order_and_in_the_instruction_with_a_true_example():
    assert len(WORDS) == len(set(WORDS)) == 40
    assert (WORDS[0], WORDS[9], WORDS[10], WORDS[30], WORDS[39]) == ("panic", "knoll", "sugar", "cynic", "trove")
    assert "y b g b b for s h i r e" in SERVICE.instruction
    assert consistent(WORDS, "shire", "y b g b b") == ["moist"]
    assert SERVICE.instruction.endswith("\n" + "\n".join(WORDS))
    assert SERVICE.read(react_response("p a n i c")).action == "p a n i c"


GUESSES = st.sampled_from([*WORDS, "house", "", "PANIC", "p,a,n,i,c", "panіc", "panics", "\ud800"])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31 - 1), st.lists(GUESSES, min_size=TRIES, max_size=TRIES))
def test_colors_and_words_are_those_of_a_table_of_letters(seed, guesses):
    wordle, answer = begin(seed)
    knowledge, draw = Knowledge(), random.Random(seed)
    for tries, guess in enumerate(guesses, start=1):
        if answer.done:
            break
        fitting = [word for word in WORDS if knowledge.allows(word)]
        assert wordle.filtered_vocab() == fitting
        answer = wordle.step(guess)
        if guess not in WORDS:
            assert (answer.observation, answer.reward, answer.done) == ("invalid word", 0.0, tries == TRIES)
            continue
        knowledge.learn(guess, draw.choice(fitting))
        won = [word for word in WORDS if knowledge.allows(word)] == [guess]
        assert answer.observation == knowledge.colors(guess) + "\n"
        assert (answer.reward, answer.done) == (float(won), won or tries == TRIES)
        assert won == (answer.observation == "g g g g g\n")


def test_blanks_do_not_matter_and_long_texts_are_no_words():
    for action in ("panic", "p a n i c", " pa nic ", "\tp a n i c\n", "p  a  n  i  c"):
        assert begin(3)[0].step(action).observation == "b b y b b\n"
    assert begin(3)[0].step("panic" * 100_000).observation == "invalid word"


def test_the_sixth_try_can_win():
    wordle, _ = begin(3)
    for word in ("panic", "knoll", "", "", ""):
        assert not wordle.step(word).done
    assert SERVICE.solved(wordle.step("mount"))


def test_negative_seeds_are_refused():
    wordle, _ = begin(3)
    with pytest.raises(ItemError, match="The seed -3 is not valid: expected 0 or more"):
        wordle.reset(-3)
    assert wordle.step("panic").observation == "b b y b b\n"
    assert wordle.reset(2**31 - 1).observation == wordle.reset(2**80).observation == "Let's start Wordle!"


def test_views_tell_fitting_words_and_detail():
    wordle = SERVICE.make(True)
    assert set(SERVICE.views) == {"filtered_vocab", "detail"}
    assert wordle.filtered_vocab() == list(WORDS)
    assert wordle.detail() == {"done": False, "reward": 0.0, "deleted": False}
    wordle.reset(3)
    for word in ("panic", "knoll", "mount"):
        wordle.step(word)
    assert wordle.filtered_vocab() == ["mount"]
    ended = {"seed": 3, "observation": "g g g g g\n", "done": True, "reward": 1.0, "deleted": False}
    assert json.loads(json.dumps(wordle.detail())) == ended
    wordle.reset(3)
    assert wordle.filtered_vocab() == list(WORDS)


def test_the_best_guess_leaves_the_fewest_words():
    def left(guess):
        return sum(len(consistent(WORDS, guess, feedback(guess, target))) for target in WORDS)

    assert left(best_guess(WORDS)) == min(left(guess) for guess in WORDS)
    assert best_guess(["thorn", "mount"]) == "thorn"  # the first of equals


def test_the_oracle_wins_every_game_in_few_tries():
    games = [play(SERVICE.oracle(seed), seed) for seed in range(200)]
    assert all(SERVICE.solved(game[-1]) for game in games)
    assert max(len(game) - 1 for game in games) == 3
    assert sum(len(game) - 1 for game in games) <= 480


def test_the_oracle_learns_from_what_it_reads_and_from_nothing_else():
    one, other = Oracle(), Oracle()
    first = one.act("Let's start Wordle!")
    assert first == other.act(f"{SERVICE.instruction}\nLet's start Wordle!")
    guess = first.replace(" ", "")
    assert one.act("invalid word") == first
    colors = feedback(guess, "trove")
    assert one.act(f"{colors}\n") == other.act(f"You are told:\n{colors}\n")
    assert other.act("") in {" ".join(word) for word in consistent(WORDS, guess, colors)}


def test_the_random_player_draws_all_words_alike_and_knows_nothing_of_the_game():
    wins = sum(SERVICE.solved(play(SERVICE.random(seed, seed), seed)[-1]) for seed in range(300))
    assert 20 <= wins <= 70  # 6 of 40 would be 45; with one generator for both, all would win
    one, same, other = SERVICE.random(3, 1), SERVICE.random(3, 1), SERVICE.random(3, 2)
    drawn = [one.act("") for _ in range(2000)]
    assert drawn == [same.act("") for _ in range(2000)] != [other.act("") for _ in range(2000)]
    assert all(20 < drawn.count(" ".join(word)) < 90 for word in WORDS)


def test_instances_do_not_disturb_one_another():
    random.seed(0)
    alone = play(Oracle(), 7)
    (one, answer), (other, _) = begin(7), begin(8)
    told, oracle = [answer], Oracle()
    while not told[-1].done:
        other.step("solar")
        random.seed(len(told))
        told.append(one.step(oracle.act(told[-1].observation)))
    assert told == alone
