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


def gae(rewards, values, mask, gamma, lam):
    advantages = np.zeros(values.shape)
    for row in range(values.shape[0]):
        steps = [j for j in range(values.shape[1]) if mask[row, j]]
        value = [float(values[row, j]) for j in steps]
        delta = [
            float(rewards[row, j]) + gamma * (value[i + 1] if i + 1 < len(steps) else 0.0) - value[i]
            for i, j in enumerate(steps)
        ]
        for i, j in enumerate(steps):
            advantages[row, j] = sum((gamma * lam) ** (later - i) * delta[later] for later in range(i, len(steps)))
    return np.where(mask, advantages, 0.0), np.where(mask, advantages + values, 0.0)


def bi_level_gae(rewards, values, mask, turn_end, gamma, lam, turn_gamma):
    advantages = np.zeros(values.shape)
    for row in range(values.shape[0]):
        reward = [float(r) for r in rewards[row]]
        value = [float(v) for v in values[row]]
        tokens = [j for j in range(len(value)) if mask[row, j]]
        ends = [j for j in tokens if turn_end[row, j]]
        carried = 0.0
        for k in reversed(range(len(ends))):
            later = value[ends[k + 1]] if k + 1 < len(ends) else 0.0
            carried = reward[ends[k]] + turn_gamma * later - value[ends[k]] + turn_gamma * lam * carried
            reward[ends[k]] = carried + value[ends[k]]
        following, carried = 0.0, 0.0
        for j in reversed(tokens):
            if j in ends:
                following, carried = 0.0, 0.0
            carried = reward[j] + gamma * following - value[j] + gamma * lam * carried
            following = value[j]
            advantages[row, j] = carried
    return np.where(mask, advantages, 0.0), np.where(mask, advantages + values, 0.0)


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
    def rank(index):
        score = float(scores[index])
        return (1, 0.0, index) if math.isnan(score) else (0, -score if largest else score, index)

    return sorted(sorted(range(len(scores)), key=rank)[:k])


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


def turn_gae(rewards, values, mask, turn_end, gamma, lam):
    """One advantage per turn, from the value at its first token and the sum of its rewards."""
    advantages, returns = np.zeros(values.shape), np.zeros(values.shape)
    for row in range(values.shape[0]):
        turns, present = [], []
        for j in range(values.shape[1]):
            if mask[row, j]:
                present.append(j)
                if turn_end[row, j]:
                    turns, present = [*turns, present], []
        turns += [present] if present else []
        value, carried = 0.0, 0.0
        for tokens in reversed(turns):
            start = float(values[row, tokens[0]])
            carried = sum(float(rewards[row, j]) for j in tokens) + gamma * value - start + gamma * lam * carried
            value = start
            for j in tokens:
                advantages[row, j], returns[row, j] = carried, carried + start
    return advantages, returns


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
