"""Scripted policies on a service: what its oracle and random actions reach on a set of items."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.table import Table

from agentrl_jax.config import Config, PromptConfig, ServiceConfig, TaskConfig
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.evaluate.statistics import mean_interval, success_interval
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.items import load_items
from agentrl_jax.setup.service_tasks import Services, play_all


def evaluate_scripted(
    env: str,
    policy: Literal["oracle", "random"],
    *,
    items: str | None = None,
    episodes: int = 200,
    turns: int | None = None,
    url: str = "local",
    token_file: str = "",
    seed: int = 0,
    workers: int = 4,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Plays each item of a set once with the service's oracle or with random actions.

    `items` are numbers such as 0-99, or an item file; None for `episodes` items sampled with `seed`, in order. `turns`
    defaults to the service's usual limit per episode. `url` is the address of a server, "local" for this process;
    `token_file` has its token. `workers` episodes are played at the same time.

    Returns:
        env, policy, turns, items (their number), seed; success {mean, low, high, n}; score {mean, low, high, n} of the
        episodes' last scores, out of `full_score`; and, if items have categories, `categories` with success and score
        of each.

    Raises:
        UserError: there is no such service or policy, an item does not exist, or the service fails.
    """
    with refusals():
        service = get_service(env)
    if policy == "oracle" and service.oracle is None:
        raise UserError(f"--policy is oracle, but {env} has none; use random")
    with refusals():
        distinct = min(service.items, service.distinct or service.items)
        sampled = sorted(random.Random(seed).sample(range(distinct), min(episodes, distinct)))
        chosen = load_items(items, env) if items else tuple(sampled)
    listed = ",".join(map(str, chosen))
    config = Config(
        tasks=(TaskConfig(env=env, groups=1, items=listed, held_out=listed),),
        env=ServiceConfig(url=url, token_file=token_file, workers=workers),
        prompt=PromptConfig(style="chat", max_turns=turns or service.turns),
    )
    services = Services(config, lambda: Path("."))
    try:
        make_policy = service.oracle if policy == "oracle" else (lambda item: service.random(item, seed + item))
        assert make_policy is not None
        report(f"{policy} on {len(chosen)} items of {env}, at most {config.prompt.max_turns} turns each")
        with refusals():
            played = play_all(services.tasks[0], make_policy, chosen, config)
    finally:
        services.close()
    success, score = np.array([p.solved for p in played]), np.array([p.score for p in played], float)

    def intervals(rows: Any = slice(None)) -> dict[str, Any]:
        return {"success": success_interval(success[rows]), "score": mean_interval(score[rows])}

    result = {"env": env, "policy": policy, "turns": config.prompt.max_turns, "items": len(chosen), "seed": seed}
    result |= {**intervals(), "full_score": service.full_score}
    if service.category is not None:
        of_item = np.array([service.category(episode.item) for episode in played])
        result["categories"] = {name: intervals(of_item == name) for name in sorted(set(of_item.tolist()))}
    return result


def as_table(result: Mapping[str, Any]) -> Table:
    """The result of `evaluate_scripted` as a table for the terminal."""
    title = f"{result['policy']} in {result['env']}; scores of {result['full_score']:g}"
    table = Table(title=title, title_justify="left")
    for name in ("", "items", "solved", "low", "high", "score", "low", "high"):
        table.add_column(name, justify="right" if name else "left", overflow="fold", no_wrap=bool(name))
    bounds = ("mean", "low", "high")
    for name, row in {"all": result, **result.get("categories", {})}.items():
        rates = (f"{row['success'][bound]:.1%}" for bound in bounds)
        table.add_row(name, str(row["success"]["n"]), *rates, *(f"{row['score'][bound]:.2f}" for bound in bounds))
    return table
