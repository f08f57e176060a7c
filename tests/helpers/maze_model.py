"""Replies of a made-up API model that plays the maze, whose last items start 4, 3, 2 and 1 moves from the goal."""

import json

from agentrl_jax.services.environments.maze import STARTS, Oracle
from agentrl_jax.text.styles import FEEDBACK

STAY = "Action: stay"


def at(item, body, message=-1):
    """Whether a message shows the start of an item; message 1 is the first observation."""
    row, column = STARTS[item]
    return f"Your current position is at position {row}, {column}." in body["messages"][message]["content"]


def walk(body):
    """Plays by a shortest path."""
    return f"Thought: on\n\nAction: {Oracle().act(body['messages'][-1]['content'])}"


def failures(body):
    """The number of failed attempts that a conversation tells of."""
    return sum(FEEDBACK in message["content"] for message in body["messages"])


def lines_in(folder, name):
    """The rows of a file of an evaluation."""
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def replies_in(folder):
    """The rows of the replies of an evaluation by item, sample and turn."""
    return {(row["item"], row["sample"], row["turn"]): row for row in lines_in(folder, "replies")}
