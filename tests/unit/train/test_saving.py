"""Which states a run saves: regular, better and interrupted ones, and none after updates that are not finite."""

from types import SimpleNamespace

import pytest

from agentrl_jax.config import Config, TrainConfig
from agentrl_jax.stopping import Stopped
from agentrl_jax.train.run import Run


class Saved:
    """The progress of a run, and what it saved: {step: score}."""

    def __init__(self):
        self.saved, self.checkpoints = {}, self
        self.monitor = SimpleNamespace(stopped_by="", empty_in_a_row=0)

    def save(self, step, state, score=None, *, regular=True):
        self.saved[step] = score

    def best_score(self):
        return max((score for score in self.saved.values() if score is not None), default=-1.0)

    def latest_step(self):
        return max(self.saved, default=None)

    def kept(self):
        return ""

    def wait(self):
        pass

    raise_failure = wait


@pytest.fixture
def run():
    run = object.__new__(Run)
    run.config = Config(train=TrainConfig(iterations=200, checkpoint_every=100))
    run.parts, run.progress = SimpleNamespace(imitation_chunks=0), Saved()
    run.view = SimpleNamespace(note=print)
    return run


def iteration(run, number, *, score=None, bad=0, tokens=1):
    """Ends an iteration, counted from 1, after `bad` skipped updates in a row."""
    metrics = {"update/skipped_in_a_row": bad, "update/trained_tokens": tokens}
    metrics |= {"rollout/logprob_gap_mean": 0.0, "rollout/logprob_bit_equal": 1.0}
    monitor = run.progress.monitor
    monitor.empty_in_a_row = 0 if tokens else monitor.empty_in_a_row + 1
    run._check_and_save(number - 1, SimpleNamespace(bad_updates=bad), metrics, score)


def test_a_validation_is_compared_with_those_of_saved_states(run):
    for number, score, bad in ((10, 0.3, 0), (20, 0.8, 1), (30, 0.7, 0), (40, 0.75, 0), (50, 0.5, 0)):
        iteration(run, number, score=score, bad=bad)
    assert run.progress.saved == {10: 0.3, 30: 0.7, 40: 0.75}


def test_a_batch_without_tokens_leaves_a_state_that_is_saved(run):
    iteration(run, 99, bad=1, tokens=0)
    iteration(run, 100, bad=2, tokens=0)
    assert run.progress.saved == {100: None}


def test_after_updates_that_are_not_finite_nothing_is_saved(run):
    iteration(run, 99, bad=1)
    iteration(run, 100, bad=2, tokens=0)
    assert run.progress.saved == {}


def test_sigterm_saves_the_state_in_any_case(run):
    run.asked_to_stop = lambda: True
    with pytest.raises(Stopped):
        run._stop_if_asked(79, SimpleNamespace(bad_updates=1))
    assert run.progress.saved == {79: None}
