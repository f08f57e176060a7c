import threading

import numpy as np
import pytest

from agentrl_jax.environments import HostStep
from agentrl_jax.rollout.envs.concurrency import run_all
from agentrl_jax.rollout.envs.host_environment import host_task
from agentrl_jax.rollout.envs.host_episodes import HostEpisodes
from agentrl_jax.text.grammar import ResponseGrammar
from agentrl_jax.text.tokenizer import load_small

TOKENIZER = load_small()
LONG = "many words " * 20


class Echo:
    closed = 0

    def reset(self, seed):
        self.turns = 0
        return LONG if seed == 9 else f"seed {seed}"

    def close(self):
        type(self).closed += 1

    def step(self, response, actions):
        self.turns += 1
        if "break" in actions:
            raise KeyError("broken")
        if "number" in actions:
            return 5
        if "deaf" in actions:
            return HostStep(None)
        if "garbled" in actions:
            return HostStep(b"caf\xe9".decode("utf-8", "surrogateescape"))
        if "rich" in actions:
            return HostStep("gold", reward=1e39)
        return HostStep(
            f"{self.turns}: {response} = {list(actions)}",
            reward=self.turns,
            terminated="end" in actions,
            truncated="stop" in actions or "end" in actions,
            success="end" in actions,
            info={"turns": self.turns},
        )


@pytest.fixture(scope="module")
def make_host_episodes():
    tasks = {}

    def make(actions=(), restarts=False):
        if actions not in tasks:
            grammar = ResponseGrammar(actions=actions, think=False, forced=False, max_actions=3)
            limits = {"observation_tokens": 60, "max_turns": 9, "max_actions": 9, "response_words": 9}
            texts = {"instruction": "Say something.", "response_format": grammar, "tokenizer": TOKENIZER}
            tasks[actions] = host_task("Echo", Echo, style="ragen", info_keys=("turns",), **texts, **limits)
        return HostEpisodes((tasks[actions],), TOKENIZER, deadline=5.0, workers=4, restarts=restarts)

    return make


def names(rows):
    return np.stack([np.array([7, 8, 0, row, 0], np.int32) for row in range(rows)])


def begin(host_episodes, seeds):
    rows = len(seeds)
    return host_episodes.reset(names(rows), np.array(seeds, np.uint32), np.ones(rows, bool))


def act(host_episodes, responses, *, turn=0, used=0, horizon=9, budget=9, mask=None):
    rows = len(responses)
    ids = [TOKENIZER.encode(f"<answer>{response}</answer>") for response in responses]
    tokens = np.zeros((rows, max(map(len, ids))), np.int32)
    for row, row_ids in enumerate(ids):
        tokens[row, : len(row_ids)] = row_ids
    limits, lengths = (np.asarray(horizon, np.int32), np.int32(budget)), np.array([*map(len, ids)])
    chosen = np.ones(rows, bool) if mask is None else np.array(mask)
    return host_episodes.step(names(rows), np.full(rows, turn), np.full(rows, used), *limits, tokens, lengths, chosen)


def text(tokens):
    return TOKENIZER.decode([i for i in tokens.tolist() if i >= 0])


def test_free_text_is_what_stands_in_the_answer(make_host_episodes):
    host_episodes = make_host_episodes()
    tokens, overflow = begin(host_episodes, [3, 9])
    assert (text(tokens[0]), overflow.tolist()) == ("seed 3", [False, True])
    assert (tokens[1] >= 0).all()
    assert text(tokens[1]) == TOKENIZER.decode(TOKENIZER.encode(LONG)[:60])
    result, tokens, _ = act(host_episodes, ["ünder the  bed ||look|| || a || b", " || "])
    assert text(tokens[0]).endswith("= ['ünder the  bed', 'look', 'a']")
    assert result.actions.tolist() == [[0, 0, 0], [-1, -1, -1]]
    assert result.valid.tolist() == [True, False]
    assert result.format_error.tolist() == [0, 1]
    assert result.reward.tolist() == [1.0, 1.0]
    assert result.info["turns"].tolist() == [1.0, 1.0]
    assert len(host_episodes._episodes) == 2


def test_an_episode_is_kept_until_it_ends(make_host_episodes):
    host_episodes = make_host_episodes(("Go", "end", "stop"))
    begin(host_episodes, [0, 1, 2, 3])
    before = act(host_episodes, ["Go", "end", "stop", "Go"], mask=[True, True, True, False])[0]
    assert before.terminated.tolist() == [False, True, False, False]
    assert before.truncated.tolist() == [False, False, True, False]  # termination by the environment comes first
    assert before.success.tolist() == [False, True, False, False]
    assert before.reward.tolist() == [1.0, 1.0, 1.0, 0.0]
    assert len(host_episodes._episodes) == 2
    after = act(host_episodes, ["Go"] * 4, turn=1)[0]
    assert after.failed.tolist() == [False, True, True, False]  # those episodes are over
    assert after.reward.tolist() == [2.0, 0.0, 0.0, 1.0]
    assert (after.state_hash[0] != before.state_hash[0]).any()
    act(host_episodes, ["Go"] * 4, turn=1, horizon=[9, 9, 9, 2], mask=[True, False, False, True])
    assert [identity[3] for identity in host_episodes._episodes] == [0]
    act(host_episodes, ["Go"] * 4, turn=2, horizon=3, mask=[True, False, False, False])
    assert len(host_episodes._episodes) == 0


@pytest.mark.parametrize(("used", "said", "cut"), [(0, ["Go"] * 2, False), (7, ["Go"] * 2, True), (8, ["Go"], True)])
def test_the_budget_cuts_actions(make_host_episodes, used, said, cut):
    host_episodes = make_host_episodes(("Go", "end", "stop"))
    begin(host_episodes, [0])
    result, tokens, _ = act(host_episodes, ["Go || Go"], used=used)
    assert text(tokens[0]).endswith(f"= {said}")
    assert (result.actions[0] >= 0).sum() == len(said)
    assert (bool(result.truncated[0]), len(host_episodes._episodes)) == (cut, 0 if cut else 1)


@pytest.mark.parametrize(("horizon", "cut"), [(3, True), (2, False)])
def test_in_the_last_turn_the_limit_of_turns_comes_first(make_host_episodes, horizon, cut):
    """Each turn of a service is an action, so that the budget is used up then as well."""
    host_episodes = make_host_episodes(("Go", "end", "stop"))
    begin(host_episodes, [0])
    result = act(host_episodes, ["Go"], turn=1, used=1, horizon=horizon, budget=2)[0]
    assert bool(result.truncated[0]) == cut
    assert len(host_episodes._episodes) == 0


def test_wrong_answers_fail_their_row_and_are_told(make_host_episodes, caplog):
    host_episodes = make_host_episodes()
    begin(host_episodes, range(6))
    result, tokens, _ = act(host_episodes, ["break", "number", "deaf", "garbled", "rich", "hello"])
    assert result.failed.tolist() == [True] * 5 + [False]
    assert (tokens[:5] == -1).all()
    assert (result.reward[:5] == 0).all()
    assert len(host_episodes._episodes) == 1
    assert len(caplog.records) == 5


def test_a_group_that_does_not_start_alike_fails_where_it_differs(make_host_episodes, caplog):
    host_episodes = make_host_episodes()
    identity = names(3)
    identity[:, 3], identity[:, 4] = 0, np.arange(3)
    tokens, _ = host_episodes.reset(identity, np.array([4, 4, 5], np.uint32), np.ones(3, bool))
    assert [text(row) for row in tokens] == ["seed 4"] * 3  # what the shared prefill has read
    assert len(host_episodes._episodes) == 2
    assert len(caplog.records) == 1


def test_functions_run_at_the_same_time_answers_keep_their_order_and_errors_are_answers():
    answers = run_all([lambda: 1, lambda: 1 // 0, lambda: 3], 5.0, 1)
    assert (answers[0], type(answers[1]), answers[2]) == (1, ZeroDivisionError, 3)
    assert run_all([], 5.0, 3) == []
    meeting = threading.Barrier(3)  # opens only when all three have arrived
    assert sorted(run_all([meeting.wait] * 3, 30.0, 3)) == [0, 1, 2]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_that_hangs_is_given_up_and_what_waits_for_it_never_begins(workers):
    release, begun, before = threading.Event(), [], set(threading.enumerate())
    answers = run_all([release.wait, lambda: begun.append(1)], 0.3, workers)
    threads = set(threading.enumerate()) - before
    assert threads
    assert all(thread.daemon for thread in threads)  # they do not hold up the end of the program
    release.set()
    for thread in threads:
        thread.join(10.0)
    assert isinstance(answers[0], TimeoutError)
    assert (isinstance(answers[1], TimeoutError), begun) == ((True, []) if workers == 1 else (False, [1]))


def test_an_episode_that_is_over_begins_again_with_its_seed(make_host_episodes, monkeypatch):
    host_episodes = make_host_episodes(("Go", "end"), restarts=True)
    begin(host_episodes, [3, 4, 5])
    seen = act(host_episodes, ["end", "Go", "end"])[1]
    tokens, overflow = host_episodes.restart(names(3), np.array([True, True, False]))
    assert text(tokens[0]).startswith(text(seen[0])[:8])
    assert (text(tokens[0])[-6:], text(tokens[1]), text(tokens[2])) == ("seed 3", "", ""), "the second one is not over"
    assert not overflow.any()
    result, tokens, _ = act(host_episodes, ["end", "end", "end"], mask=[True, True, False])
    assert (text(tokens[0])[:2], text(tokens[1])[:2]) == ("1:", "2:")
    assert result.failed.tolist()[:2] == [False, False]
    # One that does not begin as before fails in the next turn.
    monkeypatch.setattr(Echo, "reset", lambda self, seed: "elsewhere")
    host_episodes.restart(names(3), np.array([True, False, False]))
    assert act(host_episodes, ["Go", "Go", "Go"], mask=[True, False, False])[0].failed[0]
    assert [failure.what for failure in host_episodes.take_report().failures] == ["reset"]
    host_episodes.clear()
    assert not host_episodes._ended
