"""Guess a number from 0 to 99: an environment in Python, which `agentrl train guess` trains on."""

import math
import random

from agentrl_jax.environments import HostStep


class Guess:
    """Says which numbers are left. Halving them takes seven turns at most; the rewards of a solved episode sum to 1."""

    actions = tuple("0123456789")
    instruction = "Guess a number from 00 to 99, digit by digit."

    @staticmethod
    def content(seed):
        """The number, by which levels are held out: the first text is the same for all."""
        return f"{random.Random(seed).randrange(100):02}"

    def reset(self, seed):
        """All numbers are left."""
        self.number, self.low, self.high = int(self.content(seed)), 0, 99
        return "00 to 99"

    def step(self, response, actions):
        """Compares a guess of two digits; its reward is how much less is left, as a share of the question."""
        if len(actions) != 2:
            return HostStep(f"{self.low:02} to {self.high:02}", valid=False)
        guess, before = int("".join(actions)), self.high - self.low + 1
        if guess <= self.number:
            self.low = max(self.low, guess + (guess < self.number))
        if guess >= self.number:
            self.high = min(self.high, guess - (guess > self.number))
        reward, right = math.log(before / (self.high - self.low + 1), 100), guess == self.number
        return HostStep(f"{self.low:02} to {self.high:02}", reward=reward, terminated=right, success=right)

    def close(self):
        """Nothing is held."""
