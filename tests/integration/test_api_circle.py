"""The circle: a run that is served, and evaluated through its endpoint, says what it says in its own evaluation."""

import pytest
import tiny_run
from circle import LEVELS, check_replies, greedy_episodes, served, words
from maze_model import lines_in, replies_in

from agentrl_jax.evaluate import retry
from agentrl_jax.evaluate.eval_set import evaluate_run


def test_the_replies_are_those_of_the_run(finished, tmp_path):
    with served(finished.folder) as address:
        check_replies(address, greedy_episodes(finished.folder), tmp_path, "--token_ids")


@pytest.mark.nightly
def test_retries_are_those_of_the_run(finished, tmp_path, monkeypatch):
    """Greedy play with one retry: all that is said and done, with the random transitions of the second attempt."""
    played, within = [], retry.within
    monkeypatch.setattr(retry, "within", lambda trajectory, n: played.append(trajectory) or within(trajectory, n))
    evaluate_run(finished.folder, env="FrozenLake", episodes=LEVELS, attempts=(2,))
    _, greedy = played
    with served(finished.folder) as address:
        tiny_run.done(*words(address, tmp_path, "--token_ids", "--attempts", "2"))
    ids = {(item, turn): row["reply"]["token_ids"] for (item, _, turn), row in replies_in(tmp_path).items()}
    retried = 0
    for row in lines_in(tmp_path, "episodes"):
        item, attempts = row["item"], row["attempts"]
        turns = sum(attempt["turns"] for attempt in attempts)
        lengths = greedy.response.length[item]
        said = [greedy.response.tokens[item, turn, : lengths[turn]].tolist() for turn in range(turns)]
        assert [ids[item, turn] for turn in range(turns)] == said
        if attempts[-1]["status"] == "answered":
            assert (turns, attempts[-1]["solved"]) == (greedy.num_turns[item], greedy.success[item])
            retried += len(attempts) == 2
    assert retried >= 3
