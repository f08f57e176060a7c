"""What ends a run that goes wrong, and what a run measures and validates when."""

from types import SimpleNamespace

import jax
import pytest

from agentrl_jax.config import EvalConfig, TrainConfig, decode
from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.rollout.returns import Penalties
from agentrl_jax.train import guards
from agentrl_jax.train.collapse_monitor import CollapseMonitor
from agentrl_jax.train.run import Run


def kept():
    return "step 5, is kept"


def test_a_validation_plays_as_many_levels_at_the_temperature_that_is_set():
    class Played(Exception):
        pass

    class Levels:
        def number(self, wanted):
            return wanted - 1

        def play(self, params, episodes, temperature):
            raise Played(episodes, temperature)

    train = TrainConfig(validation_episodes=7, validation_temperature=0.125)
    with pytest.raises(Played) as found:
        HeldOut(EvalConfig(), train, Penalties(0.0), ("X",), eval_sets=(), validations=(Levels(),)).validation({})
    assert found.value.args == (6, 0.125)


def test_too_many_skipped_updates_in_a_row_end_a_run():
    guards.check_skipped(1, 2, "optim.lr", kept)
    with pytest.raises(UserError, match="step 5, is kept") as refused:
        guards.check_skipped(2, 2, "imitation.lr", kept)
    assert (refused.value.key, refused.value.value) == ("imitation.lr", 2)


def test_too_many_failed_episodes_end_a_run():
    guards.check_services(0.25, 0.25, "maze", "none", kept)
    with pytest.raises(UserError, match=r"maze .*caved in.*step 5, is kept") as refused:
        guards.check_services(0.26, 0.25, "maze", "it has caved in", kept)
    assert (refused.value.key, refused.value.value) == ("env.max_failed", 0.25)


def metrics(gap, equal=1.0, tokens=5):
    return {
        "rollout/logprob_gap_mean": gap,
        "rollout/logprob_gap_max": 2 * gap,
        "rollout/logprob_bit_equal": equal,
        "update/trained_tokens": tokens,
    }


@pytest.mark.parametrize(
    ("algo", "quantization", "found", "key", "advice"),
    [
        ({"logprob_gap_limit": 0.1}, "none", metrics(0.1), "", ""),
        ({"logprob_gap_limit": None}, "none", metrics(9.0), "", ""),
        ({"logprob_gap_limit": 0.1}, "none", metrics(0.2), "algo.logprob_gap_limit", "model.precision float32"),
        ({"logprob_gap_limit": 0.1}, "weights", metrics(0.2), "algo.logprob_gap_limit", "rollout.quantization none"),
        ({}, "none", metrics(0.0, equal=0.5), "", ""),
        ({"mismatch": "replay"}, "none", metrics(0.0), "", ""),
        ({"mismatch": "replay"}, "none", metrics(0.0, equal=0.0, tokens=0), "", ""),
        ({"mismatch": "replay"}, "none", metrics(0.0, equal=0.5), "algo.mismatch", "50.0000%"),
    ],
)
def test_log_probabilities_that_are_not_those_of_the_rollout_end_a_run(algo, quantization, found, key, advice):
    config = decode({"algo": {"preset": "starpo", **algo}, "rollout": {"quantization": quantization}})
    if not key:
        guards.check_logprobs(config, found, kept)
        return
    with pytest.raises(UserError, match="step 5, is kept") as refused:
        guards.check_logprobs(config, found, kept)
    assert refused.value.key == key
    assert advice in str(refused.value)


def test_empty_batches_are_counted_from_the_newest():
    rows = [{"stage": "rl", "iteration": i, "update/trained_tokens": n} for i, n in enumerate((0, 5, 0, 0), 1)]
    counted = [CollapseMonitor(False, rows[:count], print).empty_in_a_row for count in range(5)]
    assert counted == [0, 1, 0, 1, 2]


@pytest.mark.parametrize(("kind", "reference"), [("none", "the start"), ("fixed", None)])
def test_dependence_on_prompts_is_measured_in_the_first_iteration_and_when_it_is_due(kind, reference, monkeypatch):
    """Every second of four; with a KL term the update measures the divergence itself."""
    monkeypatch.setattr("agentrl_jax.train.run.host_metrics", dict)
    asked, run = [], object.__new__(Run)
    run.config = decode({"train": {"mutual_information_every": 2}, "algo": {"preset": "starpo", "kl": kind}})
    run.progress = SimpleNamespace(monitor=SimpleNamespace(newest={}))

    def program(params, reference, trajectory, temperature, key):
        asked.append(reference)
        return {"collapse/first_turn_mi": 0.5}

    run.parts = SimpleNamespace(prompt_information=program, key=jax.random.key(0))
    for iteration in range(4):
        state = SimpleNamespace(iteration=iteration, merged_params=dict, reference="the start")
        found = run._prompt_metrics(state, None, None)
        assert bool(found) == (iteration in (0, 1, 3))
    assert asked == [reference] * 3
