"""A run that is served, and evaluated through its endpoint."""

import contextlib
import json

import tiny_run
from serving import running

from agentrl_jax import api
from agentrl_jax.model_server.app import create_app
from agentrl_jax.model_server.served_model import load_served, make_sampler
from agentrl_jax.services.server.limits import Limits

LEVELS = 8
"""As many as the validation of the run plays at a time, whose program plays them here, too."""


@contextlib.contextmanager
def served(folder):
    model = load_served(str(folder), name="tiny")
    sampler = make_sampler(model, context=320, max_tokens=6, max_batch=1)
    with running(create_app(model, sampler, Limits(), max_waiting=64)) as url:
        yield f"{url}/v1"


def words(address, out, *options):
    found = ["eval", "--api", "tiny", "--base_url", address, "--env", "FrozenLake", "--style", "compact"]
    found += ["--turns", "2", "--actions_per_turn", "2", "--episodes", str(LEVELS), "--max_tokens", "6", "--json"]
    return [*found, "--out", str(out), *options]


def greedy_episodes(folder):
    """The run's own greedy play on its first test levels of FrozenLake: episodes of (texts, token ids, success)."""
    policy = api.load_policy(folder)
    played = api.rollout(policy, LEVELS, task=1, temperature=0.0, seed=123)
    episodes = []
    for row in range(LEVELS):
        lengths = played.response.length[row, : played.num_turns[row]]
        ids = [played.response.tokens[row, turn, :length].tolist() for turn, length in enumerate(lengths)]
        texts = ["<answer>" + policy.tokenizer.decode(of_turn) for of_turn in ids]
        episodes.append((texts, ids, played.response.ended[row, : len(ids)].tolist(), bool(played.success[row])))
    return episodes


def check_replies(address, greedy, tmp_path, *options):
    result = json.loads(tiny_run.done(*words(address, tmp_path, *options)))
    rows = [json.loads(line) for line in (tmp_path / "replies.jsonl").read_text().splitlines()]
    replies = {(row["item"], row["turn"]): row["reply"] for row in rows}
    episodes = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert result["episodes"]["unfinished"] == 0
    for episode in episodes:
        texts, ids, ended, success = greedy[episode["item"]]
        of_item = [replies[episode["item"], turn] for turn in range(episode["turns"])]
        assert [reply["text"] for reply in of_item] == texts[: len(of_item)]
        assert [reply["finish"] == "stop" for reply in of_item] == ended[: len(of_item)]
        if options:
            assert [reply["token_ids"] for reply in of_item] == ids[: len(of_item)]
        if episode["status"] == "answered":
            assert (len(of_item), episode["solved"]) == (len(texts), success)
    assert len(episodes) == LEVELS
    # Some episodes have a second turn, whose prompt holds the first reply.
    assert sum(episode["turns"] == 2 for episode in episodes) >= 3
