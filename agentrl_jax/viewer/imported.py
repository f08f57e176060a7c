"""Reads rollout logs of RAGEN, AgentGym-RL and AgentGym, as episodes to look at.

A `.jsonl` file has one episode per line, a `.json` file an array of episodes or a single one. A folder of such files is
one log (see `log_files`). The fields of an episode say which program wrote it:

* `messages`, `metadata`: RAGEN's evaluation output in JSONL (`ragen.llm_agent.agent_proxy`).
* `input`, `output`, `score`: the generations that verl dumps during RAGEN's training (`trainer.rollout_data_dir` and
  `trainer.validation_data_dir`): decoded prompt and response of a whole episode, without roles.
* `prompt`, `turns`: the trajectories.jsonl of a run of this project, which also runs without recorded rollouts have.
* `conversations`, `item_id`, `reward`: AgentGym-RL's rollout log (`rollout_log_dir`), and, with `success`, the results
  of AgentGym's evaluators. Messages have role and content, or from (human, gpt) and value.

The files come from elsewhere and are not trusted: sizes are limited, nothing in them is executed, and text that is no
Unicode text is replaced.
"""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from agentrl_jax.errors import UserError, shortened
from agentrl_jax.strict_json import finite
from agentrl_jax.terminal import to_stderr
from agentrl_jax.viewer.log_files import Unusable, read_rows

MAX_EPISODES = 100_000
MAX_MESSAGES = 10_000
"""Messages of one episode."""
MAX_METADATA = 1_000
"""Entries of the metadata of one episode."""

Scalar = str | bool | int | float | None
Report = Callable[[str], None]

_ROLES = {"human": "user", "gpt": "assistant"}
"""Roles of AgentGym's conversations, in the words of chat formats."""
_LABEL = 40
"""Characters of an item's id in a list."""
_SHOWN_BAD = 5
"""Unusable episodes that are reported one by one."""


class LogMessage(TypedDict):
    """One message of an episode.

    Roles are system, user, assistant and tool, and, of an API model, reasoning and refusal.
    """

    role: str
    content: str
    note: NotRequired[str]
    """A remark about it."""
    tokens: NotRequired[list[tuple[str, float]]]
    """The tokens of the content with their log-probabilities, nats, where a server gave them; NaN for inserted text."""
    again: NotRequired[bool]
    """Whether the level begins again with this message."""
    lost: NotRequired[bool]
    """Whether a response was cut or withheld, so that it was not carried out."""


@dataclasses.dataclass(frozen=True)
class ImportedEpisode:
    """One episode of a log."""

    messages: tuple[LogMessage, ...]
    """In order."""
    reward: float | None
    """Total reward as the program logged it; None if it is missing or no finite number."""
    success: bool | None
    """Whether the task was solved; None if the log does not say."""
    metadata: dict[str, Scalar]
    """The other fields, where they are text, numbers or booleans."""
    outcome: str = ""
    """One of `log_data.OUTCOMES`; empty for what `success` says."""
    label: str = ""
    """What a list calls the episode; empty for its number."""
    task: str = ""
    """Name of the environment; empty if it is not known."""
    level: str = ""
    """Hash of the first state, 16 hexadecimal digits, as records of runs have it; empty if it is not known."""
    step: int | None = None
    """Training step in which it was played; None if it is not known."""
    name: str = dataclasses.field(default="", compare=False)
    """Where it stands, such as "line 3": an address of the page holds it, and it stays the same as the log grows."""


def load_imported(
    path: str | os.PathLike[str], *, newest: int = 0, report: Report = to_stderr
) -> list[ImportedEpisode]:
    """Reads the episodes of a log, a file or a folder of files.

    Episodes that cannot be read are left out, and `report` gets a line for each of the first of them, with the number
    of its line (in a `.json` file, of the episode, from 1), and their count.

    Args:
        path: the file or the folder.
        newest: how many of the steps of a folder with steps, counted from the newest; 0 for all.
        report: gets lines about what is left out.

    Raises:
        UserError: a file is missing, too large, or of an unknown form, or there is no episode that can be read.
    """
    source = Path(path)
    found: list[ImportedEpisode] = []
    bad: list[str] = []
    for file, where, row in read_rows(source, newest=newest):
        try:
            episode = _episode(row)
        except Unusable as error:
            bad.append(": ".join(filter(None, (file.name, where, str(error)))))
            continue
        if len(found) == MAX_EPISODES:
            raise UserError.at(source, f"has more than {MAX_EPISODES} episodes; {file.remedy}")
        of_file: dict[str, Scalar] = {"file": clean(file.name)} if file.name else {}
        name = ", ".join(filter(None, (clean(file.name), where)))
        found.append(dataclasses.replace(episode, step=file.step, name=name, metadata=of_file | episode.metadata))
    if not found:
        why = f"; {bad[0]}" if bad else ""
        raise UserError.at(
            source,
            f"has no episode that can be read{why}; expected a rollout log of RAGEN, AgentGym-RL or AgentGym",
            why,
        )
    for line in bad[:_SHOWN_BAD]:
        report(f"{source}: {line}; left out")
    if len(bad) > _SHOWN_BAD:
        report(f"{source}: {len(bad)} of {len(bad) + len(found)} episodes cannot be read")
    return found


def _episode(row: Any) -> ImportedEpisode:
    if isinstance(row, Unusable):
        raise row
    if not isinstance(row, dict):
        raise Unusable(f"is a JSON {type(row).__name__}, expected an object")
    if "conversations" in row:
        rest = {key: row[key] for key in row if key not in ("conversations", "reward", "success")}
        made = _made(_messages(row["conversations"]), row.get("reward"), row.get("success"), rest)
        item = made.metadata.get("item_id")
        return made if item is None else dataclasses.replace(made, label=f"item {shortened(item, _LABEL)}")
    if "messages" in row:
        metadata = row.get("metadata")
        if not isinstance(metadata, dict):
            raise Unusable(f"metadata is {shortened(metadata, 40)}, expected an object")
        rest = {"custom_id": row.get("custom_id")} | metadata
        reward = rest.pop("total_reward", rest.pop("reward", None))
        return _made(_messages(row["messages"]), reward, _ragen_success(rest), rest)
    if "input" in row and "output" in row:
        rest = {key: row[key] for key in row if key not in ("input", "output", "score")}
        pair = [{"role": "user", "content": row["input"]}, {"role": "assistant", "content": row["output"]}]
        messages = [message for message in _messages(pair) if message["content"]]  # validation has empty inputs
        return _made(messages, row.get("score"), None, rest)
    if isinstance(row.get("turns"), list) and "prompt" in row:
        rest = {key: row[key] for key in row if key not in ("prompt", "turns", "return", "success")}
        turns = [turn if isinstance(turn, dict) else {} for turn in row["turns"]]
        said = [("user", turn.get("observation")) for turn in turns]
        answers = [("assistant", turn.get("response", turn.get("reply"))) for turn in turns]  # reply: before 0.1.0
        pairs = [("system", row["prompt"]), *(pair for both in zip(said, answers) for pair in both)]
        messages = _messages([{"role": role, "content": content} for role, content in pairs])
        return _made(messages, row.get("return"), row.get("success"), rest)
    known = shortened(", ".join(map(str, list(row)[:10])), 80)
    raise Unusable(
        f"has the keys {known or 'of an empty object'}, expected messages, conversations, or input and output"
    )


def _ragen_success(metadata: dict[str, Any]) -> Any:
    """RAGEN logs success as TAG/success; its own key `success` is then always false, and is removed here."""
    plain = metadata.pop("success", None)
    tagged = [value for key, value in metadata.items() if key.endswith("/success")]
    return tagged[0] if tagged else plain


def _made(messages: list[LogMessage], reward: Any, success: Any, metadata: dict[str, Any]) -> ImportedEpisode:
    number, solved = to_float(reward), to_float(success)
    kept = {clean(key): value for key, value in list(metadata.items())[:MAX_METADATA] if _is_scalar(value)}
    return ImportedEpisode(
        messages=tuple(messages),
        reward=number,
        success=None if solved is None else bool(solved),
        metadata={key: clean(value) if isinstance(value, str) else finite(value) for key, value in kept.items()},
    )


def _messages(data: Any) -> list[LogMessage]:
    if not isinstance(data, list):
        raise Unusable(f"the messages are {shortened(data, 40)}, expected an array")
    if len(data) > MAX_MESSAGES:
        raise Unusable(f"has {len(data)} messages, expected at most {MAX_MESSAGES}")
    return [_message(number, message) for number, message in enumerate(data, start=1)]


def _message(number: int, data: Any) -> LogMessage:
    if not isinstance(data, dict):
        raise Unusable(f"message {number} is {shortened(data, 40)}, expected an object")
    role, content = (data.get(key, data.get(other)) for key, other in (("role", "from"), ("content", "value")))
    role = _ROLES.get(role, role) if isinstance(role, str) else role
    if role not in ("system", "user", "assistant", "tool"):
        raise Unusable(f"message {number} has the role {shortened(role, 40)}, expected system, user or assistant")
    if not isinstance(content, str):
        raise Unusable(f"message {number} has the content {shortened(content, 40)}, expected text")
    thought = data.get("reasoning_content")
    if isinstance(thought, str) and thought:
        content = f"<think>{thought}</think>{content}"
    return {"role": role, "content": clean(content)}


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int | float)


def to_float(value: Any) -> float | None:
    """A number or boolean as a float; None for anything else, and for what no float can hold."""
    found = finite(value) if isinstance(value, bool | int | float) else None
    return None if found is None else float(found)


def clean(text: str) -> str:
    """The text with U+FFFD in place of halves of surrogate pairs, which JSON can write but no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
