import json

import pytest

from agentrl_jax.services.action_parsing import react_response
from agentrl_jax.services.environment import ItemError
from agentrl_jax.services.environments.wordle.env import SERVICE, WORDS, Oracle, best_guess, consistent, feedback


def begin(seed):
    wordle = SERVICE.make(False)
    return wordle, wordle.reset(seed)


def play(player, seed):
    wordle, answer = begin(seed)
    answers = [answer]
    while not answers[-1].done:
        answers.append(wordle.step(player.act(answers[-1].observation)))
    return answers


def test_the_game_of_seed_3_is_the_one_seen_upstream():
    wordle = SERVICE.make(True)
    assert set(SERVICE.views) == {"filtered_vocab", "detail"}
    assert (wordle.filtered_vocab(), wordle.detail()) == ([*WORDS], {"done": False, "reward": 0.0, "deleted": False})
    answers = [wordle.reset(3), *(wordle.step(action) for action in ("panic", "knoll", "mount"))]
    assert [(each.observation, each.reward, each.score, each.done, SERVICE.solved(each)) for each in answers] == [
        ("Let's start Wordle!", 0.0, 0.0, False, False),
        ("b b y b b\n", 0.0, 0.0, False, False),
        ("b y y b b\n", 0.0, 0.0, False, False),
        ("g g g g g\n", 1.0, 1.0, True, True),
    ]
    assert wordle.filtered_vocab() == ["mount"]
    ended = {"seed": 3, "observation": "g g g g g\n", "done": True, "reward": 1.0, "deleted": False}
    assert json.loads(json.dumps(wordle.detail())) == ended
    wordle.reset(3)
    assert wordle.filtered_vocab() == list(WORDS)


def test_the_vocabulary_is_forty_words_in_order_and_in_the_instruction_with_a_true_example():
    assert len(WORDS) == len(set(WORDS)) == 40
    assert (WORDS[0], WORDS[9], WORDS[10], WORDS[30], WORDS[39]) == ("panic", "knoll", "sugar", "cynic", "trove")
    assert "y b g b b for s h i r e" in SERVICE.instruction
    assert consistent(WORDS, "shire", "y b g b b") == ["moist"]
    assert SERVICE.instruction.endswith("\n" + "\n".join(WORDS))
    assert SERVICE.read(react_response("p a n i c")).action == "p a n i c"


def test_colors_and_the_words_that_fit_them():
    colors = {("panic", "panic"): "g g g g g", ("panic", "cynic"): "b b g g g", ("panic", "plaid"): "g y b g b"}
    colors |= {("knoll", "light"): "b b b y y", ("robin", "solar"): "y g b b b", ("sugar", "crimp"): "b b b b y"}
    assert {pair: feedback(*pair) for pair in colors} == colors
    assert consistent(WORDS, "panic", "b b y b b") == ["knoll", "mount", "wrung", "thorn"]
    assert consistent(["knoll", "mount"], "knoll", "b y y b b") == ["mount"]


def test_blanks_do_not_matter_and_other_texts_and_negative_seeds_are_refused():
    for action in ("panic", " p a nic ", "\tp  a  n  i  c\n"):
        assert begin(3)[0].step(action).observation == "b b y b b\n"
    for action in ("PANIC", "p,a,n,i,c", "house", "\ud800", "panic" * 100_000):
        assert begin(3)[0].step(action).observation == "invalid word"
    wordle, _ = begin(3)
    with pytest.raises(ItemError, match="The seed -3 is not valid: expected 0 or more"):
        wordle.reset(-3)
    assert wordle.step("panic").observation == "b b y b b\n"
    assert wordle.reset(2**31 - 1).observation == wordle.reset(2**80).observation == "Let's start Wordle!"


def test_the_sixth_try_can_win_and_ends_the_game():
    for last, solved in (("mount", True), ("panic", False), ("", False)):
        wordle, _ = begin(3)
        assert not any(wordle.step(word).done for word in ("panic", "knoll", "", "", ""))
        answer = wordle.step(last)
        assert (answer.done, answer.reward, SERVICE.solved(answer)) == (True, float(solved), solved)


def test_the_best_guess_leaves_the_fewest_words_and_wins_in_few_tries():
    def left(guess):
        return sum(len(consistent(WORDS, guess, feedback(guess, target))) for target in WORDS)

    assert left(best_guess(WORDS)) == min(left(guess) for guess in WORDS)
    assert best_guess(["thorn", "mount"]) == "thorn"  # the first of equals
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
