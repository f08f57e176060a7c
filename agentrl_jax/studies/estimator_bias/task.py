"""A task so small that all its trajectories can be enumerated.

Two turns. A response has one or two of the tokens STOP, A, B: it ends with STOP or after two tokens, so that there are
seven responses of unequal lengths. Between the turns is one observation token, which names the state. The effect of a
response is random: it can end the episode with a reward, or lead to one of two states. There are two levels, the
possible initial states; the members of a group share theirs.

Dimensions: `J` trajectories of a level, `S` positions of a row (2 + 1 + 2), `T` = 2 turns.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Bool, Float, Int

STOP, A, B = range(3)
VOCABULARY, RESPONSE, TURNS, LEVELS, STATES = 3, 2, 2, 2, 3
ROW = 2 * RESPONSE + 1
CONTEXTS = STATES * 3
"""What the policy sees: the state, and whether a response starts, or already has the token A or B."""

_Turn = tuple[int, tuple[int, ...], float]
"""State, response and reward."""

RESPONSES = ((STOP,), (A, STOP), (A, A), (A, B), (B, STOP), (B, A), (B, B))


@dataclasses.dataclass(frozen=True)
class Trajectories:
    """All trajectories of one level."""

    tokens: Int[np.ndarray, "J S"]
    """Where `mask` is false: the observation or padding."""
    context: Int[np.ndarray, "J S"]
    mask: Bool[np.ndarray, "J S"]
    """True for sampled tokens."""
    chance: Float[np.ndarray, " J"]
    """Product of the probabilities of the environment's transitions."""
    reward: Float[np.ndarray, "J T"]
    last: Int[np.ndarray, "J T"]
    """Position of each turn's last token, -1 for unplayed turns."""
    state: Int[np.ndarray, "J T"]
    prefix: Int[np.ndarray, "J S"]
    """Number of the history before the token; equal numbers are equal histories."""

    @property
    def returns(self) -> Float[np.ndarray, " J"]:
        """Sums of the rewards."""
        return self.reward.sum(axis=1)

    @property
    def turn_mask(self) -> Bool[np.ndarray, "J T"]:
        """True for turns that are played."""
        return self.last >= 0

    def __len__(self) -> int:
        return len(self.tokens)


@functools.cache
def enumerate_level(level: int) -> Trajectories:
    """Every trajectory that has positive probability under a policy without zeros."""
    rows: list[tuple[list[_Turn], float]] = []
    for first in RESPONSES:
        for chance, reward, state in _outcomes(level, first, last=False):
            if state is None:
                rows.append(([(level, first, reward)], chance))
                continue
            for second in RESPONSES:
                for chance_2, reward_2, _ in _outcomes(state, second, last=True):
                    rows.append(([(level, first, reward), (state, second, reward_2)], chance * chance_2))
    return _arrays(rows)


def _outcomes(state: int, response: tuple[int, ...], *, last: bool) -> list[tuple[float, float, int | None]]:
    """(probability, reward, next state or None at the end) of the possible outcomes of a response."""
    spelled = "".join("-AB"[token] for token in response)
    # Probability of reaching the goal: it depends on the state and on both tokens; stopping at once never does.
    merit = {"-": 0.0, "A-": 0.2, "AA": 0.5, "AB": 0.3, "B-": 0.1, "BA": 0.6, "BB": 0.25}[spelled]
    reached = (merit, 0.7 * merit, 0.9 - merit if spelled != "-" else 0.0)[state]
    # A step may give a small reward without reaching the goal, so that unfinished turns have rewards too.
    paid = 0.25 if spelled in ("A-", "BB") else 0.0
    cost = -0.1 if spelled == "-" else 0.0
    if last:
        return [(p, r, None) for p, r in ((reached, 1.0), (1.0 - reached, paid + cost)) if p > 0]
    # Stopping at once changes nothing: the same state is seen again, with one turn less to go.
    leads_to = (state + "-AB".index(spelled[0])) % STATES
    return [(p, r, s) for p, r, s in ((reached, 1.0, None), (1.0 - reached, paid + cost, leads_to)) if p > 0]


def _arrays(rows: list[tuple[list[_Turn], float]]) -> Trajectories:
    number = len(rows)
    tokens, context = np.zeros((number, ROW), int), np.zeros((number, ROW), int)
    mask, chance = np.zeros((number, ROW), bool), np.array([chance for _, chance in rows])
    reward, last, state = np.zeros((number, TURNS)), np.full((number, TURNS), -1), np.zeros((number, TURNS), int)
    prefix = np.zeros((number, ROW), int)
    known: dict[tuple, int] = {}
    for j, (turns, _) in enumerate(rows):
        history: tuple = ()
        for t, (here, response, earned) in enumerate(turns):
            history = (*history, ("state", here))
            state[j, t], reward[j, t] = here, earned
            if t:
                tokens[j, t * (RESPONSE + 1) - 1] = here
            for index, token in enumerate(response):
                s = t * (RESPONSE + 1) + index
                tokens[j, s], mask[j, s] = token, True
                context[j, s] = here * 3 + (response[0] if index else 0)
                prefix[j, s] = known.setdefault(history, len(known))
                history, last[j, t] = (*history, token), s
            history = (*history, ("reward", earned))
    return Trajectories(tokens, context, mask, chance, reward, last, state, prefix)


def true_values(t: Trajectories, probability: Float[np.ndarray, " J"]) -> Float[np.ndarray, "J S"]:
    """The exact value before each sampled token: the mean future reward, given the history."""
    future = np.where(t.last[:, None] >= np.arange(ROW)[:, None], t.reward[:, None], 0.0).sum(axis=2)
    weights = np.where(t.mask, probability[:, None], 0.0)
    weight, total = (np.bincount(t.prefix.ravel(), weights=x.ravel()) for x in (weights, weights * future))
    return np.where(t.mask, (total / np.maximum(weight, 1e-300))[t.prefix], 0.0)
