"""A Python environment: a courier reads names and turns to the side where each lives.

Names are made up from the seed, so no fixed set of pieces could utter them.
"""

import random
from collections.abc import Sequence

from agentrl_jax.environments import HostStep

SIDES = ("Left", "Right")
LETTERS = 3

_SYLLABLES = ("ba", "dor", "fi", "gul", "ka", "lem", "mo", "nü", "ra", "sil", "to", "vé")


class Courier:
    """Three letters; the right side earns 1/3 each. Success is three right sides, after three turns at least.

    A response without a side leaves the letter where it is. Chance succeeds in 1 of 8 episodes.
    """

    actions = SIDES
    instruction = "You carry letters. Answer with the side on which the reader lives."
    info_keys = ("delivered",)

    def reset(self, seed: int) -> str:
        """Draws names and sides and shows the first letter."""
        draw = random.Random(seed)
        self._sides = [draw.choice(SIDES) for _ in range(LETTERS)]
        self._names = ["".join(draw.choices(_SYLLABLES, k=draw.randint(1, 3))).title() for _ in range(LETTERS)]
        self._answered = self._right = 0
        return self._letter()

    def step(self, response: str, actions: Sequence[str]) -> HostStep:
        """Takes the letter to the first side of the response, or says what was not understood."""
        if not actions:
            return HostStep(f"Where is {response[-12:]!r}? {self._letter()}")
        delivered = actions[0] == self._sides[self._answered]
        self._right += delivered
        thanks = f"{self._names[self._answered]} {'smiles' if delivered else 'still waits'}."
        self._answered += 1
        over = self._answered == LETTERS
        return HostStep(
            observation=thanks if over else f"{thanks} {self._letter()}",
            reward=delivered / LETTERS,
            terminated=over,
            success=over and self._right == LETTERS,
            info={"delivered": float(delivered)},
        )

    def close(self) -> None:
        """Nothing is held."""

    def _letter(self) -> str:
        return f"{self._names[self._answered]} lives {self._sides[self._answered]}."
