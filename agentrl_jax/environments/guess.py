"""Guess a number from 1 to 99: an environment in Python, which `agentrl train guess` trains on."""

import random

from agentrl_jax.environments import HostStep


class Guess:
    """Says the numbers that are left; success is the right one. Halving what is left takes at most seven turns."""

    actions = tuple(map(str, range(1, 100)))
    instruction = "Guess a number."

    @staticmethod
    def content(seed):
        """The number, by which levels are held out: the first text is the same for all."""
        return str(random.Random(seed).randint(1, 99))

    def reset(self, seed):
        """All numbers are left."""
        self.number, self.low, self.high = int(self.content(seed)), 1, 99
        return "1 to 99"

    def step(self, response, actions):
        """Compares the guess, and says what is left."""
        guess = int(actions[0]) if actions else 0
        if guess == self.number:
            return HostStep("Right.", reward=1.0, terminated=True, success=True)
        if guess < self.number:
            self.low = max(self.low, guess + 1)
        else:
            self.high = min(self.high, guess - 1)
        return HostStep(f"{self.low} to {self.high}", valid=bool(actions))

    def close(self):
        """Nothing is held."""
