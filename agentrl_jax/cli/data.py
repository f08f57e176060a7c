"""`agentrl data`: conversations to learn from, brought into one folder, written in other formats, and shown."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.table import Table

from agentrl_jax.errors import UserError, counted, shortened
from agentrl_jax.terminal import Terminal

if TYPE_CHECKING:
    from agentrl_jax.offline.conversations import Data as Conversations
    from agentrl_jax.offline.conversations import Message, Pairs

_SHOWN = 2000
"""Characters of each message that are shown."""


@dataclasses.dataclass(frozen=True)
class Import:
    """Read conversations, and write them as a new folder of TFDS with a digest."""

    sources: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="SOURCE...")]
    """Files .jsonl or .json of messages or of AgentGym, folders of them, runs with recorded rollouts, folders of TFDS,
    or the wheel of platoon-textcraft."""
    to: Annotated[str, tyro.conf.arg(metavar="FOLDER")]
    """New folder."""
    split: str = ""
    """Part of the source: its name of a split, a slice such as [:80%], or both."""


@dataclasses.dataclass(frozen=True)
class Export:
    """Write conversations in another format."""

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
    """As the sources of `agentrl data import`."""
    to: Annotated[str, tyro.conf.arg(metavar="PATH")]
    """New file; of rlds, new folder."""
    kind: Literal["jsonl", "agenttraj", "pairs", "rlds"]
    """jsonl, one conversation a line; agenttraj, an array like those of AgentGym; pairs, a success and a failure on
    each level that has both, for a stage dpo; rlds, the episodes of a run in the schema of RLDS, as a folder of
    TFDS."""
    split: str = ""
    """As of `agentrl data import`."""


@dataclasses.dataclass(frozen=True)
class Show:
    """Count what conversations or preference pairs have, and print the first one."""

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
    """As the sources of `agentrl data import`; of pairs, a file .jsonl or .json, or a folder of them."""
    kind: Literal["conversations", "pairs"] = "conversations"
    """What the source has."""
    split: str = ""
    """As of `agentrl data import`."""


@dataclasses.dataclass(frozen=True)
class Data:
    """Bring conversations to learn from into one format, write them in others, and show what they have."""

    command: tyro.conf.OmitSubcommandPrefixes[
        Annotated[Import, tyro.conf.subcommand("import")]
        | Annotated[Export, tyro.conf.subcommand("export")]
        | Annotated[Show, tyro.conf.subcommand("show")]
    ]


def run(command: Data) -> None:
    """Carries out the command, and says what was written."""
    chosen = command.command
    if isinstance(chosen, Import):
        from agentrl_jax.offline.read import read_data
        from agentrl_jax.offline.tfds_folders import write_folder

        data = read_data(chosen.sources, chosen.split)
        write_folder(data, Path(chosen.to))
        print(f"{chosen.to}: {_told(data)}")
    elif isinstance(chosen, Export):
        _export(chosen)
    else:
        from agentrl_jax.offline.read import read_data, read_pairs

        if chosen.kind == "pairs":
            _show_pairs(read_pairs([chosen.source], chosen.split))
        else:
            _show(read_data([chosen.source], chosen.split))


def _export(chosen: Export) -> None:
    from agentrl_jax.offline.export import write_agenttraj, write_jsonl, write_pairs, write_rlds
    from agentrl_jax.offline.read import read_data

    if chosen.kind == "rlds":
        if chosen.split:
            raise UserError.of("--split", chosen.split, "but rlds has all episodes of a run; leave it out")
        print(f"{chosen.to}: {write_rlds(Path(chosen.source), Path(chosen.to))}")
        return
    data = read_data([chosen.source], chosen.split)
    if chosen.kind == "pairs":
        from agentrl_jax.offline.own_pairs import own_pairs

        pairs = own_pairs(data)
        write_pairs(pairs, Path(chosen.to))
        print(f"{chosen.to}: {_told(pairs)}")
        return
    {"jsonl": write_jsonl, "agenttraj": write_agenttraj}[chosen.kind](data, Path(chosen.to))
    print(f"{chosen.to}: {_told(data)}")


def _told(data: "Conversations | Pairs") -> str:
    """What a set has, in one line."""
    dropped = "".join(f", {count} left out ({reason})" for reason, count in data.dropped.items())
    return f"{counted(len(data), data.row_name)}, digest {data.digest[:16]}{dropped}"


def _show(data: "Conversations") -> None:
    rows = data.conversations
    tasks: Counter[str] = Counter()
    messages = trained = 0
    rewards: list[float] = []
    success: list[bool] = []
    for conversation in rows:
        tasks[conversation.task or "(none)"] += 1
        messages += len(conversation.messages)
        trained += sum(message.loss for message in conversation.messages)
        rewards += [] if conversation.reward is None else [conversation.reward]
        success += [] if conversation.success is None else [conversation.success]
    found = {
        "conversations": str(len(rows)),
        "messages": str(messages),
        "trained replies": str(trained),
        "tasks": _tasks(tasks),
        "rewards": _rewards(rewards, len(rows)),
        "success": f"{sum(success)} of {len(success)}" if success else "unknown",
    }
    _print(data, found, [f"The first one, {rows[0].source}:", *_messages(rows[0].messages)])


def _show_pairs(data: "Pairs") -> None:
    rows, first = data.pairs, data.pairs[0]
    found = {
        "pairs": str(len(rows)),
        "prompts": str(len({pair.conversation("chosen").content() for pair in rows})),
        "tasks": _tasks(Counter(pair.task or "(none)" for pair in rows)),
        "equal answers": str(sum(pair.chosen == pair.rejected for pair in rows)),
    }
    lines = [f"The first one, {first.source}:", *_messages(first.prompt)]
    lines += ["chosen:", *_messages(first.chosen), "rejected:", *_messages(first.rejected)]
    _print(data, found, lines)


def _tasks(tasks: Counter[str]) -> str:
    return ", ".join(f"{shortened(task)} ({count})" for task, count in tasks.most_common(20))


def _print(data: "Conversations | Pairs", found: dict[str, str], lines: list[str]) -> None:
    table = Table(title=data.name, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    dropped = ", ".join(f"{count} ({reason})" for reason, count in data.dropped.items()) or "none"
    for name, text in {**found, "left out": dropped, "digest": data.digest}.items():
        table.add_row(name, text)
    Terminal().print(table, *lines)


def _rewards(rewards: list[float], rows: int) -> str:
    if not rewards:
        return "unknown"
    mean = sum(rewards) / len(rewards)
    known = "" if len(rewards) == rows else f", of {len(rewards)} conversations"
    return f"mean {mean:.4g}, from {min(rewards):.4g} to {max(rewards):.4g}{known}"


def _messages(messages: "Sequence[Message]") -> list[str]:
    lines = []
    for message in messages:
        cut = message.content[:_SHOWN] + (" ..." if len(message.content) > _SHOWN else "")
        trained = ", not trained" if message.role == "assistant" and not message.loss else ""
        lines.append(f"[{message.role}{trained}] {cut}")
    return lines
