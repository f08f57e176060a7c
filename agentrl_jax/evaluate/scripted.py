"""Scripted policies: what an oracle, random and empty actions reach on the items of a service, or on a panel."""

import contextlib
import dataclasses
import os
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from agentrl_jax.environments.kinds import kind_of
from agentrl_jax.errors import UserError, counted, refusals
from agentrl_jax.evaluate import panels, records, scripted_recording
from agentrl_jax.evaluate.baselines import level_baselines, level_rates, mean_turns, success_intervals
from agentrl_jax.evaluate.recording import check_folder
from agentrl_jax.evaluate.results import gap_closed
from agentrl_jax.evaluate.scripted_items import (
    LINES,
    by_upstream_rules,
    connected,
    lines_beside,
    outcomes_of,
    play_on_instances,
)
from agentrl_jax.evaluate.statistics import mean_interval, success_interval
from agentrl_jax.runs.rollout_records import Evaluation
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.environment import Outcomes, Service
from agentrl_jax.services.items import load_items
from agentrl_jax.services.screenshots import WITHOUT_RECORD, Screenshots, refuse_without
from envs_jax.budget import Budget
from envs_jax.splits import Split

POLICIES = ("oracle", "random", "null", "constant")
"""Scripted policies of every service."""


def evaluate_scripted(
    env: str,
    policy: str,
    *,
    action: str | None = None,
    items: str | None = None,
    episodes: int | None = None,
    plays: int | None = None,
    turns: int | None = None,
    url: str = "local",
    token_file: str = "",
    seed: int = 0,
    workers: int | None = None,
    on_instances: bool = False,
    upstream: bool = False,
    record: str | os.PathLike[str] | None = None,
    screenshots: bool = False,
    panel: panels.Panel | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Plays each item of a set with the service's oracle, with random actions, with empty ones ("null"), always with
    `action` ("constant"), or with another scripted policy of the service (`Service.policies`).

    `items` are numbers such as 0-99, or an item file; None for `episodes` items sampled with `seed`, in order, and if
    that is None too, for the published test items, or else for 200. Each is played `plays` times. `turns` defaults to
    the service's usual limit per episode. `url` is the address of a server, "local" for this process; `token_file` has
    its token. `workers` episodes, 4 by default, are played at the same time. In this process, a service that can plays
    many episodes at once, by the rules of AgentGym's server, unless `on_instances`; `upstream` keeps these rules then.
    The episodes are recorded in the new folder `record`, if given, see `scripted_recording.record_items`, for which
    they are played on instances, by the same rules, and once each by default; `screenshots` keeps those that the
    service gives there, too. `panel` is the one that the items are of, if any, for the record.

    Returns:
        env, policy (with its action, if constant), turns, items (their number), plays, seed, full_score; success_rule
        and, if there is one, strict_rule, which say in words what is counted; success
        {mean, low, high, n} over items; score of the same form, of the episodes' last scores, out of `full_score`;
        strict_success, if the service has a stricter rule; `categories` with these of each, if items have categories.
        With several plays, each also has `standard_error`, that of the mean on these very items. `panel_digest` names
        the published test items, if they are played, and `compat` is "upstream" if the rules are those of AgentGym's
        server. `mean_turns` and `mean_tokens` are of an episode; a scripted policy samples no tokens, so that the
        second is 0. `random`, `null` and `optimal`, as far as the service has them: the success of these policies on
        the same items within the same turns, one play of each item but for random play where it is compiled; by their
        names, `baseline_turns` (means), `baseline_score`, and if there is one `baseline_strict_success`; with all three
        `optimal_is`, and `gap_closed`, the share of the difference between random and optimal play (null without one).
        `outcomes.samples` has the success of each play of each item, and `outcomes` that of the three on each.

    Raises:
        UserError: there is no such service or policy, an item does not exist, or the service fails.
    """
    if record is not None:
        check_folder(record)
    elif screenshots:
        raise UserError(WITHOUT_RECORD, key="--screenshots")
    if record is not None and kind_of(env).stored:
        why = f"but episodes of {kind_of(env).title} by their paths are recorded for a run only; leave it out"
        raise UserError.of("--record", os.fspath(record), why)
    with refusals():
        service = get_service(env)
    if screenshots:
        refuse_without(service.name)
    taken = Screenshots(record) if screenshots and record is not None else None
    if (policy == "constant") != bool(action):
        raise UserError(
            f"--policy is {policy} and --action {action!r}; give an action with the policy constant, and with no other",
            key="--policy",
            value=policy,
        )
    if policy not in (names := (*POLICIES, *(name for name in service.policies if name not in POLICIES))):
        raise UserError.of("--policy", policy, f"expected one of {', '.join(names)} for {env}")
    if policy == "oracle" and service.oracle is None:
        raise UserError(f"--policy is oracle, but {env} has none; use random", key="--policy", value="oracle")
    if policy == "random" and service.remote:
        raise UserError(
            f"--policy is random, but what can be done in {env} is not known here; use null or constant",
            key="--policy",
            value="random",
        )
    chosen, panel_digest = choose_items(service, items, episodes, seed)
    turns = turns or service.turns
    upstream = url == "local" and service.play_many is not None and (upstream or not on_instances)
    compiled = upstream and record is None and not on_instances
    if compiled and workers is not None:
        raise UserError.of(
            "--workers",
            workers,
            f"but all episodes of {env} are played in one program here; leave it out, or give --record or --url",
        )
    plays = plays or (service.random_plays if policy == "random" and compiled else 1)
    times = f"{plays} plays of each, " if plays > 1 else ""
    action = action or ""
    report(f"{policy} on {counted(len(chosen), 'item')} of {env}, {times}at most {counted(turns, 'turn')} each")

    def play_compiled(policy: str, action: str = "", plays: int | None = None) -> Outcomes:
        assert service.play_many is not None
        plays = plays or (service.random_plays if policy == "random" else 1)
        with refusals():
            return service.play_many(policy, action, chosen, turns, plays, seed)

    if compiled:
        found, numbers = play_compiled(policy, action, plays), list(chosen)
        lines = lines_beside(service, policy, found, play_compiled, report)
    else:
        with connected(service, chosen, turns, url, token_file, workers or 4) as (task, config):
            if upstream:
                task = by_upstream_rules(task)
            with taken or contextlib.nullcontext():
                played = play_on_instances(task, config, policy, action, chosen, plays, seed, taken)
            found, numbers = outcomes_of(played), [episode.item for episode in played[0]]

            def play_once(policy: str) -> Outcomes:
                return outcomes_of(play_on_instances(task, config, policy, "", chosen, 1, seed, None))

            beside = play_compiled if upstream and not on_instances else play_once
            lines = lines_beside(service, policy, found, beside, report)
        if record is not None:
            named = f"{policy} {action}".strip()
            evaluation = Evaluation(sample=0, seed=seed, split=int(Split.ANY), run="", iteration=0, policy=named)
            if panel is not None:
                evaluation = dataclasses.replace(evaluation, panel=panel.name, panel_sha256=panel.sha256)
            scripted_recording.record_items(record, config, played, evaluation, report)
        if taken is not None:
            report(taken.summary())
    result: dict[str, Any] = {
        "env": env,
        "policy": f"{policy} {action}".strip(),
        "turns": turns,
        "items": len(chosen),
        "plays": plays,
    }
    result |= {"success_rule": service.success_rule}
    result |= {"strict_rule": service.strict_rule} if service.strict is not None else {}
    result |= {"seed": seed, "full_score": service.full_score} | _rates(service, found)
    result |= {"mean_turns": float(found.turns.mean()), "mean_tokens": 0.0}
    result["outcomes"] = {"samples": found.solved.astype(int).tolist()} | {
        name: of_line.solved.mean(axis=1).tolist() for name, of_line in lines.items()
    }
    result |= _beside(service, result["success"]["mean"], lines)
    result |= {"panel_digest": panel_digest} if panel_digest else {}
    result |= {"compat": "upstream"} if upstream else {}
    if service.category is not None:
        of_item = np.array([service.category(number) for number in numbers])
        result["outcomes"]["categories"] = of_item.tolist()
        result["categories"] = {
            name: _rates(service, Outcomes(*(values[of_item == name] for values in found)))
            for name in sorted(set(of_item.tolist()))
        }
    return result


def evaluate_on_panel(
    policy: str,
    name: str,
    *,
    plays: int | None = None,
    seed: int = 0,
    record: str | os.PathLike[str] | None = None,
    screenshots: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Evaluates the policy random, null or oracle on the panel called `name`, for `records.of_result`.

    In compiled environments other than BabyAI the result is exact: the probability of success on each level, not an
    outcome. There, oracle is the best that an agent with one action a turn can reach, and `mean_turns` is exact too,
    unless policies of equal success differ in it: then it is of one episode on each level, with random actions from
    `seed`. With a new folder `record`, such episodes are recorded; `screenshots` is that of `evaluate_scripted`.

    Raises:
        UserError: there is no such panel or policy, the levels are not the panel's, or the service fails.
    """
    panel = panels.get_panel(name)
    if policy not in LINES.values():
        raise UserError.of("--policy", policy, "expected random, null or oracle with --panel")
    service = panels.SERVICES.get(panel.env, panel.env)
    exact = not panel.items
    if record is not None:
        check_folder(record)
    if exact and plays is not None:
        raise UserError.of("--plays", plays, f"but the success of {policy} on {name} is exact; leave it out")
    if screenshots:
        refuse_without(service)
    with refusals():
        panels.check_shown(panel, panels.first_observations(panel))
    if not exact:
        result = evaluate_scripted(
            *(service, policy),
            items=panel.items,
            turns=panel.max_actions,
            plays=plays,
            seed=seed,
            record=record,
            screenshots=screenshots,
            panel=panel,
            report=report,
        )
    else:
        result = _exact(policy, panel)
        turns = result["baseline_turns"].get({of: line for line, of in LINES.items()}[policy])
        if record is not None or turns is None:
            report(f"{policy} on {len(panel)} levels of {name}, one episode on each")
            played = scripted_recording.play_levels(record, policy, panel, seed, report)
            turns = played if turns is None else turns
        result |= {"mean_turns": turns, "mean_tokens": 0.0}
    samples = 1 if exact else result["plays"]
    named = {"panel": {"name": panel.name, "sha256": panel.sha256}, **records.of_scripted(policy, panel, samples, seed)}
    return result | named


def _exact(policy: str, panel: panels.Panel) -> dict[str, Any]:
    """The exact success of a policy on the levels of a compiled environment, with one action a turn."""
    levels, budget = panels.panel_levels(panel), Budget.one_per_turn(panel.max_actions)
    known = level_baselines(panel.env, *panels.environment(panel), levels, budget)
    assert known is not None, "every environment of a panel has an oracle"
    success = {"random": known.random, "oracle": known.optimal, "null": known.null}[policy]
    assert success is not None
    return {
        "env": panel.env,
        "policy": policy,
        "items": len(panel),
        "success": success_interval(success),
        **success_intervals(known),
        "baseline_turns": mean_turns(known),
        "gap_closed": gap_closed(success.mean(), known.random.mean(), known.optimal.mean()),
        "outcomes": {"samples": [[x] for x in success.tolist()], "exact": True, **level_rates(known)},
        "optimal_is": known.optimal_is,
    }


def choose_items(
    service: Service, items: str | None, episodes: int | None, seed: int
) -> tuple[tuple[int, ...], str | None]:
    """The items that are played, and the digest of the published test items if these are chosen.

    `items` are numbers such as 0-99, or an item file; None for `episodes` items sampled with `seed`, in order, and if
    that is None too, for the published test items, or else for 200 sampled ones.

    Raises:
        UserError: the items cannot be read, or are not what they were.
    """
    with refusals():
        if items:
            chosen = load_items(items, service.name)
            if max(chosen) >= service.items:
                raise UserError(
                    f"--items names {max(chosen)}, expected numbers below {service.items}",
                    key="--items",
                    value=max(chosen),
                )
            return chosen, None
        if service.panel and episodes is None:
            return service.panel()
    return sampled_items(service, episodes or 200, seed), None


def sampled_items(service: Service, episodes: int, seed: int) -> tuple[int, ...]:
    """Returns different items in order, as many as asked for or all; no two are variants of one."""
    distinct = min(service.items, service.distinct or service.items)
    return tuple(sorted(random.Random(seed).sample(range(distinct), min(episodes, distinct))))


def _rates(service: Service, found: Outcomes) -> dict[str, Any]:
    """The means of outcomes, with their intervals."""
    rates = {
        "success": success_interval(found.solved.mean(axis=1)) | _standard_error(found.solved),
        "score": mean_interval(found.score.mean(axis=1)) | _standard_error(found.score),
    }
    if service.strict is not None:
        rates["strict_success"] = success_interval(found.strict.mean(axis=1)) | _standard_error(found.strict)
    return rates


def _standard_error(values: np.ndarray) -> dict[str, float]:
    items, plays = values.shape
    if plays == 1:
        return {}
    return {"standard_error": float(np.sqrt((values.var(axis=1, ddof=1) / plays).sum()) / items)}


def _beside(service: Service, success: float, lines: Mapping[str, Outcomes]) -> dict[str, Any]:
    """What `evaluate_scripted` says of random, null and optimal play, given the success of its policy."""
    rates = {name: _rates(service, found) for name, found in lines.items()}
    result: dict[str, Any] = {name: of_line["success"] for name, of_line in rates.items()}
    result["baseline_turns"] = {name: float(found.turns.mean()) for name, found in lines.items()}
    for kind in ("score", *(("strict_success",) if service.strict is not None else ())):
        result[f"baseline_{kind}"] = {name: of_line[kind] for name, of_line in rates.items()}
    if "optimal" in lines and "random" in lines:
        share = gap_closed(success, rates["random"]["success"]["mean"], rates["optimal"]["success"]["mean"])
        result |= {"optimal_is": "scripted", "gap_closed": share}
    return result
