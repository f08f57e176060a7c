"""Slow references in plain Python and float64, written from the formulas, and shapes shared by the tests."""

import itertools
import math

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
from hypothesis import settings

ROWS, LENGTH = 4, 24
GROUPS, GROUP_SIZE = 5, 4

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)

numbers = hnp.arrays(np.float32, (ROWS, LENGTH), elements=st.floats(-3, 3, width=32))
masks = hnp.arrays(np.bool_, (ROWS, LENGTH))
discounts = st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99, 1.0])
# Eighths are exact in f32: the standard deviation of a group is either zero or far above the floor of 1e-6.
group_returns = hnp.arrays(np.float32, (GROUPS, GROUP_SIZE), elements=st.integers(-24, 80).map(lambda n: n / 8))


def _gae(rewards, values, gamma, lam):
    found, following, carried = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values)):
        carried = reward + gamma * following - value + gamma * lam * carried
        following = value
        found.append(carried)
    return found[::-1]


def _turns(present, ends):
    """The positions of each turn of a row; the last one may have no end."""
    turns = [[]]
    for j in np.flatnonzero(present):
        turns[-1].append(j)
        if ends[j]:
            turns.append([])
    return [turn for turn in turns if turn]


def gae(rewards, values, mask, gamma, lam):
    return bi_level_gae(rewards, values, mask, np.zeros_like(mask), gamma, lam, 0.0)


def bi_level_gae(rewards, values, mask, turn_end, gamma, lam, turn_gamma):
    """The advantage of a turn, at its last token, is the reward of the estimate over its tokens."""
    rewards, advantages = rewards.astype(np.float64), np.zeros(values.shape)
    for reward, value, present, ends, advantage in zip(rewards, values.astype(np.float64), mask, turn_end, advantages):
        last = np.flatnonzero(present & ends)
        reward[last] = _gae(reward[last], value[last], turn_gamma, lam) + value[last]
        for turn in _turns(present, ends):
            advantage[turn] = _gae(reward[turn], value[turn], gamma, lam)
    return advantages, np.where(mask, advantages + values, 0.0)


def turn_gae(rewards, values, mask, turn_end, gamma, lam):
    """One advantage per turn, from the value at its first token and the sum of its rewards."""
    rewards, advantages, returns = rewards.astype(np.float64), np.zeros(values.shape), np.zeros(values.shape)
    for row, (reward, value) in enumerate(zip(rewards, values.astype(np.float64))):
        turns = _turns(mask[row], turn_end[row])
        starts = [value[turn[0]] for turn in turns]
        found = _gae([reward[turn].sum() for turn in turns], starts, gamma, lam)
        for turn, advantage, start in zip(turns, found, starts):
            advantages[row, turn], returns[row, turn] = advantage, advantage + start
    return advantages, returns


def mean_and_std(numbers):
    numbers = [float(x) for x in numbers]
    mean = sum(numbers) / len(numbers)
    return mean, math.sqrt(sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1)) if len(numbers) > 1 else 0.0


def normalized(numbers, by_std):
    mean, std = mean_and_std(numbers)
    if by_std:
        return [(float(x) - mean) / (std + 1e-6) if std > 1e-6 else 0.0 for x in numbers]
    return [float(x) - mean for x in numbers]


def whiten(x, mask):
    kept = [float(v) for v, keep in zip(x.ravel(), mask.ravel()) if keep]
    if not kept:
        return np.zeros(x.shape)
    mean, std = mean_and_std(kept)
    return np.where(mask, (x.astype(np.float64) - mean) / math.sqrt(std**2 + 1e-8), 0.0)


def policy_loss(logprob, old, advantage, low, high, dual):
    """One token: loss, clipped, clipped by the dual bound."""
    ratio = math.exp(logprob - old)
    free = -advantage * ratio
    confined = -advantage * min(max(ratio, 1 - low), 1 + high)
    loss = max(free, confined)
    if advantage < 0 and dual is not None and loss > -advantage * dual:
        return -advantage * dual, confined > free, True
    return loss, confined > free, False


def value_loss(value, old, target, clip):
    near = value if clip is None else min(max(value, old - clip), old + clip)
    return 0.5 * max((value - target) ** 2, (near - target) ** 2)


def aggregate(loss, mask, mode, norm_length):
    rows = [[float(x) for x, keep in zip(r, m) if keep] for r, m in zip(loss, mask)]
    rows = [row for row in rows if row]
    if not rows:
        return 0.0
    if mode == "token_mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    if mode == "seq_mean_token_mean":
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    scale = norm_length if mode == "seq_mean_token_sum_norm" else 1.0
    return sum(sum(row) for row in rows) / len(rows) / scale


def kl(difference, kind):
    if kind == "k1":
        return difference
    if kind in ("k2", "mse"):
        return difference**2 / 2
    if kind == "abs":
        return abs(difference)
    backward = min(max(-difference, -20.0), 20.0)
    return min(max(math.exp(backward) - backward - 1, -10.0), 10.0)


def top_groups(scores, k, largest):
    order = np.argsort(-scores if largest else scores, kind="stable")  # NaN comes last
    return sorted(order[:k].tolist())


def top_p(scores, value, include_zero, eps):
    groups = [i for i, s in enumerate(scores) if include_zero or abs(s) > 1e-10]
    if value >= 1:
        return groups
    threshold = value * sum(scores[i] for i in groups) - eps
    kept, covered = [], 0.0
    for i in sorted(groups, key=lambda i: (-scores[i], i)):
        if covered >= threshold or scores[i] <= 0:
            break
        kept.append(i)
        covered += scores[i]
    return sorted(kept) if covered >= threshold else []


def leave_one_out(scores):
    scores = [float(x) for x in scores]
    others = len(scores) - 1
    return [x - (sum(scores) - x) / others if others else 0.0 for x in scores]


def turn_advantages(returns, state, group, counts, history, power, by_std):
    """`state[e][t]` is any hashable thing."""
    episodes, turns = returns.shape
    found = np.zeros(returns.shape)
    weights = np.array([(k + 1.0) ** power for k in range(history + 1)])
    for k, weight in enumerate(weights / weights.sum()):
        context = {
            (e, t): (group[e], tuple(state[e][max(t - k, 0) : t + 1]))
            for e in range(episodes)
            for t in range(turns)
            if counts[e, t]
        }
        for e, t in context:
            alike = [key for key in context if context[key] == context[e, t]]
            compared = normalized([returns[key] for key in alike], by_std)
            found[e, t] += weight * compared[alike.index((e, t))]
    return found


def chosen_groups(scores, rule, value, largest, include_zero, eps):
    if rule == "top_p":
        return top_p(scores, value, include_zero, eps)
    left = [i for i, s in enumerate(scores) if not math.isnan(s) and (include_zero or abs(s) > 1e-10)]
    ranked = sorted(left, key=lambda i: (-scores[i] if largest else scores[i], i))
    if not ranked:
        return []
    if rule == "top_k":
        return sorted(ranked[: max(1, int(value))])
    if rule == "min_p":
        best = scores[ranked[0]]
        return sorted(i for i in left if (scores[i] >= value * best if largest else scores[i] <= best / value))
    powers = [math.exp((scores[i] - scores[ranked[0]]) * (1 if largest else -1)) for i in ranked]
    kept, covered = [], 0.0
    for i, power in zip(ranked, powers):
        if kept and covered >= value:
            break
        kept.append(i)
        covered += power / sum(powers)
    return sorted(kept)


def within_group(scores, keep):
    """The largest variance of any `keep` members of a group, by trying every choice."""
    return max(np.var([float(scores[i]) for i in kept]) for kept in itertools.combinations(range(len(scores)), keep))
