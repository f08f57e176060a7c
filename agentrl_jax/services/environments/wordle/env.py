"""The Wordle of LMRL-Gym (Abdulhai et al. 2023, arXiv 2311.18232) as AgentGym serves it (arXiv 2406.04151)."""

import random
import re
from collections import Counter
from collections.abc import Sequence

from agentrl_jax.services.environment import ChosenItems, ItemError, Service, StepResult
from agentrl_jax.services.environments.common import LmrlGame, UniformPolicy
from agentrl_jax.services.environments.wordle.protocol import READ

_LINES = (
    "panic solar shire proxy point robot prick wince crimp knoll",
    "sugar whack mount perky could wrung light those moist shard",
    "pleat aloft skill elder frame humor pause ulcer ultra robin",
    "cynic aroma caulk shake dodge swill tacit other thorn trove",
)
WORDS: tuple[str, ...] = tuple(word for line in _LINES for word in line.split())
"""The vocabulary. Targets are chosen by index, so its order is part of the rules."""

TRIES = 6

_FEEDBACK = re.compile(r"^[bgy](?: [bgy]){4}$", re.MULTILINE)


def feedback(guess: str, target: str) -> str:
    """Colors of a guess: g for a right letter, y for a letter elsewhere in the target, b for one not in the target.

    Each letter is judged by itself: a letter guessed twice is yellow twice even if the target has it once.
    """
    pairs = zip(guess, target, strict=True)
    return " ".join("g" if letter == right else "y" if letter in target else "b" for letter, right in pairs)


def consistent(words: Sequence[str], guess: str, colors: str) -> list[str]:
    """The words for which this guess would have gotten these colors, in order."""
    return [word for word in words if feedback(guess, word) == colors]


class Wordle(LmrlGame):
    """One episode: find the word in six tries.

    The item is a seed, any integer of at least 0. There is no fixed secret word: every guess is judged against a target
    sampled from the words that fit all earlier answers, by `random.Random(item).choice` from the ordered list. To the
    agent this is the same game as one with a secret, since each fitting word is equally likely. LMRL-Gym keeps a table
    of what is known about each letter and reads the colors from it; as the target always fits, they equal those of
    `feedback`.

    An action is a word in lower case, with or without blanks. An action that is not one of `WORDS` is answered with
    "invalid word" (without a newline) and uses a try, but samples no target. A word is answered with its colors, as in
    "b y g b b\\n". Five greens win: reward 1, done. A sixth try that does not win is answered like any other, with its
    colors or "invalid word". It reveals no word and ends the episode; its reward is 0, as for all tries before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fitting: Sequence[str] = WORDS
        self._rng, self._tries = random.Random(0), 0

    def filtered_vocab(self) -> list[str]:
        """The words that fit all answers so far; all words before the first guess."""
        return list(self._fitting)

    def reset(self, item: int) -> StepResult:
        """Starts an episode with all words possible; raises `ItemError` if the item is negative."""
        if item < 0:
            raise ItemError(f"The seed {item} is not valid: expected 0 or more.", item)
        self._fitting, self._rng, self._tries = WORDS, random.Random(item), 0
        return self._start("Let's start Wordle!", seed=item)

    def step(self, action: str) -> StepResult:
        """Judges a guess."""
        self._tries += 1
        guess = action.strip().replace(" ", "")
        if guess not in WORDS:
            return self._answer("invalid word", done=self._tries >= TRIES)
        target = self._rng.choice(self._fitting)
        colors = feedback(guess, target)
        self._fitting = consistent(self._fitting, guess, colors)
        won = guess == target
        return self._answer(f"{colors}\n", reward=float(won), done=won or self._tries >= TRIES)


def best_guess(words: Sequence[str]) -> str:
    """The word that leaves the fewest candidates on average over targets; the first one of ties."""

    def left(guess: str) -> int:
        # A pattern shared by n words occurs n times and leaves n words each time.
        return sum(count**2 for count in Counter(feedback(guess, word) for word in words).values())

    return min(words, key=left)


class Oracle:
    """Guesses only words that fit the answers so far, each time the one expected to leave the fewest."""

    _fitting: Sequence[str] = WORDS
    _guess = ""

    def act(self, observation: str) -> str:
        """A word, its letters separated by blanks."""
        colors = _FEEDBACK.findall(observation)
        if self._guess and colors:
            self._fitting = consistent(self._fitting, self._guess, colors[-1])
        self._guess = best_guess(self._fitting)
        return " ".join(self._guess)


INSTRUCTION = f"""You play Wordle: find a word of five letters in {TRIES} tries.
Each turn you guess one word of the list below, in small letters with blanks between them, such as s h i r e. You are \
told a color for each of its letters, in the same order:
g, green: the letter stands in this place.
y, yellow: the word has the letter, but not in this place.
b, black: the word does not have the letter.
So y b g b b for s h i r e means that the third letter is i, that there is an s, though not in first place, and that \
there is no h, r or e. Each letter is judged by itself: one that you guess twice can be yellow twice though the word \
has it once.
A guess that is not on the list is answered with invalid word and uses up a try. Five greens win.

Write your thoughts after Thought: and then a single guess after Action:, for example Action: s h i r e

The list:
""" + "\n".join(WORDS)

SERVICE = Service(
    name="wordle",
    make=lambda upstream: Wordle(),
    items=2**31,
    instruction=INSTRUCTION,
    read=READ,
    turns=TRIES,
    solved=lambda answer: answer.reward == 1,
    success_rule="the last reward is 1, which is paid for five greens",
    oracle=lambda item: Oracle(),
    # A bare number would also be a seed of the game: the policy would then guess the target itself.
    random=lambda item, seed: UniformPolicy([" ".join(word) for word in WORDS], f"player {seed} of {item}"),
    content=lambda item: f"seed {item}",  # there is no fixed word to compare: targets are sampled at every guess
    views=("filtered_vocab", "detail"),
    floor=0.25,
    chosen=ChosenItems(lambda: range(2**31 - 100, 2**31), "the last 100 seeds"),
)
