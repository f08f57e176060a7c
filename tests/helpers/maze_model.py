"""A made-up API model, and how it plays the maze, where items 15 to 18 start 4, 3, 2 and 1 moves from the goal."""

import json

import tiny_run
from fake_api import FakeApi

from agentrl_jax.evaluate.api_models.evaluate import evaluate_api
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.services.environments.maze.env import STARTS, Oracle
from agentrl_jax.text.styles import FEEDBACK

STAY = "Action: stay"
ENDS = ("asked", "answered", "length", "refusal", "failed", "unfinished")


def at(item, body, message=-1):
    """Whether a message shows the start of an item; message 1 is the first observation."""
    row, column = STARTS[item]
    return f"Your current position is at position {row}, {column}." in body["messages"][message]["content"]


def walk(body):
    return f"Thought: on\n\nAction: {Oracle().act(body['messages'][-1]['content'])}"


def failures(body):
    return sum(FEEDBACK in message["content"] for message in body["messages"])


def maze(items, **options):
    return TaskOptions(env="maze", items=items, **options)


def played(answer, out, options, *, faults=(), **given):
    api = FakeApi(answer, faults)
    with api.running() as url:
        return evaluate_api("m", url, options, out, **given), api


def command(answer, name, *words):
    api = FakeApi(answer)
    with api.running() as url:
        return *tiny_run.command(name, "--api", "m", "--base_url", url, *map(str, words)), api


def ended(result):
    return tuple(result["episodes"][name] for name in ENDS)


def lines_in(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def replies_in(folder):
    return {(row["item"], row["sample"], row["turn"]): row for row in lines_in(folder, "replies")}


def evaluate(answer, out, *words, panel="maze-v1"):
    return command(answer, "eval", "--panel", panel, "--out", out, *words)
