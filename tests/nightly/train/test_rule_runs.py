import functools
import json

import jax
import numpy as np
import pytest
import tiny_run
import yaml

from agentrl_jax.algos import collapse
from agentrl_jax.setup.programs import Programs
from agentrl_jax.train.roll_back import RollBacks

RULE = """{
  preset: remax, kl: {kind: adaptive, estimator: k2, coef: 0.1, target: 1.0e-6, horizon: 100}, minibatches: 1,
  entropy_coef: 0.001,
  horizon: {kind: adaptive, turns: [1, 2], every: 1, min_gain: 2.0},
  schedules: {rollout.temperature: {end: 0.5, iterations: 2}, entropy_coef: {end: 0, iterations: 4, shape: cosine}}}"""


def rl_rows(run):
    return [row for row in tiny_run.metrics(run) if row["stage"] == "rl"]


def test_horizon_temperature_and_coefficient_move_and_a_restart_changes_none_of_it(tmp_path):
    """As if it had been killed before the last checkpoint, after iteration 2 of 4."""
    text = tiny_run.CONFIG.replace("{preset: starpo_s, filter: {ratio: 0.5}}", RULE.replace("\n", " "))
    file = tiny_run.write_config(tmp_path, text.replace("train: {", "train: {mutual_information_every: 3, "))
    whole, again = tmp_path / "whole", tmp_path / "again"
    tiny_run.trained(whole, file)
    rows = rl_rows(whole)
    # No success rate rises by 2, so the horizon grows once two windows of one iteration have been seen.
    assert [row["rollout/horizon"] for row in rows] == [1, 1, 2, 2]
    assert [row["rollout/temperature"] for row in rows] == [1.0, 0.75, 0.5, 0.5]
    assert rows[0]["actor/kl_coef"] == pytest.approx(0.1)
    assert len({row["actor/kl_coef"] for row in rows}) == 4
    # Four groups of four, and a greedy episode per group.
    assert tiny_run.summary(whole)["episodes"] == 4 * (16 + 4)
    compiled = json.loads((whole / "summary.json").read_text())["programs"]
    assert {"baseline", "mutual_information", "recorded"} < {*compiled}
    # Measured in iterations 1 and 3, and smoothed over both.
    measured = [any("marginal_std_smoothed" in name for name in row) for row in rows]
    assert measured == [True, False, True, False]
    assert "going on from the checkpoint of step 5" in tiny_run.resumed(whole, again, file)
    assert tiny_run.metrics(again) == tiny_run.metrics(whole)
    assert tiny_run.summary(again) == tiny_run.summary(whole)


@pytest.mark.parametrize("command", ["train", "compare"])
def test_resampled_groups_have_greedy_episodes_of_their_own(command, tmp_path, monkeypatch):
    run = yaml.safe_load(tiny_run.CONFIG.replace("levels: LEVELS", "levels: ''"))
    run["algo"] = {"preset": "remax", "dynamic_sampling": 3, "minibatches": 1}
    run["train"] = {"iterations": 2, "validation_episodes": 8}
    variants = {"seeds": 2, "run": run, "variants": {"remax": {}, "again": {}}, "pairs": []}
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump(run if command == "train" else variants))
    seen, update = [], Programs.update

    def learn(program, state, trajectory, temperature, key, settings, greedy):
        own, alone = (x.turn.state_hash[:, 0] for x in (trajectory, greedy))
        jax.debug.callback(lambda *x: seen.append(x), own[::4], alone, trajectory.ids.group[::4])
        return program(state, trajectory, temperature, key, settings, greedy)

    def recorded(self, *args, **options):
        return functools.partial(learn, update(self, *args, **options))

    monkeypatch.setattr(Programs, "update", recorded)
    out = "--run_dir" if command == "train" else "--out"
    tiny_run.done(command, str(file), out, str(tmp_path / "out"))
    jax.effects_barrier()
    assert len(seen) == (2 if command == "train" else 8)
    for own, greedy, _ in seen:
        np.testing.assert_array_equal(greedy, own)
    assert any(group.max() >= 4 for _, _, group in seen)
    for row in rl_rows(tmp_path / "out") if command == "train" else ():
        assert row["train/success"] == pytest.approx(row["rollout/solved"] / row["rollout/episodes"], abs=1e-6)
        differs = abs(row["rollout/in_group_std"] - row["rollout/chosen_in_group_std"]) > 1e-3
        assert differs == (row["rollout/rounds"] > 1)


COLLAPSING = "{preset: starpo_s, filter: {ratio: 0.5}, horizon: {kind: stepwise, turns: [1, 2], every: 3}}"
WORDS = "--train.on_collapse roll_back --train.max_roll_backs 1 --train.iterations 6 --train.roll_back_factor 0.25"
WORDS = [*WORDS.split(), "--imitation.levels", "0", "--imitation.steps", "0"]

SIGN = collapse.Alarm("long", "rollout/horizon", "turns", "above", 1.5, 2, True, "turns are long", "made up")


class Killed(BaseException):
    pass


def test_it_goes_back_with_lower_rates_and_other_draws_also_if_it_is_killed(tmp_path, monkeypatch):
    """The only alarm is horizon 2, which iterations 4 and 5 have every time they are played."""
    monkeypatch.setattr(collapse, "ALARMS", (SIGN,))
    text = tiny_run.CONFIG.replace("{preset: starpo_s, filter: {ratio: 0.5}}", COLLAPSING)
    run, killed, file = tmp_path / "run", tmp_path / "killed", tiny_run.write_config(tmp_path, text)
    shown = " ".join(tiny_run.trained(run, file, *WORDS).split())
    assert "long since 4, back to iteration 2 (roll-back 1 of 1)" in shown
    records = [json.loads((run / "roll_backs" / f"{n}.json").read_text()) for n in (1, 2)]
    given_up, again = ([row for row in r["rows"] if row["stage"] == "rl"] for r in records)
    assert [row["actor/lr"] for row in (*given_up, *again)] == [0.01] * 3 + [0.0025] * 3
    assert given_up[0]["rollout/logprob_mean"] != again[0]["rollout/logprob_mean"]
    # The second roll-back is one more than allowed: the run ends with the good policy.
    assert [row["iteration"] for row in rl_rows(run)] == [1, 2]
    assert tiny_run.checkpoints(run)[-1] == 2
    summary = tiny_run.summary(run)
    assert (summary["stopped_by"], summary["iterations"], len(summary["roll_backs"])) == ("long", 2, 2)
    assert summary["episodes"] == (5 + 3) * 16

    def killed_after(self, record, add=RollBacks.add):
        add(self, record)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(RollBacks, "add", killed_after)
        for _ in range(2):
            with pytest.raises(Killed):
                tiny_run.trained(killed, file, *WORDS)
    for _ in range(2):  # a run that ended this way stays ended
        tiny_run.trained(killed, file, *WORDS)
        assert tiny_run.summary(killed) == summary
    assert tiny_run.metrics(killed) == tiny_run.metrics(run)
    assert tiny_run.checkpoint(killed, 2) == tiny_run.checkpoint(run, 2)
