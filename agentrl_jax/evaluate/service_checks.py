"""Self-checks of environments behind a service, on instances in this process: that a score can be believed.

The names of the checks are those of `envs_jax.checks`, where they mean the same.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from agentrl_jax.errors import refusals
from agentrl_jax.evaluate.scripted import sampled_items
from agentrl_jax.services.environment import ScriptedPolicy, Service, ServiceEnvironment, StepResult
from agentrl_jax.services.environments.common import PlannedPolicy
from envs_jax.checks.policy_rules import rate_interval
from envs_jax.checks.report import Report, Result, skipped, verdict

ORACLE_TURNS = 5
"""Turns of the oracle, as a multiple of the usual limit of turns: it has to solve an item, not to be quick."""

REPLAYED = 20
"""Items whose episodes are played again."""

PLAYED_BEFORE = 5
"""Actions on another item before an instance is reset."""


class Episode(NamedTuple):
    """One episode: the item, the answers (that to the reset first) and the actions between them."""

    item: int
    answers: tuple[StepResult, ...]
    actions: tuple[str, ...]


Runs = dict[str, list[Episode]]
"""Episodes of each item, by policy."""


class _RepeatPolicy:
    """Repeats the first action of another policy."""

    def __init__(self, first: ScriptedPolicy):
        self._first, self._action = first, ""

    def act(self, observation: str) -> str:
        """The first action."""
        self._action = self._action or self._first.act(observation)
        return self._action


def check_service(
    service: Service, *, items: int | None = None, progress: Callable[[str], None] = lambda line: None
) -> Report:
    """Checks a service on its published test items or, if there are none or `items` is given, on a sample.

    Raises:
        UserError: a package that the service needs is missing, or its environment fails.
    """
    begin = time.perf_counter()
    panel = service.panel() if service.panel and items is None else None
    chosen = panel.items if panel else sampled_items(service, items or service.checked_items, 0)
    policies: dict[str, Callable[[int], ScriptedPolicy]] = {
        "null": lambda item: PlannedPolicy((), ""),
        "repeat_last": lambda item: _RepeatPolicy(service.random(item, item)),
        "random": lambda item: service.random(item, item),
    }
    if service.oracle is not None:
        policies["oracle"] = service.oracle
    with refusals(service.name):
        runs: Runs = {}
        env = service.make(False)
        try:
            for name, make in policies.items():
                progress(f"{name} policy, {len(chosen)} items")
                turns = service.turns * (ORACLE_TURNS if name == "oracle" else 1)
                runs[name] = [_play(service, env, item, make(item), turns) for item in chosen]
            progress(f"{min(len(chosen), REPLAYED)} items again")
            same, fresh = _determinism(service, runs["random"][:REPLAYED])
            results = (
                *_scores(service, runs),
                _text(runs),
                _ends(service, runs),
                same,
                _reset_clears(service, env, fresh),
                *(_floor(service, name, runs[name]) for name in ("null", "repeat_last", "random")),
                _reference(service, runs.get("oracle")),
            )
        finally:
            env.close()
    return Report(
        service.name, "service", len(chosen), time.perf_counter() - begin, results, _difficulty(service, runs)
    )


def _play(service: Service, env: ServiceEnvironment, item: int, policy: ScriptedPolicy, turns: int) -> Episode:
    """Plays until the end, or until the item is solved; `success_terminates` says whether both are the same."""
    answers, actions = [env.reset(item)], list[str]()
    while len(actions) < turns and not (answers[-1].done or service.solved(answers[-1])):
        actions.append(policy.act(answers[-1].observation))
        answers.append(env.step(actions[-1]))
    return Episode(item, tuple(answers), tuple(actions))


def _again(service: Service, env: ServiceEnvironment, episode: Episode) -> Episode:
    """Plays the item and the actions of an episode."""
    return _play(service, env, episode.item, PlannedPolicy(episode.actions), len(episode.actions))


def _solved(service: Service, episodes: Sequence[Episode]) -> np.ndarray:
    return np.array([service.solved(episode.answers[-1]) for episode in episodes], bool)


def _case(policy: str, episode: Episode, steps: int, found: Any) -> dict[str, Any]:
    return {"seed": episode.item, "policy": policy, "actions": list(episode.actions[:steps]), "found": found}


def _answers(runs: Runs) -> Iterator[tuple[str, Episode, int, StepResult]]:
    """All answers: the policy, the episode, the number of actions before, and the answer."""
    for name, episodes in runs.items():
        for episode in episodes:
            for step, answer in enumerate(episode.answers):
                yield name, episode, step, answer


def _first_flaw(
    name: str, reason: str, runs: Runs, numbers: dict[str, Any], flaw: Callable[[StepResult], Any]
) -> Result:
    """Fails with the first answer of which `flaw` says something other than None."""
    for policy, episode, step, answer in _answers(runs):
        found = flaw(answer)
        if found is not None:
            return verdict(name, reason, numbers, _case(policy, episode, step, found))
    return verdict(name, "", numbers)


def _scores(service: Service, runs: Runs) -> tuple[Result, Result]:
    low, high = service.score_range
    most = max(abs(low), abs(high), high - low)  # a reward is a score or a difference of two
    values = [value for *_, answer in _answers(runs) for value in (answer.reward, answer.score)]
    scores = [answer.score for *_, answer in _answers(runs) if math.isfinite(answer.score)]
    found = [min(scores), max(scores)] if scores else None

    def infinite(answer: StepResult) -> Any:
        bad = [value for value in (answer.reward, answer.score) if not math.isfinite(value)]
        return f"reward {answer.reward}, score {answer.score}" if bad else None

    def outside(answer: StepResult) -> Any:
        if math.isfinite(answer.score) and not low <= answer.score <= high:
            return f"score {answer.score:g}"
        return f"reward {answer.reward:g}" if math.isfinite(answer.reward) and abs(answer.reward) > most else None

    reason = "a reward or score is not a finite number"
    finite = _first_flaw("finite_rewards", reason, runs, {"values": len(values)}, infinite)
    if math.isinf(high):
        return finite, skipped("reward_range", "no range of scores is declared")
    return (
        finite,
        _first_flaw(
            "reward_range",
            f"a score is outside the declared range from {low:g} to {high:g}, or a reward larger than its width",
            runs,
            {"declared": [low, high], "found": found},
            outside,
        ),
    )


def _text(runs: Runs) -> Result:
    def flaw(answer: StepResult) -> Any:
        if not isinstance(answer.observation, str) or not answer.observation:
            return f"observation {answer.observation!r}"
        try:
            answer.observation.encode()
        except UnicodeEncodeError as error:
            return str(error)
        return None

    longest = max(len(str(answer.observation)) for *_, answer in _answers(runs))
    return _first_flaw("observation", "an observation is empty or no text", runs, {"most_characters": longest}, flaw)


def _ends(service: Service, runs: Runs) -> Result:
    reason = "the item is solved, but the episode goes on"

    def flaw(answer: StepResult) -> Any:
        return f"score {answer.score:g}, not done" if service.solved(answer) and not answer.done else None

    return _first_flaw("success_terminates", reason, runs, {}, flaw)


def _difference(before: Episode, again: Episode) -> int | None:
    """The number of actions before the first different answer; None if all are equal."""
    for step, (one, other) in enumerate(itertools.zip_longest(before.answers, again.answers)):
        if one is None or other is None:
            return step
        first, second = ((x.observation, x.reward, x.score, x.done) for x in (one, other))
        if first != second:
            return step
    return None


def _determinism(service: Service, played: Sequence[Episode]) -> tuple[Result, list[Episode]]:
    """Equal actions on equal items give equal answers of fresh instances; also returns their episodes."""
    fresh: list[Episode] = []
    for episode in played:
        twice = []
        for _ in range(2):
            env = service.make(False)
            try:
                twice.append(_again(service, env, episode))
            finally:
                env.close()
        fresh.append(twice[0])
        step = _difference(*twice)
        if step is not None:
            reason = "equal actions on an equal item give another answer"
            case = _case("random", episode, step, "different answers of two fresh instances")
            return verdict("determinism", reason, {"items": len(played)}, case), []
    return verdict("determinism", "", {"items": len(played)}), fresh


def _reset_clears(service: Service, env: ServiceEnvironment, fresh: Sequence[Episode]) -> Result:
    """An instance that was used for another item, and left in the middle of it, starts as a fresh one does."""
    if not fresh:
        return skipped("reset_clears", "fresh instances differ already")
    for episode, other in zip(fresh, (*fresh[1:], fresh[0])):
        _again(service, env, other._replace(actions=other.actions[:PLAYED_BEFORE]))
        step = _difference(episode, _again(service, env, episode))
        if step is not None:
            reason = "a reset does not clear what happened before"
            case = _case("random", episode, step, f"another answer after item {other.item}")
            return verdict("reset_clears", reason, {"items": len(fresh)}, case)
    return verdict("reset_clears", "", {"items": len(fresh)})


def _floor(service: Service, policy: str, episodes: Sequence[Episode]) -> Result:
    solved, bound = _solved(service, episodes), 0.0 if policy == "null" else service.floor
    numbers = {"success": float(solved.mean()), "bound": bound}
    numbers["mean_score"] = float(np.mean([episode.answers[-1].score for episode in episodes]))
    above = solved.any() if policy == "null" else rate_interval(solved)[0] > bound
    if not above:
        return verdict(f"{policy}_floor", "", numbers)
    episode = episodes[int(np.argmax(solved))]
    case = _case(policy, episode, len(episode.actions), f"score {episode.answers[-1].score:g}")
    reason = f"{policy} succeeds on {solved.mean():.1%}; expected at most {bound:.1%}"
    return verdict(f"{policy}_floor", reason, numbers, case)


def _reference(service: Service, episodes: Sequence[Episode] | None) -> Result:
    if episodes is None:
        return skipped("reference", "no scripted oracle is known")
    solved, least = _solved(service, episodes), service.oracle_success
    numbers = {"success": float(solved.mean()), "least": least}
    numbers["mean_score"] = float(np.mean([episode.answers[-1].score for episode in episodes]))
    below = not solved.all() if least == 1 else rate_interval(solved)[1] < least
    if not below:
        return verdict("reference", "", numbers)
    episode = episodes[int(np.argmin(solved))]
    case = _case("oracle", episode, len(episode.actions), f"score {episode.answers[-1].score:g}")
    return verdict("reference", f"the oracle succeeds on {solved.mean():.1%}; expected {least:.1%}", numbers, case)


def _difficulty(service: Service, runs: Runs) -> list[dict[str, Any]]:
    """Items and the success of random actions by the number of the oracle's actions."""
    if "oracle" not in runs:
        return []
    oracle, at_random = _solved(service, runs["oracle"]), _solved(service, runs["random"])
    lengths = np.array([len(e.actions) if good else -1 for e, good in zip(runs["oracle"], oracle)])
    return [
        {
            "length": int(length) if length >= 0 else None,
            "levels": int((lengths == length).sum()),
            "random": float(at_random[lengths == length].mean()),
        }
        for length in sorted(set(lengths.tolist()), key=lambda length: (length < 0, length))
    ]
