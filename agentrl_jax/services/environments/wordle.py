"""The Wordle of LMRL-Gym (Abdulhai et al. 2023, arXiv 2311.18232) as AgentGym serves it (arXiv 2406.04151)."""

import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentrl_jax.services.action_parsing import first_action, react_response
from agentrl_jax.services.environment import ItemError, Service, StepResult

_LINES = (
    "panic solar shire proxy point robot prick wince crimp knoll",
    "sugar whack mount perky could wrung light those moist shard",
    "pleat aloft skill elder frame humor pause ulcer ultra robin",
    "cynic aroma caulk shake dodge swill tacit other thorn trove",
)
WORDS: tuple[str, ...] = tuple(word for line in _LINES for word in line.split())
"""The vocabulary. Targets are drawn by place, so the order belongs to the rules."""

TRIES = 6

_FEEDBACK = re.compile(r"^[bgy](?: [bgy]){4}$", re.MULTILINE)


def feedback(guess: str, target: str) -> str:
    """Colors of a guess: g where the letter is right, y where the target has it elsewhere, b where it has it nowhere.

    Every letter is judged by itself, so that a letter guessed twice is yellow twice though the target has it once.
    """
    pairs = zip(guess, target, strict=True)
    return " ".join("g" if letter == right else "y" if letter in target else "b" for letter, right in pairs)


def consistent(words: Sequence[str], guess: str, colors: str) -> list[str]:
    """The words that would have answered a guess with these colors, in order."""
    return [word for word in words if feedback(guess, word) == colors]


class Wordle:
    """One episode: find the word in six tries.

    The item is a seed, any number that is not negative. There is no secret word: every guess is judged against a target
    drawn from the words that fit all that was said before, by `random.Random(item).choice` from the list in order. To a
    player that is the same game as one with a secret, since each fitting word is as likely. LMRL-Gym keeps a table of
    what is known of each letter and reads the colors from it; as the target always fits, they are those of `feedback`.

    An action is a word with or without blanks, in small letters. Anything that is not one of `WORDS` is answered with
    "invalid word" (without a newline) and uses a try, but draws no target. A word is answered with its colors, as in
    "b y g b b\\n". Five greens win: reward 1, done. The sixth try without a win is answered in the same way as any
    other, with its colors or "invalid word", no word is revealed, and it ends the episode with reward 0, as have all
    tries before it.
    """

    def __init__(self) -> None:
        """An instance without an episode."""
        self._fitting: Sequence[str] = WORDS
        self._draw = random.Random(0)
        self._tries = 0
        self._detail: dict[str, Any] = {"done": False, "reward": 0.0, "deleted": False}

    def filtered_vocab(self) -> list[str]:
        """The words that fit what was said so far; all of them before the first guess."""
        return list(self._fitting)

    def detail(self) -> dict[str, Any]:
        """The seed, the last observation, the sum of the rewards, and whether the episode is over."""
        return dict(self._detail)

    def reset(self, item: int) -> StepResult:
        """Begins with all words.

        Raises:
            ItemError: the item is negative.
        """
        if item < 0:
            raise ItemError(f"The seed {item} is not valid: expected 0 or more.")
        self._fitting, self._draw, self._tries = WORDS, random.Random(item), 0
        self._detail = {"seed": item, "deleted": False, "reward": 0.0}
        return self._answer("Let's start Wordle!", won=False)

    def step(self, action: str) -> StepResult:
        """Judges a guess."""
        self._tries += 1
        guess = action.strip().replace(" ", "")
        if guess not in WORDS:
            return self._answer("invalid word", won=False)
        target = self._draw.choice(self._fitting)
        colors = feedback(guess, target)
        self._fitting = consistent(self._fitting, guess, colors)
        return self._answer(f"{colors}\n", won=guess == target)

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, observation: str, *, won: bool) -> StepResult:
        reward, done = float(won), won or self._tries >= TRIES
        self._detail.update(observation=observation, reward=self._detail["reward"] + reward, done=done)
        return StepResult(observation, reward=reward, score=reward, done=done)


def best_guess(words: Sequence[str]) -> str:
    """Of some words the one after which the fewest of them are left, on average over targets; the first of equals."""

    def left(guess: str) -> int:
        # A pattern that n words share comes up n times and leaves n words each time.
        return sum(count**2 for count in Counter(feedback(guess, word) for word in words).values())

    return min(words, key=left)


class Oracle:
    """Guesses only words that fit what it has read, each time the one that is expected to leave the fewest."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._fitting: Sequence[str] = WORDS
        self._guess = ""

    def act(self, observation: str) -> str:
        """A word, letters with blanks between."""
        told = _FEEDBACK.findall(observation)
        if self._guess and told:
            self._fitting = consistent(self._fitting, self._guess, told[-1])
        self._guess = best_guess(self._fitting)
        return " ".join(self._guess)


class Random:
    """Draws every word alike."""

    def __init__(self, item: int, seed: int):
        """Draws by a generator of its own."""
        # A bare number would be a seed of the game too: the player would then guess the very word that is drawn.
        self._draw = random.Random(f"player {seed} of {item}")

    def act(self, observation: str) -> str:
        """A word, letters with blanks between."""
        return " ".join(self._draw.choice(WORDS))


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
    read=first_action,
    write=react_response,
    turns=TRIES,
    solved=lambda answer: answer.reward == 1,
    oracle=lambda item: Oracle(),
    random=Random,
    content=lambda item: f"seed {item}",  # there is no word to compare: targets are drawn at every guess
    views={"filtered_vocab": "filtered_vocab", "detail": "detail"},
)
