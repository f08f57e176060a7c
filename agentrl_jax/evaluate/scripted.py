"""Scripted policies on a service: what its oracle, random and empty actions reach on a set of items."""

import contextlib
import dataclasses
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.table import Table

from agentrl_jax.config import Config, PromptConfig, ServiceConfig, TaskConfig
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.evaluate import panels, records, scripted_recording
from agentrl_jax.evaluate.baselines import level_baselines, level_rates, success_intervals
from agentrl_jax.evaluate.interval_text import cells
from agentrl_jax.evaluate.recording import check_folder
from agentrl_jax.evaluate.results import gap_closed
from agentrl_jax.evaluate.statistics import mean_interval, success_interval
from agentrl_jax.runs.rollout_records import Evaluation
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.environment import Outcomes, ScriptedPolicy, Service
from agentrl_jax.services.environments.common import PlannedPolicy
from agentrl_jax.services.items import load_items
from agentrl_jax.services.pools import LocalPool
from agentrl_jax.services.screenshots import WITHOUT_RECORD, Screenshots, refuse_without
from agentrl_jax.setup.scripted_play import ScriptedEpisode, play_all
from agentrl_jax.setup.served_task import ServedTask
from agentrl_jax.setup.service_tasks import Services
from envs_jax.budget import Budget
from envs_jax.splits import Split


def evaluate_scripted(
    env: str,
    policy: Literal["oracle", "random", "null", "constant"],
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
    """Plays each item of a set with the service's oracle, with random actions, with empty ones ("null"), or always with
    `action` ("constant").

    `items` are numbers such as 0-99, or an item file; None for `episodes` items sampled with `seed`, in order, and if
    that is None too, for the published test items, or else for 200. Each is played `plays` times. `turns` defaults to
    the service's usual limit per episode. `url` is the address of a server, "local" for this process; `token_file` has
    its token. `workers` episodes, 4 by default, are played at the same time. In this process, a service that can plays
    many episodes at once, by the rules of AgentGym's server, unless `on_instances`; `upstream` keeps these rules then.
    The episodes are recorded in the new folder `record`, if given, see `scripted_recording.record_items`, for which
    they are played on instances, by the same rules, and once each by default; `screenshots` keeps those that the
    service gives there, too. `panel` is the one that the items are of, if any, for the record.

    Returns:
        env, policy (with its action, if constant), turns, items (their number), plays, seed, full_score; success
        {mean, low, high, n} over items; score of the same form, of the episodes' last scores, out of `full_score`;
        strict_success, if the service has a stricter rule; `categories` with these of each, if items have categories.
        With several plays, each also has `standard_error`, that of the mean on these very items. `panel_digest` names
        the published test items, if they are played, and `compat` is "upstream" if the rules are those of AgentGym's
        server. `outcomes.samples` has the success of each play of each item; `mean_turns` is given where instances
        were played.

    Raises:
        UserError: there is no such service or policy, an item does not exist, or the service fails.
    """
    if record is not None:
        check_folder(record)
    elif screenshots:
        raise UserError(WITHOUT_RECORD)
    with refusals():
        service = get_service(env)
    if screenshots:
        refuse_without(service.name)
    taken = Screenshots(record) if screenshots and record is not None else None
    if (policy == "constant") != bool(action):
        raise UserError(
            f"--policy is {policy} and --action {action!r}; give an action with the policy constant, and with no other"
        )
    if policy == "oracle" and service.oracle is None:
        raise UserError(f"--policy is oracle, but {env} has none; use random")
    if policy == "random" and service.remote:
        raise UserError(f"--policy is random, but what can be done in {env} is not known here; use null or constant")
    chosen, panel_digest = choose_items(service, items, episodes, seed)
    turns = turns or service.turns
    upstream = url == "local" and service.play_many is not None and (upstream or not on_instances)
    compiled = upstream and record is None and not on_instances
    if compiled and workers is not None:
        raise UserError(
            f"--workers is {workers}, but all episodes of {env} are played in one program here; leave it out, or give "
            "--record or --url"
        )
    plays = plays or (service.random_plays if policy == "random" and compiled else 1)
    times = f"{plays} plays of each, " if plays > 1 else ""
    action = action or ""
    report(f"{policy} on {len(chosen)} items of {env}, {times}at most {turns} turns each")
    used: dict[str, float] = {}
    if compiled:
        assert service.play_many is not None
        with refusals():
            found, numbers = service.play_many(policy, action, chosen, turns, plays, seed), list(chosen)
    else:
        with connected(service, chosen, turns, url, token_file, workers or 4) as (task, config):
            if upstream:
                task = by_upstream_rules(task)
            with taken or contextlib.nullcontext():
                played = _play(task, config, policy, action, chosen, plays, seed, taken)
        found, numbers = _outcomes(played), [episode.item for episode in played[0]]
        used["mean_turns"] = float(np.mean([len(episode.actions) for row in played for episode in row]))
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
    result |= {"seed": seed, "full_score": service.full_score} | _rates(service, found)
    result |= used
    result["outcomes"] = {"samples": found.solved.astype(int).tolist()}
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
    policy: Literal["oracle", "random", "null", "constant"],
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
    outcome. There, oracle is the best that an agent with one action a turn can reach, the result also has `random`,
    `null` and `optimal` success and `gap_closed`, and `mean_turns` is of one episode on each level, with random actions
    from `seed`. With a new folder `record`, these episodes are recorded; `screenshots` is that of `evaluate_scripted`.

    Raises:
        UserError: there is no such panel or policy, the levels are not the panel's, or the service fails.
    """
    panel = panels.get_panel(name)
    if policy == "constant":
        raise UserError(f"--policy is {policy}; expected random, null or oracle with --panel")
    service = panels.SERVICES.get(panel.env, panel.env)
    exact = not (panel.served or panel.items)
    if record is not None:
        check_folder(record)
    if exact and plays is not None:
        raise UserError(f"--plays is {plays}, but the success of {policy} on {name} is exact; leave it out")
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
        report(f"{policy} on {len(panel)} levels of {name}, for the mean number of turns")
        result["mean_turns"] = scripted_recording.play_levels(record, policy, panel, seed, report)
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
            return load_items(items, service.name), None
        if service.panel and episodes is None:
            return service.panel()
    return sampled_items(service, episodes or 200, seed), None


def sampled_items(service: Service, episodes: int, seed: int) -> tuple[int, ...]:
    """Returns different items in order, as many as asked for or all; no two are variants of one."""
    distinct = min(service.items, service.distinct or service.items)
    return tuple(sorted(random.Random(seed).sample(range(distinct), min(episodes, distinct))))


def _play(
    task: ServedTask,
    config: Config,
    policy: str,
    action: str,
    chosen: tuple[int, ...],
    plays: int,
    seed: int,
    screenshots: Screenshots | None,
) -> list[list[ScriptedEpisode]]:
    """Plays on instances; for each play, the episode of each item."""
    found = []
    for play in range(plays):
        if screenshots is not None:
            screenshots.play = play + 1
        policies = _policies(task.service, policy, action, seed + (play << 32))
        with refusals():
            found.append(play_all(task, policies, chosen, config, screenshots))
    return found


def by_upstream_rules(task: ServedTask) -> ServedTask:
    """The task in this process by the rules of AgentGym's server."""
    service = task.service
    as_there = dataclasses.replace(service, oracle=service.upstream_oracle or service.oracle)
    return dataclasses.replace(task, service=as_there, pool=LocalPool(service, upstream=True))


def _outcomes(played: list[list[ScriptedEpisode]]) -> Outcomes:
    plays = len(played)
    columns = [[getattr(episode, name) for episode in row] for name in ("solved", "score", "strict") for row in played]
    solved, score, strict = (np.array(columns[start : start + plays]).T for start in range(0, 3 * plays, plays))
    return Outcomes(solved, score.astype(float), strict)


@contextlib.contextmanager
def connected(
    service: Service, chosen: tuple[int, ...], turns: int, url: str, token_file: str, workers: int
) -> Iterator[tuple[ServedTask, Config]]:
    """The service as the task of a run, and its configuration, to play items inside the block.

    Raises:
        UserError: an item does not exist, or the token file cannot be read.
    """
    listed = ",".join(map(str, chosen))
    config = Config(
        tasks=(TaskConfig(env=service.name, groups=1, items=listed, held_out=listed),),
        env=ServiceConfig(url=url, token_file=token_file, workers=workers),
        prompt=PromptConfig(style="chat", max_turns=turns),
    )
    services = Services(config, lambda: Path("."))
    try:
        yield services.tasks[0], config
    finally:
        services.close()


def _policies(service: Service, policy: str, action: str, seed: int) -> Callable[[int], ScriptedPolicy]:
    if policy == "oracle":
        assert service.oracle is not None
        return service.oracle
    if policy in ("null", "constant"):
        return lambda item: PlannedPolicy((), then=action)
    return lambda item: service.random(item, seed + item)


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


def lines_of(result: Mapping[str, Any]) -> Iterator[str]:
    """What stands below `as_table`, as far as it is known."""
    if "mean_turns" in result:
        yield f"{result['policy']}: {result['mean_turns']:.1f} turns per episode, at most {result['turns']}"


def as_table(result: Mapping[str, Any]) -> Table:
    """The result of `evaluate_scripted` as a table for the terminal."""
    title = f"{result['policy']} in {result['env']}; scores of {result['full_score']:g}"
    title += f"; {result['plays']} plays of each item" if result["plays"] > 1 else ""
    table = Table(title=title, title_justify="left")
    whole = ("mean", "low", "high")
    error = ("standard_error",) if result["plays"] > 1 else ()
    parts = {"success": whole + error, "score": whole}
    if "strict_success" in result:  # leave out the intervals that would make the table too wide
        parts |= {"score": ("mean",), "strict_success": ("mean",)}
    titles = {"success": "solved", "score": "score", "strict_success": "strictly", "standard_error": "s.e."}
    columns = [titles[name] if part == "mean" else titles.get(part, part) for name in parts for part in parts[name]]
    for name in ("", "items", *columns):
        table.add_column(name, justify="right" if name else "left", overflow="fold", no_wrap=bool(name))
    for kind, row in {"all": result, **result.get("categories", {})}.items():
        shown = []
        for name, of_name in parts.items():
            known = cells(row[name], ".2f" if name == "score" else ".1%")
            shown += [known[part] if part in known else f"{row[name][part]:.1%}" for part in of_name]
        table.add_row(kind, str(row["success"]["n"]), *shown)
    return table
