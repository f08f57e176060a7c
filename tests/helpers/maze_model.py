"""Replies of a made-up API model that plays the maze."""

import json

from agentrl_jax.services.environments.maze import STARTS, Oracle


def at(item, body, message=-1):
    """Whether a message shows the start of an item; message 1 is the first observation."""
    row, column = STARTS[item]
    return f"Your current position is at position {row}, {column}." in body["messages"][message]["content"]


def walk(body):
    """Plays by a shortest path."""
    return f"Thought: on\n\nAction: {Oracle().act(body['messages'][-1]['content'])}"


def replies_in(folder):
    """The rows of the replies of an evaluation by item, sample and turn."""
    rows = [json.loads(line) for line in (folder / "replies.jsonl").read_text().splitlines()]
    return {(row["item"], row["sample"], row["turn"]): row for row in rows}
