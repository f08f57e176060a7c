"""A run that collapses rolls back to the last checkpoint before, with lower learning rates, even if it is killed."""

import json

import pytest
import tiny_run

from agentrl_jax.algos import collapse
from agentrl_jax.train.roll_back import RollBacks

RULE = "{preset: starpo_s, filter: {ratio: 0.5}, horizon: {kind: stepwise, turns: [1, 2], every: 3}}"
WORDS = "--train.on_collapse roll_back --train.max_roll_backs 1 --train.iterations 6 --train.roll_back_factor 0.25"
WORDS = [*WORDS.split(), "--imitation.levels", "0", "--imitation.steps", "0"]

SIGN = collapse.Alarm("long", "rollout/horizon", "turns", "above", 1.5, 2, True, "turns are long", "made up")


@pytest.fixture(autouse=True)
def sign(monkeypatch):
    """The only alarm: horizon 2, which iterations 4 and 5 have every time they are played."""
    monkeypatch.setattr(collapse, "ALARMS", (SIGN,))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    text = tiny_run.CONFIG.replace("{preset: starpo_s, filter: {ratio: 0.5}}", RULE)
    return tiny_run.write_config(tmp_path_factory.mktemp("rolling"), text)


def train(file, run, *words):
    return tiny_run.trained(run, file, *WORDS, *words)


@pytest.fixture(scope="module")
def whole(file, tmp_path_factory):
    run = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(collapse, "ALARMS", (SIGN,))
        return run, " ".join(train(file, run).split())


def test_it_goes_back_with_lower_rates_and_other_draws(whole):
    run, shown = whole
    assert "long since 4, back to iteration 2 (roll-back 1 of 1)" in shown
    records = [json.loads((run / "roll_backs" / f"{n}.json").read_text()) for n in (1, 2)]
    # The checkpoint of iteration 4 was saved after the collapse began.
    assert [(r["alarm"], r["iteration"], r["began"], r["step"]) for r in records] == [("long", 5, 4, 2)] * 2
    given_up, again = ([row for row in r["rows"] if row["stage"] == "rl"] for r in records)
    assert [row["iteration"] for row in given_up] == [3, 4, 5]
    assert [row["actor/lr"] for row in given_up] == [0.01] * 3
    assert [row["actor/lr"] for row in again] == [0.0025] * 3
    assert given_up[0]["rollout/logprob_mean"] != again[0]["rollout/logprob_mean"]
    # The second roll-back is one more than allowed: the run ends with the good policy.
    assert [row["iteration"] for row in tiny_run.metrics(run) if row["stage"] == "rl"] == [1, 2]
    assert tiny_run.checkpoints(run)[-1] == 2
    summary = tiny_run.summary(run)
    assert (summary["stopped_by"], summary["iterations"], len(summary["roll_backs"])) == ("long", 2, 2)
    assert summary["episodes"] == (5 + 3) * 16


def test_kills_during_a_roll_back_change_nothing(file, whole, tmp_path, monkeypatch):
    run, _ = whole
    summary = tiny_run.summary(run)

    def killed_after(self, record, add=RollBacks.add):
        add(self, record)
        raise GeneratorExit

    with monkeypatch.context() as patched:
        patched.setattr(RollBacks, "add", killed_after)
        for _ in range(2):
            with pytest.raises(GeneratorExit):
                train(file, tmp_path / "killed")
    train(file, tmp_path / "killed")
    assert tiny_run.summary(tmp_path / "killed") == summary
    assert tiny_run.metrics(tmp_path / "killed") == tiny_run.metrics(run)
    assert tiny_run.checkpoint(tmp_path / "killed", 2) == tiny_run.checkpoint(run, 2)
    # A run that ended this way stays ended.
    train(file, tmp_path / "killed")
    assert tiny_run.summary(tmp_path / "killed") == summary
