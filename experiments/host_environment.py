"""A host environment, complete: a courier reads letters and walks to the rooms that they name.

Names and letters are made up from the seed, so no fixed set of pieces could utter them.
"""

import random
from collections.abc import Sequence

from agentrl_jax.rollout.host_environment import HostStep

ROOMS = ("Red", "Green", "Blue")
LETTERS = 3

_SYLLABLES = ("ba", "dor", "fi", "gul", "ka", "lem", "mo", "nü", "ra", "sil", "to", "vé")


class Courier:
    """Three letters, one room each; a right room earns 1/3. Success is three right rooms, after three turns at least.

    A reply without a room leaves the letter unanswered. Chance succeeds in 1 of 27 episodes.
    """

    actions = ROOMS
    instruction = "You carry letters. Answer with the room that the letter names."
    info_keys = ("delivered",)

    def reset(self, seed: int) -> str:
        """Draws names and rooms and shows the first letter."""
        draw = random.Random(seed)
        self._rooms = [draw.choice(ROOMS) for _ in range(LETTERS)]
        self._names = ["".join(draw.choices(_SYLLABLES, k=draw.randint(1, 3))).title() for _ in range(LETTERS)]
        self._answered = self._right = 0
        return self._letter()

    def step(self, reply: str, actions: Sequence[str]) -> HostStep:
        """Takes the letter to the first room of the reply, or tells the agent what could not be understood."""
        if not actions:
            return HostStep(f"Nobody knows a room {reply[-12:]!r}. {self._letter()}")
        delivered = actions[0] == self._rooms[self._answered]
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

    def _letter(self) -> str:
        return f"{self._names[self._answered]} is in {self._rooms[self._answered]}."
