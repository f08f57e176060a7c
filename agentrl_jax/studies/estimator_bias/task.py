"""A task so small that all its trajectories can be enumerated.

Two turns. A response has one or two of the tokens STOP, A, B: it ends with STOP or after two tokens, so that there are
seven responses of unequal lengths. Between the turns is one observation token, which names the state. The effect of a
response is random: it can end the episode with a reward, or lead to one of two states. There are two levels, the
possible initial states; the members of a group share theirs.

Shapes: `J` trajectories of a level, `S` positions of a row (2 + 1 + 2), `T` = 2 turns.
"""

import dataclasses
import functools
import itertools

import numpy as np

STOP, A, B = range(3)
VOCABULARY, RESPONSE, TURNS, LEVELS, STATES = 3, 2, 2, 2, 3
ROW = 2 * RESPONSE + 1
CONTEXTS = STATES * 3
"""What the policy sees: the state, and whether a response starts, or already has the token A or B."""

RESPONSES = ((STOP,), (A, STOP), (A, A), (A, B), (B, STOP), (B, A), (B, B))


@dataclasses.dataclass(frozen=True)
class Trajectories:
    """All trajectories of one level.

    Attributes:
        tokens: i64[J, S]; where `mask` is false: the observation or padding.
        context: i64[J, S] of each sampled token.
        mask: bool[J, S], true for sampled tokens.
        chance: f64[J], product of the probabilities of the environment's transitions.
        reward: f64[J, T].
        last: i64[J, T] position of each turn's last token, -1 for unplayed turns.
        state: i64[J, T] state of each turn.
        prefix: i64[J, S] number of the history before the token; equal numbers are equal histories.
    """

    tokens: np.ndarray
    context: np.ndarray
    mask: np.ndarray
    chance: np.ndarray
    reward: np.ndarray
    last: np.ndarray
    state: np.ndarray
    prefix: np.ndarray

    @property
    def returns(self) -> np.ndarray:
        """f64[J]."""
        return self.reward.sum(axis=1)

    @property
    def turn_mask(self) -> np.ndarray:
        """bool[J, T]."""
        return self.last >= 0

    def __len__(self) -> int:
        return len(self.tokens)


@functools.cache
def enumerate_level(level: int) -> Trajectories:
    """Every trajectory that has positive probability under a policy without zeros."""
    rows: list[tuple[list[tuple[int, tuple[int, ...], float]], float]] = []
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
    said = "".join("-AB"[token] for token in response)
    # Probability of reaching the goal: it depends on the state and on both tokens; stopping at once never does.
    merit = {"-": 0.0, "A-": 0.2, "AA": 0.5, "AB": 0.3, "B-": 0.1, "BA": 0.6, "BB": 0.25}[said]
    reached = (merit, 0.7 * merit, 0.9 - merit if said != "-" else 0.0)[state]
    # A step may give a small reward without reaching the goal, so that unfinished turns have rewards too.
    paid = 0.25 if said in ("A-", "BB") else 0.0
    cost = -0.1 if said == "-" else 0.0
    if last:
        return [(p, r, None) for p, r in ((reached, 1.0), (1.0 - reached, paid + cost)) if p > 0]
    # Stopping at once changes nothing: the same state is seen again, with one turn less to go.
    leads_to = (state + "-AB".index(said[0])) % STATES
    return [(p, r, s) for p, r, s in ((reached, 1.0, None), (1.0 - reached, paid + cost, leads_to)) if p > 0]


def _arrays(rows: list[tuple[list[tuple[int, tuple[int, ...], float]], float]]) -> Trajectories:
    number = len(rows)
    tokens, context = np.zeros((number, ROW), int), np.zeros((number, ROW), int)
    mask, chance = np.zeros((number, ROW), bool), np.array([chance for _, chance in rows])
    reward, last, state = np.zeros((number, TURNS)), np.full((number, TURNS), -1), np.zeros((number, TURNS), int)
    prefix = np.zeros((number, ROW), int)
    known: dict[tuple, int] = {}
    for index, (turns, _) in enumerate(rows):
        history: tuple = ()
        for turn, (here, response, earned) in enumerate(turns):
            history = (*history, ("state", here))
            state[index, turn], reward[index, turn] = here, earned
            if turn:
                tokens[index, turn * (RESPONSE + 1) - 1] = here
            for place, token in enumerate(response):
                at = turn * (RESPONSE + 1) + place
                tokens[index, at], mask[index, at] = token, True
                context[index, at] = here * 3 + (response[0] if place else 0)
                prefix[index, at] = known.setdefault(history, len(known))
                history, last[index, turn] = (*history, token), at
            history = (*history, ("earned", earned))
    return Trajectories(tokens, context, mask, chance, reward, last, state, prefix)


def true_values(trajectories: Trajectories, probability: np.ndarray) -> np.ndarray:
    """The exact value before each sampled token, f64[J, S]: the mean future reward, given the history.

    Args:
        trajectories: trajectories of one level.
        probability: f64[J] of each trajectory.
    """
    t = trajectories
    to_come = np.where(t.last[:, None] >= np.arange(ROW)[:, None], t.reward[:, None], 0.0).sum(axis=2)
    number = t.prefix.max() + 1
    weight, total = np.zeros(number), np.zeros(number)
    for j, s in itertools.product(range(len(t)), range(ROW)):
        if t.mask[j, s]:
            weight[t.prefix[j, s]] += probability[j]
            total[t.prefix[j, s]] += probability[j] * to_come[j, s]
    return np.where(t.mask, (total / np.maximum(weight, 1e-300))[t.prefix], 0.0)
