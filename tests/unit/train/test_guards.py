import math
import re
import signal
from types import SimpleNamespace

import jax
import pytest
import yaml
from refusing import refusal

from agentrl_jax.config import Config, EvalConfig, TrainConfig, decode, save_resolved
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.rollout.returns import RewardRule
from agentrl_jax.setup import build_inputs, start
from agentrl_jax.stopping import Stopped
from agentrl_jax.train import guards
from agentrl_jax.train.collapse_monitor import CollapseMonitor
from agentrl_jax.train.progress import RunProgress
from agentrl_jax.train.reinforcement import Reinforcement

CLIPS = "clip_low clip_high"


def kept():
    return "step 5, is kept"


def test_rates_reach_the_update_the_notes_and_the_folder(tmp_path):
    config = decode({"model": {"pretrained": "smollm2-135m"}, "run_dir": "x"})
    numbers = build_inputs.update_settings(config, 0.5)
    assert (float(numbers.lr), float(numbers.critic_lr)) == pytest.approx((5e-7, 5e-6))
    assert "optim.lr 1e-06 (the default)" in start.notes(config)[0]
    save_resolved(config, tmp_path / "config.yaml")
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["optim"]["lr"] == 1e-6
    without = decode({"optim": {"lr": 2e-5}, "algo": {"preset": "grpo"}})
    assert (without.optim.lr, without.optim.critic_lr) == (2e-5, None)
    assert float(build_inputs.update_settings(without, 1.0).critic_lr) == 0.0
    warmed = decode({"train": {"critic_warmup": 3}})
    held = [float(build_inputs.update_settings(warmed, 1.0, i).freeze_policy) for i in range(5)]
    assert held == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_a_clip_that_cannot_bind_and_a_critic_that_is_not_there_are_said():
    for algo, idle in (
        ("preset: starpo_s", f"{CLIPS} dual_clip value_clip"),
        ("preset: starpo_s, advantage: {value_clip: null}", f"{CLIPS} dual_clip"),
        ("preset: grpo, minibatches: 1", CLIPS),
        ("preset: starpo_s, mismatch: {ratio_from: rollout}", "value_clip"),
        ("preset: cispo, minibatches: 1", f"{CLIPS} objective"),
        *(("preset: starpo", ""), ("preset: starpo_s, epochs: 2", ""), ("preset: dapo", ""), ("preset: rloo", "")),
    ):
        _, *lines = start.notes(decode({"algo": yaml.safe_load(f"{{{algo}}}")}))
        keys = re.findall(r"algo\.(?:\w+\.)?(\w+)", lines[0].split(" do")[0]) if lines else []
        assert (len(lines), " ".join(keys)) == (int(bool(idle)), idle)
    for preset, said in (("grpo", True), ("starpo", False)):
        lines = start.notes(decode({"algo": {"preset": preset}, "model": {"critic": "separate"}}))
        assert [line.startswith("model.critic separate does nothing") for line in lines] == [False, True][: 1 + said]


def test_a_validation_plays_as_many_levels_at_the_temperature_that_is_set():
    def play(params, episodes, temperature):
        raise KeyError(episodes, temperature)

    levels = SimpleNamespace(number=lambda wanted: wanted - 1, play=play)
    train = TrainConfig(validation_episodes=7, validation_temperature=0.125)
    with pytest.raises(KeyError) as found:
        HeldOut(EvalConfig(), train, RewardRule(0.0), ("X",), eval_sets=(), validations=(levels,)).validation({})
    assert found.value.args == (6, 0.125)


def test_too_many_skipped_updates_in_a_row_or_failed_episodes_end_a_run():
    guards.check_skipped(1, 2, "optim.lr", kept)
    error = refusal(guards.check_skipped, 2, 2, "imitation.lr", kept)
    assert (error.key, error.value, kept() in str(error)) == ("imitation.lr", 2, True)
    guards.check_services(0.25, 0.25, "maze", "none", kept)
    error = refusal(guards.check_services, 0.26, 0.25, "maze", "it has caved in", kept)
    assert (error.key, error.value) == ("env.max_failed", 0.25)
    assert re.search(r"maze .*caved in.*step 5, is kept", str(error))


def metrics(gap, equal=1.0, tokens=5):
    found = {"rollout/logprob_gap_mean": gap, "rollout/logprob_gap_max": 2 * gap}
    return found | {"rollout/logprob_bit_equal": equal, "update/trained_tokens": tokens}


def test_log_probabilities_that_are_not_those_of_the_rollout_end_a_run():
    def config(quantization="none", **algo):
        return decode({"algo": {"preset": "starpo", **algo}, "rollout": {"quantization": quantization}})

    limited, replay = config(logprob_gap_limit=0.1), config(mismatch="replay")
    guards.check_logprobs(limited, metrics(0.1), kept)
    guards.check_logprobs(config(logprob_gap_limit=None), metrics(9.0), kept)
    guards.check_logprobs(config(), metrics(0.0, equal=0.5), kept)
    guards.check_logprobs(replay, metrics(0.0), kept)
    guards.check_logprobs(replay, metrics(0.0, equal=0.0, tokens=0), kept)
    quantized = config("weights", logprob_gap_limit=0.1)
    for one, found, key, advice in (
        (limited, metrics(0.2), "algo.logprob_gap_limit", "model.precision float32"),
        (quantized, metrics(0.2), "algo.logprob_gap_limit", "rollout.quantization none"),
        (replay, metrics(0.0, equal=0.5), "algo.mismatch", "50.0000%"),
    ):
        error = refusal(guards.check_logprobs, one, found, kept)
        assert (error.key, advice in str(error), kept() in str(error)) == (key, True, True)


def test_empty_batches_are_counted_from_the_newest():
    rows = [{"stage": "rl", "iteration": i, "update/trained_tokens": n} for i, n in enumerate((0, 5, 0, 0), 1)]
    counted = [CollapseMonitor(False, rows[:count], print).empty_in_a_row for count in range(5)]
    assert counted == [0, 1, 0, 1, 2]


def test_returns_that_do_not_differ_are_said_once_after_ten_iterations():
    usual = {"stage": "rl", "rollout/zero_std_share": 1.0, "train/success": 0.0, "train/raw_return": 0.0}
    one_group = {"stage": "rl", "critic/reward_min": 0.5, "critic/reward_max": 0.5, "train/raw_return": 0.5}
    for row, valid, success, said in (
        (usual, 0.2, 0.0, "imitation.steps"),
        (usual, 0.5, 0.0, "rollout.group_size"),
        (usual, 0.2, 1.0, "harder levels"),
        (usual | {"rollout/zero_std_share": 0.99}, 0.2, 0.0, None),
        (one_group, 1.0, 0.5, "easier levels"),
        (one_group | {"critic/reward_max": 0.75}, 1.0, 0.5, None),
    ):
        rows = [row | {"iteration": i, "train/valid_format": valid, "train/success": success} for i in range(1, 25)]
        rows[12] |= {"rollout/zero_std_share": 0.5}
        for before in (0, 4):  # as many when the process began
            notes: list[str] = []
            monitor = CollapseMonitor(False, rows[:before], notes.append)
            for each in rows[before:]:
                monitor.see(dict(each))
            found = [line for line in notes if "rewards give no gradient" in line]
            assert [line.split(":")[0] for line in found] == ([] if said is None else ["iteration 10", "iteration 23"])
            assert all(said in line for line in found)


@pytest.mark.parametrize(("kind", "reference"), [("none", "the start"), ("fixed", None)])
def test_dependence_on_prompts_is_measured_in_the_first_iteration_and_when_it_is_due(kind, reference, monkeypatch):
    """Every second of four; with a KL term the update measures the divergence itself."""
    monkeypatch.setattr("agentrl_jax.train.reinforcement.host_metrics", dict)
    asked, stage = [], object.__new__(Reinforcement)
    stage.config = decode({"train": {"mutual_information_every": 2}, "algo": {"preset": "starpo", "kl": kind}})
    stage.progress = SimpleNamespace(monitor=SimpleNamespace(newest={}))

    def program(params, reference, trajectory, temperature, key):
        asked.append(reference)
        return {"collapse/first_turn_mi": 0.5}

    stage.parts = SimpleNamespace(prompt_information=program, key=jax.random.key(0))
    for iteration in range(4):
        state = SimpleNamespace(step=iteration, merged_params=dict, reference="the start")
        assert bool(stage._prompt_metrics(state, None, None)) == (iteration in (0, 1, 3))
    assert asked == [reference] * 3


class Saved(RunProgress):
    def __init__(self):
        self.saved, self.checkpoints, self.view = {}, self, SimpleNamespace(note=print)
        self._asked_to_stop = lambda: signal.SIGHUP
        self.monitor = SimpleNamespace(stopped_by="", empty_in_a_row=0)
        self.target = SimpleNamespace(reached="")
        self.wait = self.raise_failure = lambda: None
        self.kept, self.plot = (lambda: ""), (lambda: None)
        self.latest_step = lambda: max(self.saved, default=None)

    def save(self, step, state, score=None, *, regular=True):
        self.saved[step] = score

    def best_score(self):
        return max((score for score in self.saved.values() if score is not None), default=-math.inf)


@pytest.fixture
def stage():
    stage = object.__new__(Reinforcement)
    stage.config = Config(train=TrainConfig(iterations=200, checkpoint_every=100))
    stage.first_row, stage.progress, stage.drawn = 0, Saved(), []
    stage.progress.plot = lambda: stage.drawn.append(stage._plotted)
    return stage


def test_curves_are_drawn_less_often_the_longer_a_run_is(stage):
    stage.config = Config(train=TrainConfig(iterations=5000, checkpoint_every=10))
    for number in range(10, 5010, 10):
        iteration(stage, number)
    assert stage.drawn[:8] == [10, 20, 30, 40, 50, 60, 80, 100]
    assert stage.drawn[-1] < 5000  # the end draws them itself
    assert len(stage.drawn) < 40


def iteration(stage, number, *, score=None, bad=0, tokens=1):
    """Ends an iteration, counted from 1, after `bad` skipped updates in a row."""
    metrics = {"update/skipped_in_a_row": bad, "update/trained_tokens": tokens}
    metrics |= {"rollout/logprob_gap_mean": 0.0, "rollout/logprob_bit_equal": 1.0}
    monitor = stage.progress.monitor
    monitor.empty_in_a_row = 0 if tokens else monitor.empty_in_a_row + 1
    stage._check_and_save(number - 1, SimpleNamespace(bad_updates=bad), metrics, score)


def test_finite_states_are_saved_when_due_or_best_and_any_state_at_a_signal(stage):
    """A validation is compared with those of saved states; a batch without tokens leaves a state that is finite."""
    for number, score, bad in ((10, 0.3, 0), (20, 0.8, 1), (30, 0.7, 0), (40, 0.75, 0), (50, 0.5, 0)):
        iteration(stage, number, score=score, bad=bad)
    assert stage.progress.saved == {10: 0.3, 30: 0.7, 40: 0.75}
    stage.progress.target.reached = "target"
    iteration(stage, 55)
    assert stage.progress.saved[55] is None
    stage.rows = 200
    assert stage.ended(SimpleNamespace(step=55))
    for tokens, saved in ((0, {100: None}), (1, {})):
        stage.progress = Saved()
        iteration(stage, 99, bad=1, tokens=tokens)
        iteration(stage, 100, bad=2, tokens=0)
        assert stage.progress.saved == saved
    with pytest.raises(Stopped) as stopped:
        stage.progress.stop_if_asked(79, SimpleNamespace(bad_updates=1))
    assert (stage.progress.saved, stopped.value.number) == ({79: None}, signal.SIGHUP)
