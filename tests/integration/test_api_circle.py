"""The circle: a run that is served, and evaluated through its endpoint, says what it says in its own evaluation."""

from circle import check_replies, greedy_episodes, served


def test_the_replies_are_those_of_the_run(finished, tmp_path):
    with served(finished.folder) as address:
        check_replies(address, greedy_episodes(finished.folder), tmp_path, "--token_ids")
