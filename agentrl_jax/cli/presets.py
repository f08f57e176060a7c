"""`agentrl presets`: the named learning rules."""

import dataclasses
import json
from typing import Annotated

import tyro
from rich.table import Table

from agentrl_jax.errors import UserError
from agentrl_jax.terminal import Terminal


@dataclasses.dataclass(frozen=True)
class Presets:
    """Print the named learning rules: every value, and its source."""

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="NAME")] = None
    """One of them; if left out, one line for each."""
    json: bool = False
    """Print JSON instead of a table."""


def run(command: Presets) -> None:
    """Prints the named learning rules, or one of them."""
    from agentrl_jax.config.load import decode, leaves, to_dict
    from agentrl_jax.config.presets import NAMES, read_preset

    if command.name is None:
        about = {name: read_preset(name).about for name in NAMES}
        if command.json:
            print(json.dumps(about))
            return
        table = Table(title="Presets", title_justify="left", show_header=False)
        for name, line in about.items():
            table.add_row(name, line)
        Terminal().print(table)
        return
    if command.name not in NAMES:
        raise UserError(
            f"NAME is {command.name!r}, which is no preset; known are {', '.join(NAMES)}",
            key="NAME",
            value=command.name,
        )
    preset = read_preset(command.name)
    algo = to_dict(decode({"algo": {"preset": command.name}}))["algo"]
    values = {key: value for key, value in leaves(algo, lists=False) if key != "preset"}
    # If a preset sets only the kind of a part, its source is under the part's name. Values that it sets come first.
    sources = {key if key in values else f"{key}.kind": source for key, source in preset.sources.items()}
    rows = [*sources, *(key for key in values if key not in sources)]
    if command.json:
        print(json.dumps({key: {"value": values[key], "source": sources.get(key, "default")} for key in rows}))
        return
    table = Table(title=f"{command.name}: {preset.about}", title_justify="left")
    for title in ("algo.", "value", "source"):
        table.add_column(title, overflow="fold")
    for key in rows:
        source = sources.get(key, "default")
        table.add_row(key, json.dumps(values[key]), source, style=None if key in sources else "dim")
    Terminal().print(table)
